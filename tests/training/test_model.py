from pathlib import Path

import numpy as np
import pytest
import torch
from tests.training.llama_file import LlamaFile

from slipstream.drafters.training.export import write_gguf
from slipstream.drafters.training.model import Decoder, Shape

SHAPES = {
    "grouped heads": Shape(width=64, layers=3, heads=4, kv_heads=2, head_size=32, ffn=96, vocabulary=600),
    "plain heads": Shape(width=128, layers=2, heads=2, kv_heads=2, head_size=64, ffn=160, vocabulary=600),
}


def _random(shape: Shape) -> Decoder:
    torch.manual_seed(1)
    model = Decoder(shape)
    for p in model.parameters():
        torch.nn.init.normal_(p, mean=float(p.ndim == 1), std=0.1)
    return model.eval()


@pytest.mark.parametrize("name", SHAPES)
def test_export_computes_what_torch_computes(name: str, prepared: Path, tmp_path: Path) -> None:
    model = _random(SHAPES[name])
    write_gguf(model, prepared / "tokenizer.json", tmp_path / "m.gguf", "m", "m", "f32")
    ids = np.random.default_rng(1).integers(19, 600, 900).tolist()
    with LlamaFile(tmp_path / "m.gguf") as file, torch.no_grad():
        ours = model(torch.tensor([ids]))[0].numpy()
        assert np.abs(ours).max() > 1
        np.testing.assert_allclose(file.logits(ids), ours, atol=1e-3)


def test_q8_export_is_close(prepared: Path, tmp_path: Path) -> None:
    model = _random(SHAPES["plain heads"])
    write_gguf(model, prepared / "tokenizer.json", tmp_path / "m.gguf", "m", "m")
    ids = np.random.default_rng(2).integers(19, 600, 200).tolist()
    with LlamaFile(tmp_path / "m.gguf") as file, torch.no_grad():
        ours, theirs = model(torch.tensor([ids]))[0].numpy(), file.logits(ids)
    assert 0 < np.abs(ours - theirs).mean() < 0.05 * ours.std()


def test_a_chat_does_not_see_the_one_before_it() -> None:
    model = _random(SHAPES["grouped heads"])
    first, second = [30, 31, 32, 0], [40, 41, 42]
    with torch.no_grad():
        together = model(torch.tensor([first + second]))[0, 4:]
        alone = model(torch.tensor([second]))[0]
        other = model(torch.tensor([[30, 31, 32, 33, *second]]))[0, 4:]
    torch.testing.assert_close(together, alone, atol=1e-4, rtol=1e-4)
    assert float((other - alone).abs().max()) > 0.01
