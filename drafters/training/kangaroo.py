"""Kangaroo: the target's own first layers and a small adapter draft; the adapter learns the target's distribution.

Liu et al., arXiv 2404.18911; github.com/Equationliu/Kangaroo: the adapter is one attention layer without a feed-forward
part between two norms, y = h + Attention(RMS(h)), then RMS(y) and the target's own vocabulary matrix. The loss is the
cross-entropy against the target's distribution.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from slipstream.drafters.training.acceptance import Acceptance, chain_guesses, mean, of_guesses
from slipstream.drafters.training.decoder import Attention, DecoderShape, Norm, Rotation, chat_mask
from slipstream.drafters.training.features import Windows
from slipstream.drafters.training.loop import BatchLoss

_DEPTH = 6  # greatest depth that acceptance is measured at
_LONGEST = 4  # longest draft that is considered in the choice of an exit layer


class KangarooAdapter(Attention):
    """Attention over the exited hidden states, shaped like the target's own."""

    def __init__(self, shape: DecoderShape) -> None:
        """Starts as the identity and a norm."""
        super().__init__(shape)
        self.attn_norm, self.output_norm = Norm(shape.width, shape.eps), Norm(shape.width, shape.eps)

    def forward(self, hidden: Tensor, chats: Tensor, rotation: Rotation) -> Tensor:
        """Maps exited states (rows, length, width) to the vocabulary matrix's input.

        Args:
            hidden: inputs of the exit layer.
            chats: (rows, length), the number of the chat that each place belongs to.
        """
        mixed = self.mixed(*self.parts(self.attn_norm(hidden), rotation), chat_mask(chats))
        out: Tensor = self.output_norm(hidden + mixed)
        return out


@dataclass(frozen=True)
class Exit:
    """The place of an adapter in its target."""

    shape: DecoderShape
    rotation: Rotation  # the target's rotations of the places of a window
    output: Tensor  # (vocabulary, width), the target's vocabulary matrix
    place: int  # which of the stored points after the last hidden state is the exit's

    def logits(self, model: KangarooAdapter, chats: Tensor, exits: Sequence[Tensor]) -> Tensor:
        """Scores after each place: (rows, length, vocabulary)."""
        return functional.linear(model(exits[self.place], chats, self.rotation), self.output)


def loss(exit_at: Exit) -> BatchLoss:
    """Cross-entropy against the target's distribution at the same place."""

    def of_batch(
        model: KangarooAdapter, ids: Tensor, weights: Tensor, chats: Tensor, last: Tensor, *exits: Tensor
    ) -> Tensor:
        with torch.autocast(last.device.type, torch.bfloat16):
            with torch.no_grad():
                wanted = functional.linear(last, exit_at.output).float().softmax(-1)
            guessed = exit_at.logits(model, chats[:, :-1], exits).float()
        losses = functional.cross_entropy(guessed.flatten(0, 1), wanted.flatten(0, 1), reduction="none")
        weight = weights[:, 1:].flatten()
        return (losses * weight).sum() / weight.sum().clamp(min=1)

    return of_batch


@torch.no_grad()
def acceptance(model: KangarooAdapter, exit_at: Exit, held_out: Windows, most: int) -> Acceptance:
    """Acceptance by depth on up to ``most`` stored windows."""
    parts: list[Acceptance] = []
    for ids, weights, (chats, _, *exits) in held_out.checked(most, exit_at.output.device):
        best = exit_at.logits(model, chats[:, :-1], exits).argmax(-1).cpu().numpy()
        parts.append(of_guesses(chain_guesses(best, _DEPTH), ids, weights))
    return mean(parts)


def tensors(model: KangarooAdapter) -> dict[str, NDArray[Any]]:
    """The arrays for a heads file, see ``slipstream.models.heads.file``."""
    return {name: p.detach().float().cpu().numpy() for name, p in model.named_parameters()}


def relative_cost(exit_layer: int, shape: DecoderShape) -> float:
    """Estimates the time of a drafted token, relative to a pass of the target, by the matrix weights that are read."""
    kv = 2 * shape.width * shape.kv_heads * shape.head_size
    attention = 2 * shape.width * shape.heads * shape.head_size + kv
    layer = attention + 3 * shape.width * shape.ffn
    head = shape.vocabulary * shape.width
    return (exit_layer * layer + attention + head) / (shape.layers * layer + head)


def best_exit(candidates: dict[int, Acceptance], shape: DecoderShape) -> int:
    """The exit layer whose drafts should gain most: expected tokens per step over the step's relative time.

    Verification is assumed to cost one pass. Deeper exits guess better and cost more.
    """

    def gain(layer: int) -> float:
        cost = relative_cost(layer, shape)
        return max(candidates[layer].tokens_per_step(n) / (1 + n * cost) for n in range(1, _LONGEST + 1))

    return max(candidates, key=gain)
