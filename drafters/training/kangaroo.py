"""Kangaroo: the target's own first layers and a small adapter draft; the adapter learns the target's distribution.

Liu et al., arXiv 2404.18911; github.com/Equationliu/Kangaroo: the adapter is one attention layer without a feed-forward
part between two norms, y = h + Attention(RMS(h)), then RMS(y) and the target's own vocabulary matrix. The loss is the
cross-entropy against the target's distribution.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from slipstream.drafters.training.acceptance import Acceptance
from slipstream.drafters.training.decoder import Attention, DecoderShape, Norm, Rotation, chat_mask
from slipstream.drafters.training.loop import weighted

_DEPTH = 6  # greatest depth that acceptance is measured at
_LONGEST = 4  # longest draft that is considered in the choice of an exit layer


class KangarooAdapter(Attention):
    """Attention over the exited hidden states, shaped like the target's own."""

    def __init__(self, shape: DecoderShape, output: Tensor, rotation: Rotation, place: int) -> None:
        """Starts as the identity and a norm; ``place``: which point after the last hidden state is the exit's."""
        super().__init__(shape)
        self.attn_norm, self.output_norm = Norm(shape.width, shape.eps), Norm(shape.width, shape.eps)
        self.rotation, self.place = rotation, place
        self.output: Tensor
        self.register_buffer("output", output, persistent=False)

    def forward(self, hidden: Tensor, chats: Tensor) -> Tensor:
        """Scores after each place, (rows, length, vocabulary).

        Args:
            hidden: inputs of the exit layer, (rows, length, width).
            chats: (rows, length), the number of the chat that each place belongs to.
        """
        mixed = self.mixed(*self.parts(self.attn_norm(hidden), self.rotation), chat_mask(chats))
        return functional.linear(self.output_norm(hidden + mixed), self.output)

    def loss(self, ids: Tensor, weights: Tensor, chats: Tensor, last: Tensor, *exits: Tensor) -> Tensor:
        """Cross-entropy against the target's distribution at the same place."""
        with torch.autocast(last.device.type, torch.bfloat16):
            with torch.no_grad():
                wanted = functional.linear(last, self.output).float().softmax(-1)
            guessed = self(exits[self.place], chats[:, :-1]).float()
        losses = functional.cross_entropy(guessed.flatten(0, 1), wanted.flatten(0, 1), reduction="none")
        return weighted(losses, weights[:, 1:].flatten())

    def guesses(self, ids: Tensor, chats: Tensor, last: Tensor, *exits: Tensor) -> NDArray[np.int64]:
        """Best ids of a drafter that reads its own drafts: where those before a guess are right, they are the text."""
        best = self(exits[self.place], chats[:, :-1]).argmax(-1).cpu().numpy()
        rows, length = best.shape
        found = np.full((rows, length, _DEPTH), -1, np.int64)
        for d in range(_DEPTH):
            found[:, : length - d, d] = best[:, d:]
        return found


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
