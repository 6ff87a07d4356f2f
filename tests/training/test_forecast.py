import numpy as np
import pytest
import torch
from tests.training.gguf_file import WORDS
from torch import Tensor, nn

from slipstream.drafters.training import dflash, eagle, forecast, kangaroo, medusa, space
from slipstream.drafters.training.acceptance import Acceptance, by_depth, mean, of_guesses
from slipstream.drafters.training.decoder import Decoder, DecoderShape, frequencies, rotations
from slipstream.models.errors import SlipstreamError

SHAPE = DecoderShape(width=64, layers=3, heads=4, kv_heads=2, head_size=32, ffn=160, vocabulary=WORDS, context=512)


@pytest.mark.parametrize("method", ["medusa", "kangaroo", "eagle3", "dflash", "space", "adapter"])
def test_the_memory_of_a_step_is_near_what_it_keeps(method: str) -> None:
    """Without values as with them, and at least the weights and what the backward pass reads."""

    def build() -> tuple[nn.Module, list[Tensor]]:
        torch.manual_seed(1)
        matrix, ids = torch.randn(WORDS, SHAPE.width), torch.arange(400)
        text = [torch.ones(2, 65, dtype=kind) for kind in (torch.int64, torch.float32, torch.int64)]
        states = [torch.randn(2, 64, SHAPE.width) for _ in range(4)]
        rotation = rotations(torch.arange(64), frequencies(SHAPE.head_size, 1e4, 1.0, matrix.device))
        match method:
            case "medusa":
                return medusa.MedusaModule(medusa.MedusaShape(SHAPE.width), matrix[ids], ids), [*text, *states]
            case "kangaroo":
                return kangaroo.KangarooAdapter(SHAPE, matrix, rotation, 0), [*text, *states]
            case "eagle3":
                return eagle.EagleHead(SHAPE, matrix, matrix[ids], ids, (0, 1, 2)), [*text, *states]
            case "dflash":
                return dflash.DflashHead(SHAPE, matrix, matrix, (0, 1, 2), 3), [*text, *states]
        target = Decoder(SHAPE).requires_grad_(False)
        masks = space.Masks(4, target, 1, space.LowRank(target) if method == "adapter" else None)
        return masks, [*text, torch.full((2, space.GROUPS), 20)]

    kept = dict[int, int]()
    alive = []

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        alive.append(tensor)  # so that no address is used twice
        return tensor

    cost = forecast.StepCost.of(build)
    model, batch = build()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.loss(*batch).backward()
    trained = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    assert sum(kept.values()) + 3 * trained < cost.memory < 2.5 * sum(kept.values()) + 6 * trained
    assert cost.work > 0


def test_what_does_not_fit_is_refused_before_it_begins() -> None:
    costs = {"medusa": forecast.StepCost(2 * 10**9, 1), "space": forecast.StepCost(9 * 10**9, 1)}
    lines = list[str]()
    forecast.check_memory(costs, 9 * 10**9, lines.append)
    assert lines == ["memory to train, in GB: medusa 2.0, space 9.0; 9.0 are available"]
    with pytest.raises(SlipstreamError, match=r"training space needs 9\.0 GB of memory, and 8\.0 GB are") as refusal:
        forecast.check_memory(costs, 8 * 10**9, lines.append)
    assert "train medusa" in refusal.value.hint


def test_depths_count_where_all_before_were_right_and_their_chances_add_up() -> None:
    right = np.array([[1, 1, 0], [1, 0, 1], [0, 1, 1], [1, 1, 1]], bool)
    written = np.ones_like(right)
    written[3, 2] = False  # the reply ends there
    found = by_depth(right, written)
    assert found.shares == (3 / 4, 2 / 3, 0.0) and found.reached == (4, 3, 1)
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


def test_parts_weigh_by_how_much_they_counted() -> None:
    whole = mean([Acceptance((1.0, 0.5), (30, 10)), Acceptance((0.0, 0.0), (10, 0))])
    assert whole.shares == (0.75, 0.5) and whole.reached == (40, 10)
