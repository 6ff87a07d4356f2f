"""The second strict class: F32 weights, no flash attention, F32 KV cache; any branch may win, nothing is read again."""

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.models.requantize import requantize

from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.target import ContextOptions
from slipstream.models.types import TokenTree

OPTIONS = ContextOptions(n_ctx=1024, kv="f32", flash=False, same_text=False, max_leaves=8, threads=1)
TOLERANCE = 1e-4  # logits are around 10: some rounding of the last bit; a wrong token moves them by 0.1 and more


@pytest.fixture(scope="module")
def f32_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaModel]:
    path = tmp_path_factory.mktemp("f32") / "mini-f32.gguf"
    requantize(Path(__file__).parents[3] / "models" / "bundled" / "slipstream-mini-q8_0.gguf", path, "f32")
    model = LlamaModel(path)
    yield model
    model.close()


def test_trees_with_any_winner_stay_within_rounding_of_plain_decoding(f32_model: LlamaModel) -> None:
    rng = random.Random(11)
    tree_target, plain_target = LlamaTarget(f32_model, OPTIONS), LlamaTarget(f32_model, OPTIONS)
    prompt = rng.choices(range(300, 4000), k=60)
    tree_target.prefill(prompt)
    plain_target.prefill(prompt)
    worst, moved = 0.0, 0
    for _ in range(30):
        branches = [rng.choices(range(300, 4000), k=3) for _ in range(3)]
        tree = TokenTree(tuple(token for branch in branches for token in branch), (-1, 0, 1, -1, 3, 4, -1, 6, 7))
        winner = rng.randrange(3)
        path = list(range(3 * winner, 3 * winner + rng.randrange(4)))
        moved += winner > 0 and bool(path)
        last = rng.randrange(300, 4000)
        rows = tree_target.evaluate(last, tree).logits.copy()
        tree_target.keep(path)
        for row, token in zip([0, *(n + 1 for n in path)], [last, *(tree.tokens[n] for n in path)], strict=True):
            worst = max(worst, float(np.abs(rows[row] - plain_target.evaluate(token).logits[0]).max()))
            plain_target.keep(())
        assert list(tree_target.tokens) == list(plain_target.tokens)
    assert worst < TOLERANCE and moved > 5
    tree_target.close()
    plain_target.close()
