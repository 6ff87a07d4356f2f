"""EAGLE-3: one layer on the target's own features that reads its own output while it drafts.

Li et al., arXiv 2503.01840; github.com/SafeAILab/EAGLE. The inputs of three target layers are concatenated and
projected (``fc``). Together with the embedding of the next token they are the input of one decoder layer. Its output is
the feature for the token after and, through a norm and a matrix of the frequent tokens, the guess. Training unrolls the
drafting ("training-time test"): step j reads the features that step j - 1 computed. A head is stored as llama.cpp's
architecture ``eagle3``.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from slipstream.drafters.training.decoder import (
    DecoderLayer,
    DecoderShape,
    Norm,
    Rotation,
    chat_mask,
    frequencies,
    rotations,
)
from slipstream.drafters.training.loop import weighted
from slipstream.models.gguf.parse import BOOL, U32, Value

ARCHITECTURE = "eagle3"
DEPTH = 6  # greatest depth that acceptance is measured at
_UNROLLED = 4  # drafting steps that training unrolls; the paper uses 7
_DECAY = 0.8  # weight of step j is this to the power j, as in the paper's code


def eagle_shape(target: DecoderShape) -> DecoderShape:
    """The target's widths, with the other settings that llama.cpp's graph of ``eagle3`` needs."""
    return replace(target, layers=1, rope="pairs", rope_factors=False, rope_scaling=1.0, qk_norm=False)


class _EagleBlock(DecoderLayer):
    """The decoder layer, whose attention reads embedding and feature concatenated."""

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__(shape, 2 * shape.width)
        self.attn_norm_2 = Norm(shape.width, shape.eps)


class EagleHead(nn.Module):
    """The head; its embedding is the target's, frozen."""

    def __init__(
        self, target: DecoderShape, embedding: Tensor, output: Tensor, ids: Tensor, places: Sequence[int]
    ) -> None:
        """Starts with the target's vocabulary rows; draws the other weights from torch's current seed.

        Args:
            embedding: (vocabulary, width) of the target.
            output: (v, width), rows of the target's vocabulary matrix.
            ids: (v,) the token of each row.
            places: which of the stored points after the last hidden state are the three features.
        """
        super().__init__()
        self.shape, self.places = eagle_shape(target), tuple(places)
        self.fc = nn.Linear(3 * self.shape.width, self.shape.width, bias=False)
        self.blk = nn.ModuleList([_EagleBlock(self.shape)])
        self.output_norm = Norm(self.shape.width, self.shape.eps)
        self.output = nn.Parameter(output.clone())
        self.embedding: Tensor
        self.target_output: Tensor
        self.ids: Tensor
        self.register_buffer("embedding", embedding, persistent=False)
        self.register_buffer("target_output", output, persistent=False)
        self.register_buffer("ids", ids)

    def rotation(self, positions: Tensor) -> Rotation:
        """Rotations of its heads at these positions, (length,)."""
        shape = self.shape
        return rotations(positions, frequencies(shape.head_size, shape.rope_base, shape.rope_scaling, positions.device))

    def unrolled(self, features: Tensor, ids: Tensor, chats: Tensor, steps: int) -> list[Tensor]:
        """Features of every step, before the norm.

        Place i of step 0 reads the target's features at i and the token at i + 1, and guesses the token at i + 2. Step
        j guesses the same token in a draft that began j places earlier: instead of the features, it reads the output of
        step j - 1 at i - 1. A place attends to what it would see while drafting: place i of step j sees step 0 up to
        place i - j, then place i - j + m of each step m from 1 to j.

        Args:
            features: (rows, length, 3 * width), the concatenated inputs of the target's layers.
            ids: (rows, length), the token after each place.
            chats: (rows, length), number of the chat of each place.

        Returns:
            By step, (rows, length, width).
        """
        length, block, device = ids.shape[1], self.blk[0], ids.device
        rotation = self.rotation(torch.arange(length, device=device))
        embedded = block.attn_norm(functional.embedding(ids, self.embedding))
        base = chat_mask(chats)
        g, keys, values, outs = self.fc(features), list[Tensor](), list[Tensor](), list[Tensor]()
        for step in range(steps):
            q, k, v = block.parts(torch.cat((embedded, block.attn_norm_2(g)), -1), rotation)
            keys.append(k)
            values.append(v)
            masks = [base & _older(length, step, device)]
            masks += [base & _exactly(length, step - made, device) for made in range(1, step + 1)]
            x = block.fed(g + block.mixed(q, torch.cat(keys, 2), torch.cat(values, 2), torch.cat(masks, -1)))
            outs.append(x)
            g = torch.cat((x[:, :1], x[:, :-1]), 1)  # position i continues from the draft's feature at i - 1
        return outs

    def logits(self, made: Tensor) -> Tensor:
        """Scores: (…, width) to (…, v), by row of the cut vocabulary."""
        return functional.linear(self.output_norm(made), self.output)

    def loss(self, ids: Tensor, weights: Tensor, chats: Tensor, last: Tensor, *others: Tensor) -> Tensor:
        """Cross-entropy of every unrolled step against the target's distribution over the cut vocabulary."""
        length = last.shape[1] - 1
        with torch.autocast(last.device.type, torch.bfloat16):
            with torch.no_grad():  # place i guesses the token at i + 2, which the target predicts at i + 1
                wanted = functional.linear(last[:, 1:], self.target_output).float().softmax(-1).flatten(0, 1)
            total = last.new_zeros(())
            features = torch.cat([others[place] for place in self.places], -1)[:, :length]
            for step, made in enumerate(self.unrolled(features, ids[:, 1:-1], chats[:, :length], _UNROLLED)):
                guessed = self.logits(made).float().flatten(0, 1)
                losses = functional.cross_entropy(guessed, wanted, reduction="none").view(ids.shape[0], length)
                total = total + _DECAY**step * weighted(losses, weights[:, 2:] * _same(chats, length, step))
        return total

    def guesses(self, ids: Tensor, chats: Tensor, last: Tensor, *others: Tensor) -> NDArray[np.int64]:
        """Best ids; later steps read the head's own output."""
        length = ids.shape[1] - 1
        features = torch.cat([others[place] for place in self.places], -1)[:, : length - 1]
        found = np.full((len(ids), length, DEPTH), -1, np.int64)
        for d, states in enumerate(self.unrolled(features, ids[:, 1:-1], chats[:, : length - 1], DEPTH)):
            best = self.ids[self.logits(states).argmax(-1)].cpu().numpy()
            found[:, 1 : length - d, d] = best[:, d:]  # place i of step d guesses i + 2 below the root i + 1 - d
        return found


