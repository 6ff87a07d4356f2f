"""EAGLE-3: one layer on the target's own features that reads its own output while it drafts.

Li et al., arXiv 2503.01840; github.com/SafeAILab/EAGLE. The inputs of three target layers are concatenated and
projected (``fc``). Together with the embedding of the next token they are the input of one decoder layer. Its output is
the feature for the token after and, through a norm and a vocabulary matrix, the guess. Training unrolls the drafting
("training-time test"): step j reads the features that step j - 1 computed. A head is stored as llama.cpp's architecture
``eagle3``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from slipstream.drafters.training.acceptance import Acceptance, mean, of_guesses
from slipstream.drafters.training.attention import Rotation, chat_mask, shorter
from slipstream.drafters.training.features import Features, held_out_check
from slipstream.drafters.training.loop import BatchLoss, Plan, Run, Say, train
from slipstream.drafters.training.model import Layer, Norm, Shape

UNROLLED = 4  # drafting steps that training unrolls; the paper uses 7

_DECAY = 0.8  # weight of step j is this to the power j, as in the paper's code


class _Block(Layer):
    """The decoder layer, whose attention reads embedding and feature concatenated."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, 2 * shape.width)
        self.attn_norm_2 = Norm(shape.width, shape.eps)


class Eagle(nn.Module):
    """The head; its embedding is the target's, frozen."""

    def __init__(self, shape: Shape, embedding: Tensor, output: Tensor) -> None:
        """Starts with the target's vocabulary matrix.

        Args:
            shape: of the layer, the target's widths and heads.
            embedding: (vocabulary, width) of the target.
            output: (vocabulary, width) of the target.
        """
        super().__init__()
        self.shape = shape
        self.fc = nn.Linear(3 * shape.width, shape.width, bias=False)
        self.blk = nn.ModuleList([_Block(shape)])
        self.output_norm = Norm(shape.width, shape.eps)
        self.output = nn.Parameter(output.clone())
        self.embedding: Tensor
        self.register_buffer("embedding", embedding, persistent=False)

    def unrolled(self, features: Tensor, ids: Tensor, chats: Tensor, rotation: Rotation, steps: int) -> list[Tensor]:
        """Features of every step, before the norm.

        Place i of step 0 reads the target's features at i and the token at i + 1, and guesses the token at i + 2. Step
        j guesses the same token in a draft that began j places earlier: instead of the features, it reads the output of
        step j - 1 at i - 1. A place attends to what it would see while drafting: place i of step j sees step 0 up to
        place i - j, then place i - j + m of each step m from 1 to j.

        Args:
            features: (rows, length, 3 * width), the concatenated inputs of the target's layers.
            ids: (rows, length), the token after each place.
            chats: (rows, length), number of the chat of each place.
            rotation: rotations of the places.

        Returns:
            By step, (rows, length, width).
        """
        length, block = ids.shape[1], self.blk[0]
        embedded = block.attn_norm(functional.embedding(ids, self.embedding))
        base, device = chat_mask(chats), ids.device
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
        """Scores: (…, width) to (…, vocabulary)."""
        return functional.linear(self.output_norm(made), self.output)


def _older(length: int, step: int, device: torch.device) -> Tensor:
    """Place i sees place j of step 0 if j <= i - step."""
    places = torch.arange(length, device=device)
    return places[None, :] <= places[:, None] - step


def _exactly(length: int, back: int, device: torch.device) -> Tensor:
    """Place i sees only place i - ``back``."""
    places = torch.arange(length, device=device)
    return places[None, :] == places[:, None] - back


