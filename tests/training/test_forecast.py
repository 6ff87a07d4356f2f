from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.training.gguf_file import random_decoder, write_model
from torch.nn import functional

from slipstream.drafters.training import forecast
from slipstream.drafters.training.acceptance import Acceptance, by_depth, chain_guesses, mean, of_guesses
from slipstream.drafters.training.decoder import DecoderShape
from slipstream.drafters.training.from_gguf import load_gguf
from slipstream.models.errors import SlipstreamError
from slipstream.models.gguf.reader import Header, read_header

LLAMA = DecoderShape(
    width=64, layers=3, heads=4, kv_heads=2, head_size=32, ffn=160, vocabulary=300, context=512, tied=False
)
QWEN3 = replace(LLAMA, rope="halves", qk_norm=True, tied=True)


def _header(shape: DecoderShape, folder: Path) -> Header:
    write_model(folder / "m.gguf", random_decoder(shape))
    return read_header(folder / "m.gguf")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [LLAMA, QWEN3])
def test_the_estimate_is_near_what_a_step_keeps(shape: DecoderShape, dtype: torch.dtype, tmp_path: Path) -> None:
    needed = forecast.memory_needed(_header(shape, tmp_path), dtype, batch_tokens=64, window=32)
    model = load_gguf(tmp_path / "m.gguf", dtype)
    kept: dict[int, int] = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in model.parameters()}
    alive = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        alive.append(tensor)  # so that no address is used twice
        return tensor

    rows = torch.randn(2, 32, shape.width, dtype=dtype, requires_grad=True)
    mask = torch.ones(2, 1, 32, 32, dtype=torch.bool).tril()
    with torch.autocast("cpu", torch.bfloat16), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logits = model.logits(model.run(rows, torch.arange(32), mask)).float().flatten(0, 1)
        functional.cross_entropy(logits, torch.zeros(64, dtype=torch.long)).backward()
    assert sum(kept.values()) < needed < 1.25 * sum(kept.values())


def test_a_model_that_fits_in_bfloat16_only_is_loaded_so(tmp_path: Path) -> None:
    header = _header(LLAMA, tmp_path)
    full, half = (forecast.memory_needed(header, dtype) for dtype in (torch.float32, torch.bfloat16))
    assert half < full
    assert forecast.check_memory(header, full) == torch.float32
    assert forecast.check_memory(header, full - 1) == torch.bfloat16
    with pytest.raises(SlipstreamError) as refusal:
        forecast.check_memory(replace(header, path=Path("big.gguf")), half - 1)
    assert f"training through big.gguf needs {half / 1e9:.1f} GB of memory, and" in refusal.value.title
    assert "medusa or kangaroo" in refusal.value.hint


def test_meminfo_counts_kibibytes() -> None:
    text = "MemTotal:       8039556 kB\nMemFree:  1000 kB\nMemAvailable:    2048 kB\nBuffers:   1 kB\n"
    assert forecast.linux_available(text) == 2 << 20
    with pytest.raises(OSError, match="available"):
        forecast.linux_available("MemTotal:  8039556 kB\n")


def test_a_depth_counts_only_where_all_before_it_were_right() -> None:
    right = np.array([[1, 1, 0], [1, 0, 1], [0, 1, 1], [1, 1, 1]], bool)
    written = np.ones_like(right)
    written[3, 2] = False  # the reply ends there
    found = by_depth(right, written)
    assert found.shares == (3 / 4, 2 / 3, 0.0) and found.reached == (4, 3, 1)


def test_tokens_per_step_add_up_the_chances_of_every_depth() -> None:
    found = Acceptance((0.5, 0.5, 0.4), (10, 5, 2))
    assert found.tokens_per_step(0) == 1 and found.tokens_per_step(2) == 1.75
    assert found.tokens_per_step(9) == pytest.approx(1.85)


def test_guesses_are_held_against_the_tokens_below_each_root() -> None:
    ids = np.array([[7, 1, 2, 3, 4, 0]])
    weights = np.array([[0, 1, 1, 1, 1, 0]], np.float32)  # 7 is the prompt, 0 belongs to the next chat
    guesses = np.full((1, 5, 2), -1)
    guesses[0, 1] = 2, 3  # below the root 1: both right
    guesses[0, 2] = 3, 9  # below 2: the second is wrong
    guesses[0, 3] = 9, 9  # below 3: wrong
    guesses[0, 0] = 1, 2  # below the prompt: not counted, the target wrote no root there
    found = of_guesses(guesses, ids, weights)
    assert found.shares == (2 / 3, 1 / 2) and found.reached == (3, 2)


def test_a_chain_guesses_what_it_would_guess_on_the_text_itself() -> None:
    best = np.array([[5, 6, 7, 8]])
    assert chain_guesses(best, 3)[0].tolist() == [[5, 6, 7], [6, 7, 8], [7, 8, -1], [8, -1, -1]]


def test_parts_weigh_by_how_much_they_counted() -> None:
    whole = mean([Acceptance((1.0, 0.5), (30, 10)), Acceptance((0.0, 0.0), (10, 0))])
    assert whole.shares == (0.75, 0.5) and whole.reached == (40, 10)