def _older(length: int, step: int, device: torch.device) -> Tensor:
    """Place i sees place j of step 0 if j <= i - step."""
    places = torch.arange(length, device=device)
    return places[None, :] <= places[:, None] - step


def _exactly(length: int, back: int, device: torch.device) -> Tensor:
    """Place i sees only place i - ``back``."""
    places = torch.arange(length, device=device)
    return places[None, :] == places[:, None] - back


def _same(chats: Tensor, length: int, step: int) -> Tensor:
    """Whether the place where a draft began and the token that place i guesses are in the same chat."""
    first = torch.cat((chats[:, :1].expand(-1, step) - 1, chats[:, : length - step]), 1) if step else chats[:, :length]
    return first == chats[:, 2:]


def tensors(model: EagleHead) -> dict[str, NDArray[Any]]:
    """The weights under llama.cpp's names; ``d2t`` has the token of each row."""
    found: dict[str, NDArray[Any]] = {name: p.detach().float().cpu().numpy() for name, p in model.named_parameters()}
    found["output.weight"] = found.pop("output")
    return found | {"d2t": model.ids.cpu().numpy().astype(np.int64)}


def metadata(model: EagleHead) -> dict[str, tuple[int, Value]]:
    """What a file needs besides the shape."""
    return {
        f"{ARCHITECTURE}.target_hidden_size": (U32, model.shape.width),
        f"{ARCHITECTURE}.norm_before_residual": (BOOL, False),
    }
