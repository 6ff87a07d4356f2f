"""Hidden states of windows: those that torch computes as they are drawn are those that llama.cpp reads."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.training.gguf_file import BUNDLED, random_decoder

from slipstream.drafters.training import texts
from slipstream.drafters.training.corpus import WindowSampler
from slipstream.drafters.training.decoder import DecoderShape, Pairing
from slipstream.drafters.training.features import LiveWindows, collect
from slipstream.drafters.training.from_gguf import load_gguf
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.target import ContextOptions
from slipstream.models.types import LAST_HIDDEN

SHAPE = DecoderShape(width=64, layers=3, heads=4, kv_heads=2, head_size=32, ffn=96, vocabulary=600, context=512)


def test_a_chat_does_not_see_the_one_before_it() -> None:
    model = random_decoder(SHAPE)
    first, second = [30, 31, 32, 0], [40, 41, 42]
    with torch.no_grad():
        together = model(torch.tensor([first + second]), torch.tensor([[5] * 4 + [6] * 3]))[0, 4:]
        alone = model(torch.tensor([second]))[0]
        joined = model(torch.tensor([first + second]))[0, 4:]
    torch.testing.assert_close(together, alone, atol=1e-4, rtol=1e-4)
    assert float((joined - alone).abs().max()) > 0.01


@pytest.mark.parametrize("rope", ["pairs", "halves"])
def test_rows_are_told_apart_by_position_and_mask_not_by_their_order(rope: Pairing) -> None:
    model = random_decoder(replace(SHAPE, rope=rope, qk_norm=rope == "halves"))
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
    model = random_decoder(replace(SHAPE, qk_norm=True))
    ids = torch.arange(30, 60)[None]
    with torch.no_grad():
        exact = model(ids)
        with torch.autocast("cpu", torch.bfloat16):
            rounded = model(ids)
    assert 0 < float((rounded - exact).abs().mean()) < 0.03 * float(exact.std())


CPU = torch.device("cpu")


def test_live_windows_hold_what_stored_windows_hold(tmp_path: Path) -> None:
    layers = (2, 4)
    with closing(LlamaModel(BUNDLED)) as model:
        options = ContextOptions(max_rows=64, max_leaves=1, threads=1)
        text = texts.made_answers(model, options, 300, tmp_path / "answers.jsonl", 3, lambda _: None)
        stored = collect(
            model, options, WindowSampler(text, 7), points=(LAST_HIDDEN, *layers), windows=3, window=48,
            folder=tmp_path / "features", say=lambda _: None,
        )  # fmt: skip
        n_vocab = model.n_vocab
    live = LiveWindows(load_gguf(BUNDLED), text, layers, 48, 7)
    ((ids, weights, theirs),) = stored.checked(3, CPU)
    ((own_ids, own_weights, ours),) = live.checked(3, CPU)
    assert np.array_equal(ids, own_ids) and np.array_equal(weights, own_weights)
    for left, right in zip(theirs[1:], ours[1:], strict=True):
        assert torch.nn.functional.cosine_similarity(left, right, dim=-1).min() > 0.99
    drawn = live.batch(2, 48)
    assert np.array_equal(drawn[0], ids[:2]) and [part.shape[0] for part in drawn] == [2] * 6
    assert live.counts(n_vocab).sum() == (text.weights >= 1).sum()
