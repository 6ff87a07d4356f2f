from dataclasses import replace

import pytest
import torch
from tests.training.gguf_file import random_decoder

from slipstream.drafters.training.decoder import DecoderShape, Pairing

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
