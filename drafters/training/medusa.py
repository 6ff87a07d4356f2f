"""Medusa heads: each guesses a token further ahead from the target's last hidden state.

Medusa-1 (Cai et al., arXiv 2401.10774; github.com/FasterDecoding/Medusa): the target is frozen, a head is a residual
block whose matrix starts at zero, so that it begins as the target's own next-token guess. Different from the paper: all
heads share one vocabulary matrix, cut to the frequent tokens, and learn the target's distribution, not only the text.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from slipstream.drafters.training.features import Windows
from slipstream.drafters.training.loop import weighted
from slipstream.models.types import Floats

_DECAY = 0.8  # weight of head k is this to the power k, as in the paper
_RANKS = 10  # ranks of a guess that are measured


@dataclass(frozen=True)
class MedusaShape:
    """Sizes of a set of heads."""

    width: int  # of the target's hidden states
    heads: int = 4  # how many tokens beyond the next one are guessed
    layers: int = 1  # residual blocks per head


class MedusaModule(nn.Module):
    """K heads on the last hidden state."""

    def __init__(self, shape: MedusaShape, output: Tensor, ids: Tensor) -> None:
        """Starts as the target's own head: ``output`` (v, width) are the rows of its matrix for the tokens ``ids``."""
        super().__init__()
        self.shape = shape
        self.head = nn.ModuleList(
            nn.ModuleList(nn.Linear(shape.width, shape.width) for _ in range(shape.layers)) for _ in range(shape.heads)
        )
        for parameter in self.head.parameters():
            nn.init.zeros_(parameter)
        self.output = nn.Parameter(output.clone())
        self.ids: Tensor
        self.target_output: Tensor
        self.register_buffer("ids", ids)
        self.register_buffer("target_output", output, persistent=False)

    def states(self, hidden: Tensor, head: int) -> Tensor:
        """Maps (…, width) to the input of a head's vocabulary matrix, the same shape."""
        for layer in self.head[head]:
            hidden = hidden + functional.silu(layer(hidden))
        return hidden

    def forward(self, hidden: Tensor, head: int) -> Tensor:
        """Scores of head ``head``: (…, width) to (…, v), by row of the cut vocabulary."""
        return functional.linear(self.states(hidden, head), self.output)

    def loss(self, ids: Tensor, weights: Tensor, chats: Tensor, last: Tensor, *others: Tensor) -> Tensor:
        """Cross-entropy of head k against the target's distribution k + 1 places later."""
        total, length = last.new_zeros(()), last.shape[1]
        with torch.autocast(last.device.type, torch.bfloat16):
            with torch.no_grad():
                wanted = functional.linear(last, self.target_output).float().softmax(-1)
            for head in range(self.shape.heads):
                ahead = 1 + head
                logs = self(last[:, : length - ahead], head).float().log_softmax(-1)
                losses = -(wanted[:, ahead:] * logs).sum(-1)
                same = chats[:, : length - ahead] == chats[:, ahead:length]
                total = total + _DECAY**head * weighted(losses, weights[:, ahead + 1 : length + 1] * same)
        return total

    def guesses(self, ids: Tensor, chats: Tensor, last: Tensor, *others: Tensor) -> NDArray[np.int64]:
        """Best ids of each head, aligned to roots: a head reads the token before the root."""
        found = np.full((*last.shape[:2], self.shape.heads), -1, np.int64)
        for head in range(self.shape.heads):
            found[:, 1:, head] = self.ids[self(last[:, :-1], head).argmax(-1)].cpu().numpy()
        return found


def tensors(model: MedusaModule) -> dict[str, NDArray[Any]]:
    """The arrays for a heads file, see ``slipstream.models.heads.file``."""
    arrays: dict[str, NDArray[Any]] = {name: p.detach().float().cpu().numpy() for name, p in model.named_parameters()}
    arrays["output.weight"] = arrays.pop("output")
    return arrays | {"output.ids": model.ids.cpu().numpy().astype(np.int32)}


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
