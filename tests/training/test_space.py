import numpy as np
import pytest
import torch
from tests.training.gguf_file import random_decoder

from slipstream.drafters.training import space
from slipstream.drafters.training.corpus import TrainingText, WindowSampler
from slipstream.drafters.training.decoder import Decoder, DecoderShape

SHAPE = DecoderShape(width=64, layers=2, heads=2, kv_heads=1, head_size=32, ffn=96, vocabulary=300, context=128)


@pytest.fixture(scope="module")
def target() -> Decoder:
    return random_decoder(SHAPE)


def test_the_text_does_not_see_the_masks(target: Decoder) -> None:
    torch.manual_seed(2)
    ids, chats = torch.randint(20, 300, (2, 20)), torch.tensor([[1] * 20, [1] * 9 + [2] * 11])
    cuts = torch.tensor([[3, 7, 15], [4, 8, 12]])
    with torch.no_grad():
        text, _ = space.hidden_states(target, torch.randn(3, 64), ids, chats, cuts)
        torch.testing.assert_close(text, target.hidden(ids, chats))


def test_a_group_sees_the_text_up_to_its_cut_and_its_own_masks_only(target: Decoder) -> None:
    """Every group must compute what a linear run of its chat, cut there, and its masks computes."""
    torch.manual_seed(3)
    ids, chats = torch.randint(20, 300, (1, 20)), torch.tensor([[1] * 9 + [2] * 11])
    cuts, masks = torch.tensor([[3, 8, 15]]), torch.randn(3, 64)
    with torch.no_grad():
        _, states = space.hidden_states(target, masks, ids, chats, cuts)
        for group, (begin, cut) in enumerate(((0, 3), (0, 8), (9, 15))):
            x = torch.cat((target.token_embd(ids[:, begin : cut + 1]), masks[None]), 1)
            length = x.shape[1]
            mask = torch.ones(length, length, dtype=torch.bool).tril()[None, None]
            alone = target.run(x, torch.arange(begin, begin + length), mask)
            torch.testing.assert_close(states[0, group], alone[0, -3:], atol=1e-5, rtol=1e-5)


def test_cuts_lie_in_replies_and_leave_room_for_the_masks() -> None:
    weights = np.array(([0.0] * 10 + [1.0] * 30) * 40, np.float32)
    source = TrainingText((np.arange(1600) % 300).astype(np.uint32), weights, np.arange(0, 1601, 40))
    draws = space.CutDraws(WindowSampler(source, 1), 2, masks=3)
    _, weight, _, cuts = draws.batch(4, 96)
    assert cuts.shape == (4, space.GROUPS)
    assert (cuts + 3 < 96).all()
    assert all(weight[row, cut + 2] >= 1 for row, found in enumerate(cuts) for cut in found)
    state = draws.state()
    following = draws.batch(2, 96)
    draws.restore(state)
    for left, right in zip(following, draws.batch(2, 96), strict=True):
        assert np.array_equal(left, right)


def test_a_frozen_target_keeps_every_weight_and_its_masks_learn(target: Decoder) -> None:
    before = {name: p.clone() for name, p in target.named_parameters()}
    rng = np.random.default_rng(4)
    walk = np.cumsum(rng.integers(1, 3, 4000)) % 30 + 40
    source = TrainingText(walk.astype(np.uint32), np.ones(4000, np.float32), np.arange(0, 4001, 100))
    model = space.Masks(2, target.requires_grad_(False), seed=1)
    draws = space.CutDraws(WindowSampler(source, 1), 2, masks=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.03)
    losses = []
    for _ in range(30):
        batch = [torch.from_numpy(part) for part in draws.batch(4, 64)]
        found = model.loss(*batch)
        optimizer.zero_grad()
        found.backward()
        optimizer.step()
        losses.append(float(found.detach()))
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.05
    for name, p in target.named_parameters():
        assert torch.equal(p, before[name])
