from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.training.llama_file import LlamaFile

from slipstream.drafters.training.attention import Pairing
from slipstream.drafters.training.family.export import write_gguf
from slipstream.drafters.training.model import Decoder, Shape, cut, grow

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
        together = model(torch.tensor([first + second]), torch.tensor([[5] * 4 + [6] * 3]))[0, 4:]
        alone = model(torch.tensor([second]))[0]
        joined = model(torch.tensor([first + second]))[0, 4:]
    torch.testing.assert_close(together, alone, atol=1e-4, rtol=1e-4)
    assert float((joined - alone).abs().max()) > 0.01


@pytest.mark.parametrize("rope", ["pairs", "halves"])
def test_rows_are_told_apart_by_position_and_mask_not_by_their_order(rope: Pairing) -> None:
    model = _random(replace(SHAPES["grouped heads"], rope=rope, qk_norm=rope == "halves"))
    ids, order = torch.tensor([[30, 31, 32, 33, 34], [40, 41, 42, 43, 44]]), torch.tensor([3, 0, 4, 2, 1])
    mask = (order[:, None] >= order)[None, None].expand(2, 1, 5, 5)
    with torch.no_grad():
        in_order = model.hidden(ids, torch.zeros_like(ids))
        for positions in (order, order.expand(2, 5), order + 100):  # only the distance between positions counts
            mixed = model.run(model.token_embd(ids[:, order]), positions, mask)
            torch.testing.assert_close(mixed, in_order[:, order], atol=1e-4, rtol=1e-4)
        per_row = torch.stack((order, order.flip(0)))
        other = model.run(model.token_embd(ids[:, order]), per_row, mask)
    torch.testing.assert_close(other[0], in_order[0, order], atol=1e-4, rtol=1e-4)
    assert float((other[1] - in_order[1, order]).abs().max()) > 0.01


@pytest.mark.filterwarnings("error")
def test_norms_of_queries_take_what_autocast_hands_them() -> None:
    model = _random(replace(SHAPES["grouped heads"], qk_norm=True))
    ids = torch.arange(30, 60)[None]
    with torch.no_grad():
        exact = model(ids)
        with torch.autocast("cpu", torch.bfloat16):
            rounded = model(ids)
    assert 0 < float((rounded - exact).abs().mean()) < 0.03 * float(exact.std())


def test_a_checkpoint_from_before_the_newer_fields_loads() -> None:
    stored: dict[str, Any] = {"width": 64, "layers": 1, "heads": 2, "kv_heads": 1, "head_size": 32, "ffn": 96}
    stored |= {"vocabulary": 600, "context": 128, "rope_base": 10000.0, "eps": 1e-5}
    model = Decoder(Shape(**stored))
    block = ["attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down"]
    names = ["token_embd.weight", *(f"blk.0.{part}.weight" for part in block), "output_norm.weight"]
    assert set(model.state_dict()) == set(names)
    ids = torch.tensor([[30, 0, 31]])
    torch.testing.assert_close(model(ids)[:, 2:], model(ids[:, 2:]))  # the end-of-text id still ends a chat


@pytest.mark.parametrize("layers", [3, 5, 8])
def test_a_grown_model_computes_the_same_and_learns_with_all_its_layers(layers: int) -> None:
    shape = Shape(width=32, layers=3, heads=1, kv_heads=1, head_size=32, ffn=32, vocabulary=64, context=16)
    torch.manual_seed(1)
    small, large = Decoder(shape), Decoder(replace(shape, layers=layers))
    for weight in small.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    grow(small, large)
    ids = torch.arange(12).reshape(1, 12)
    assert torch.equal(small(ids), large(ids))
    large(ids).logsumexp(-1).sum().backward()
    assert all(layer.ffn_down.weight.grad.abs().sum() > 0 for layer in large.blk)


@pytest.mark.parametrize("layers", [1, 2, 3, 5])
def test_a_cut_model_begins_with_the_first_layer_and_ends_with_the_last(layers: int) -> None:
    shape = Shape(width=32, layers=5, heads=1, kv_heads=1, head_size=32, ffn=32, vocabulary=64, context=16)
    large, small = Decoder(shape), Decoder(replace(shape, layers=layers))
    for at, layer in enumerate(large.blk):
        torch.nn.init.constant_(layer.ffn_up.weight, at)
    cut(large, small)
    taken = [int(layer.ffn_up.weight[0, 0]) for layer in small.blk]
    assert taken[0] == 0 and taken == sorted(set(taken))
    assert layers == 1 or taken[-1] == 4
    assert torch.equal(small.token_embd.weight, large.token_embd.weight)
    if layers == 5:
        ids = torch.arange(12).reshape(1, 12)
        assert torch.equal(small(ids), large(ids))