@dataclass(frozen=True)
class EagleInputs:
    """A target's tensors and sizes that a head needs."""

    shape: Shape
    rotation: Rotation  # the target's rotations of the places of a window
    embedding: Tensor  # (vocabulary, width) of the target
    output: Tensor  # (vocabulary, width), the target's vocabulary matrix
    places: tuple[int, ...]  # which of the stored points after the last hidden state are the three features

    def unrolled(self, model: Eagle, ids: Tensor, chats: Tensor, others: Sequence[Tensor], steps: int) -> list[Tensor]:
        """Unrolls the head over a batch of stored windows, without their last place."""
        length = ids.shape[1] - 2
        features = torch.cat([others[place] for place in self.places], -1)[:, :length]
        return model.unrolled(features, ids[:, 1:-1], chats[:, :length], shorter(self.rotation, length), steps)


def loss(inputs: EagleInputs) -> BatchLoss:
    """Cross-entropy of every unrolled step against the target's distribution."""

    def of_batch(model: Eagle, ids: Tensor, weights: Tensor, chats: Tensor, last: Tensor, *others: Tensor) -> Tensor:
        length = last.shape[1] - 1
        with torch.autocast(last.device.type, torch.bfloat16):
            with torch.no_grad():  # place i guesses the token at i + 2, which the target predicts at i + 1
                wanted = functional.linear(last[:, 1:], inputs.output).float().softmax(-1).flatten(0, 1)
            total = last.new_zeros(())
            for step, made in enumerate(inputs.unrolled(model, ids, chats, others, UNROLLED)):
                guessed = model.logits(made).float().flatten(0, 1)
                losses = functional.cross_entropy(guessed, wanted, reduction="none").view(ids.shape[0], length)
                weight = weights[:, 2:] * _same(chats, length, step)
                total = total + _DECAY**step * (losses * weight).sum() / weight.sum().clamp(min=1)
        return total

    return of_batch


def _same(chats: Tensor, length: int, step: int) -> Tensor:
    """Whether the place where a draft began and the token that place i guesses are in the same chat."""
    first = torch.cat((chats[:, :1].expand(-1, step) - 1, chats[:, : length - step]), 1) if step else chats[:, :length]
    return first == chats[:, 2:]


def fit(
    train_on: Features,
    held_out: Features,
    inputs: EagleInputs,
    plan: Plan,
    checkpoint: Path,
    say: Say,
    start: Mapping[str, NDArray[Any]] | None = None,
) -> Eagle:
    """Trains a head; resumes from the checkpoint if there is one; arguments as for ``kangaroo.fit``."""
    torch.manual_seed(plan.seed)
    model, batch_loss = Eagle(inputs.shape, inputs.embedding, inputs.output), loss(inputs)
    if start:
        names = {"output.weight": "output"}
        model.load_state_dict({names.get(name, name): torch.from_numpy(values) for name, values in start.items()})
    about = {"layers": [train_on.points[1 + place] for place in inputs.places]}
    train(Run(model, plan, train_on, held_out_check(held_out, batch_loss), about), checkpoint, batch_loss, say)
    return model.eval()


@torch.no_grad()
def acceptance(model: Eagle, held_out: Features, inputs: EagleInputs, depth: int) -> Acceptance:
    """Acceptance by depth on stored windows of the target's greedy replies; later steps read the head's own output."""
    parts: list[Acceptance] = []
    for start in range(0, len(held_out), 16):
        ids, weights, chats, _, *others = held_out.read(range(start, min(start + 16, len(held_out))))
        length = ids.shape[1] - 1
        found = [torch.from_numpy(part) for part in others]
        made = inputs.unrolled(model, torch.from_numpy(ids), torch.from_numpy(chats), found, depth)
        guesses = np.full((len(ids), length, depth), -1, np.int64)
        for d, states in enumerate(made):  # place i of step d guesses i + 2 below the root i + 1 - d
            best = model.logits(states).argmax(-1).numpy()
            guesses[:, 1 : length - d, d] = best[:, d:]
        parts.append(of_guesses(guesses, ids, weights))
    return mean(parts)


def tensors(model: Eagle) -> dict[str, NDArray[Any]]:
    """The weights under llama.cpp's names for the architecture ``eagle3``."""
    found = {name: p.detach().float().cpu().numpy() for name, p in model.named_parameters()}
    found["output.weight"] = found.pop("output")
    return found
