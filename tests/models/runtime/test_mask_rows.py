"""SPACE's masks ride along as embedding rows; what the target says of ordinary tokens keeps its every bit."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llama_cpp import llama_cpp as C
from numpy.typing import NDArray

from slipstream.models.gguf import read_header
from slipstream.models.gguf_tensors import read_tensor
from slipstream.models.runtime.library import rows_at
from slipstream.models.runtime.model import LlamaModel
from slipstream.models.runtime.options import ContextOptions
from slipstream.models.types import Floats

BUNDLED = Path(__file__).parents[3] / "models" / "bundled" / "slipstream-mini-q8_0.gguf"
MASKS = 3
Row = tuple[Floats, int, Sequence[int]]  # embedding, position, sequences


@contextmanager
def _context(model: LlamaModel) -> Iterator[Any]:
    options = ContextOptions(max_leaves=MASKS + 2, kv="q8_0", flash=True, same_text=True, threads=2)
    context = C.llama_init_from_model(model.pointer, options.params(512))
    assert context
    yield context
    C.llama_free(context)


def _decode(context: Any, model: LlamaModel, rows: Sequence[Row | int], start: int = 0) -> NDArray[np.float32]:
    """Decodes embedding rows, or tokens of sequence 0; returns the logits of all rows."""
    embeds = not isinstance(rows[0], int)
    batch = C.llama_batch_init(len(rows), model.n_embd if embeds else 0, MASKS + 2)
    batch.n_tokens = len(rows)
    for i, row in enumerate(rows):
        if isinstance(row, int):
            batch.token[i], where, belongs = row, start + i, [0]
        else:
            vector, where, belonging = row
            np.ctypeslib.as_array(batch.embd, (len(rows), model.n_embd))[i] = vector
            belongs = list(belonging)
        batch.pos[i], batch.n_seq_id[i], batch.logits[i] = where, len(belongs), 1
        for place, sequence in enumerate(belongs):
            batch.seq_id[i][place] = sequence
    assert C.llama_decode(context, batch) == 0
    found = rows_at(C.llama_get_logits(context), len(rows), model.n_vocab).copy()
    C.llama_batch_free(batch)
    return found


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaModel]:
    opened = LlamaModel(BUNDLED)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def embedding() -> NDArray[np.float32]:
    header = read_header(BUNDLED)
    return np.asarray(read_tensor(header, next(t for t in header.tensors if t.name == "token_embd.weight")))


def test_tokens_fed_as_embeddings_give_the_same_bits(model: LlamaModel, embedding: NDArray[np.float32]) -> None:
    ids = model.tokenize("The sea is the salt water that covers most of the Earth.", False)
    with _context(model) as context:
        by_token = _decode(context, model, ids)
    with _context(model) as context:
        by_row = _decode(context, model, [(embedding[t], i, [0]) for i, t in enumerate(ids)])
    assert np.array_equal(by_token, by_row)


@pytest.mark.parametrize("seed", range(4))
def test_masks_behind_every_candidate_leave_ordinary_rows_as_they_are(
    seed: int, model: LlamaModel, embedding: NDArray[np.float32]
) -> None:
    rng = np.random.default_rng(seed)
    prefix = model.tokenize("<|im_start|>user\nTell me about the sea<|im_end|>\n<|im_start|>assistant\n", True)
    chain = [int(t) for t in rng.integers(19, model.n_vocab, MASKS + 1)]  # the last token and its candidates
    after = [int(t) for t in rng.integers(19, model.n_vocab, 3)]
    with _context(model) as context:
        _decode(context, model, prefix)
        plain = _decode(context, model, chain, start=len(prefix))
        plain_after = _decode(context, model, after, start=len(prefix) + len(chain))
    masks = rng.normal(0, embedding.std() * 3, (MASKS, model.n_embd)).astype(np.float32)
    rows, places = list[Row](), list[int]()
    for j, token in enumerate(chain):
        at = len(prefix) + j
        places.append(len(rows))
        rows.append((embedding[token], at, [0, *range(j + 1, MASKS + 2)]))
        rows += [(masks[i], at + 1 + i, [j + 1]) for i in range(MASKS)]
    with _context(model) as context:
        memory = C.llama_get_memory(context)
        _decode(context, model, prefix)
        for group in range(1, MASKS + 2):
            C.llama_memory_seq_cp(memory, 0, group, -1, -1)
        found = _decode(context, model, rows)
        assert np.array_equal(found[places], plain)
        for group in range(1, MASKS + 2):
            C.llama_memory_seq_rm(memory, group, -1, -1)
        assert np.array_equal(_decode(context, model, after, start=len(prefix) + len(chain)), plain_after)
