"""How blocks are read: DFlash2's scores by the candidate before, and a Markov term beside the greedy path."""

from pathlib import Path

import numpy as np
import pytest
from tests.drafters.block_file import TOKENS, write_head
from tests.drafters.changed_file import changed

from slipstream.drafters.block_drafter import MarkovTerm, selected
from slipstream.models.gguf.reader import read_header
from slipstream.models.heads.block_head import BlockHead
from slipstream.models.llama.features import BlockOutput


def block_of(rows: list[list[float]]) -> BlockOutput:
    return BlockOutput(np.zeros((0, 20), np.float32), np.array(rows, np.float32))


def test_a_candidate_is_scored_after_the_candidate_before_it() -> None:
    head = BlockHead((0,), 0, 3, first=1, choices=2, confidence=False, sections=1)
    read = selected(head, 20)
    #                 candidates  after each of the first and of the second candidate before
    block = block_of([[0] * 6, [7, 4, 1.0, 2.0, 1.0, 2.0], [5, 7, 3.0, 4.0, 6.0, 5.0]])
    first = read(block, ())
    assert first and np.flatnonzero(first.logits > -np.inf).tolist() == [4, 7]
    assert (first.logits[7], first.logits[4]) == (1.0, 2.0)
    after_7 = read(block, (7,))
    assert after_7 and (after_7.logits[5], after_7.logits[7]) == (3.0, 4.0)
    after_4 = read(block, (4,))
    assert after_4 and (after_4.logits[5], after_4.logits[7], after_4.logits[4]) == (6.0, 5.0, -np.inf)
    assert read(block, (9,)) is None and read(block, (4, 5)) is None


@pytest.mark.parametrize("reduced", [False, True])
def test_the_markov_term_is_moved_to_another_token(tmp_path: Path, reduced: bool) -> None:
    rng = np.random.default_rng(6)
    w1, w2 = rng.normal(size=(TOKENS, 8)).astype(np.float32), rng.normal(size=(TOKENS, 8)).astype(np.float32)
    ids = rng.permutation(TOKENS)[: TOKENS // 2] if reduced else np.arange(TOKENS)
    tensors = {"markov_w1.weight": w1, "markov_w2.weight": w2[ids], "markov_w2.scale": np.full(1, 0.5, np.float32)}
    if reduced:
        tensors["d2t"] = ids.astype(np.int64)
    good = write_head(tmp_path / "good.gguf", "dspark")
    markov = MarkovTerm(read_header(changed(good, tmp_path / "other.gguf", tensors=tensors)))
    base = np.full(TOKENS, -np.inf, np.float32)
    base[ids] = rng.normal(size=len(ids))
    after = {token: base + 0.5 * (w2 @ w1[token]) for token in (10, 20)}
    moved = markov.moved(after[10].astype(np.float32), 10, 20)
    there = np.flatnonzero(moved > -np.inf)
    assert set(there) <= set(ids.tolist()) and len(there) >= min(len(ids), 24)
    np.testing.assert_allclose(moved[there], after[20][there], atol=1e-4)
