"""Medusa heads: each guesses a token further ahead from the target's last hidden state.

Medusa-1 (Cai et al., arXiv 2401.10774; github.com/FasterDecoding/Medusa): the target is frozen, a head is a residual
block whose matrix starts at zero, so that it begins as the target's own next-token guess. Different from the paper: all
heads share one vocabulary matrix, cut to the frequent tokens, and learn the target's distribution, not only the text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from slipstream.drafters.training.acceptance import Acceptance, mean, of_guesses
from slipstream.drafters.training.features import Windows
from slipstream.drafters.training.loop import BatchLoss
from slipstream.models.types import Floats

_DECAY = 0.8  # weight of head k is this to the power k, as in the paper
_RANKS = 10  # ranks of a guess that are measured


@dataclass(frozen=True)
class MedusaShape:
    """Sizes of a set of heads."""

    width: int  # of the target's hidden states
    heads: int = 4  # how many tokens beyond the next one are guessed
    layers: int = 1  # residual blocks per head
    shared: bool = True  # whether all heads share one vocabulary matrix


class MedusaModule(nn.Module):
    """K heads on the last hidden state."""

    def __init__(self, shape: MedusaShape, output: Tensor, ids: Tensor) -> None:
        """Starts as the target's own head.

        Args:
            output: (v, width) rows of the target's vocabulary matrix.
            ids: (v,) the token of each row.
        """
        super().__init__()
        self.shape = shape
        self.head = nn.ModuleList(
            nn.ModuleList(nn.Linear(shape.width, shape.width) for _ in range(shape.layers)) for _ in range(shape.heads)
        )
        for parameter in self.head.parameters():
            nn.init.zeros_(parameter)
        self.output = nn.ParameterList(output.clone() for _ in range(1 if shape.shared else shape.heads))
        self.ids: Tensor
        self.register_buffer("ids", ids)

    def states(self, hidden: Tensor, head: int) -> Tensor:
        """Maps (…, width) to the input of a head's vocabulary matrix, the same shape."""
        for layer in self.head[head]:
            hidden = hidden + functional.silu(layer(hidden))
        return hidden

    def forward(self, hidden: Tensor, head: int) -> Tensor:
        """Scores of head ``head``: (…, width) to (…, v), by row of the cut vocabulary."""
        return functional.linear(self.states(hidden, head), self.output[0 if self.shape.shared else head])


def loss(output: Tensor) -> BatchLoss:
    """Cross-entropy of head k against the target's distribution k + 1 places later.

    Args:
        output: (v, width) rows of the target's vocabulary matrix, the same that the heads start with.
    """

    def of_batch(
        model: MedusaModule, ids: Tensor, weights: Tensor, chats: Tensor, hidden: Tensor, *others: Tensor
    ) -> Tensor:
        with torch.autocast(hidden.device.type, torch.bfloat16):
            with torch.no_grad():
                wanted = functional.linear(hidden, output).float().softmax(-1)
            total = hidden.new_zeros(())
            length = hidden.shape[1]
            for head in range(model.shape.heads):
                ahead = 1 + head
                logs = model(hidden[:, : length - ahead], head).float().log_softmax(-1)
                losses = -(wanted[:, ahead:] * logs).sum(-1)
                same = chats[:, : length - ahead] == chats[:, ahead:length]
                weight = weights[:, ahead + 1 : length + 1] * same
                total = total + _DECAY**head * (losses * weight).sum() / weight.sum().clamp(min=1)
        return total

    return of_batch


@torch.no_grad()
def acceptance(model: MedusaModule, held_out: Windows, most: int) -> Acceptance:
    """Acceptance by depth on up to ``most`` stored windows."""
    parts: list[Acceptance] = []
    for ids, weights, (_, hidden, *_) in held_out.checked(most, model.ids.device):
        best = [model.ids[model(hidden, head).argmax(-1)].cpu().numpy() for head in range(model.shape.heads)]
        parts.append(of_guesses(guesses(best), ids, weights))
    return mean(parts)


def guesses(best: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Aligns each head's best ids (rows, length) to roots: a head reads the token before the root."""
    rows, length = best[0].shape
    shifted = np.full((rows, length, len(best)), -1, np.int64)
    for head, ids in enumerate(best):
        shifted[:, 1:, head] = ids[:, : length - 1]
    return shifted


def tensors(model: MedusaModule) -> dict[str, NDArray[Any]]:
    """The arrays for a heads file, see ``slipstream.models.heads.file``."""
    arrays: dict[str, NDArray[Any]] = {"output.ids": model.ids.cpu().numpy().astype(np.int32)}
    for name, parameter in model.named_parameters():
        arrays[name + ("" if name.startswith("head.") else ".weight")] = parameter.detach().float().cpu().numpy()
    if model.shape.shared:
        arrays["output.weight"] = arrays.pop("output.0.weight")
    else:
        for head in range(model.shape.heads):
            arrays[f"head.{head}.output.weight"] = arrays.pop(f"output.{head}.weight")
    return arrays


def frequent(counts: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Ids of the ``most`` tokens that the model writes most often, in ascending order; fewer if it wrote fewer."""
    best = np.argsort(-counts, kind="stable")[:most]
    return np.sort(best[counts[best] > 0])


@torch.no_grad()
def rank_accuracies(model: MedusaModule, held_out: Windows, most: int) -> Floats:
    """How often rank i of head k is right, not conditional on the tokens before: (heads, ranks); used to grow trees."""
    hits = np.zeros((model.shape.heads, _RANKS))
    places = np.zeros((model.shape.heads, 1))
    for ids, weights, (_, hidden, *_) in held_out.checked(most, model.ids.device):
        length = hidden.shape[1]
        for head in range(model.shape.heads):
            ahead = 2 + head
            best = model.ids[model(hidden, head).topk(min(_RANKS, len(model.ids)), -1).indices]
            counted = weights[:, ahead:] >= 1
            hit = best.cpu().numpy()[:, : length + 1 - ahead] == ids[:, ahead:, None]
            hits[head, : hit.shape[-1]] += hit[counted].sum(0)
            places[head] += counted.sum()
    return (hits / np.maximum(places, 1)).astype(np.float32)
