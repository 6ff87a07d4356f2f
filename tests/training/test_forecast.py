from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.training.gguf_file import random_decoder, write_model
from torch.nn import functional

from slipstream.drafters.training import forecast
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
