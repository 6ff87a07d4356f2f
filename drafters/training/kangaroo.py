"""Kangaroo: the target's own first layers and a small adapter draft; the adapter learns the target's distribution.

Liu et al., arXiv 2404.18911; github.com/Equationliu/Kangaroo: the adapter is one attention layer without a feed-forward
part between two norms, y = h + Attention(RMS(h)), then RMS(y) and the target's own vocabulary matrix. The loss is the
cross-entropy against the target's distribution.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from slipstream.drafters.training.acceptance import Acceptance, chain_guesses, mean, of_guesses
from slipstream.drafters.training.attention import Rotation, chat_mask
from slipstream.drafters.training.features import Features, held_out_check
from slipstream.drafters.training.loop import BatchLoss, Plan, Run, Say, train
from slipstream.drafters.training.model import Attention, Norm, Shape

_LONGEST = 4  # longest draft that is considered in the choice of an exit layer


class Adapter(Attention):
    """Attention over the exited hidden states, shaped like the target's own."""

    def __init__(self, shape: Shape) -> None:
        """Starts as the identity and a norm.

        Args:
            shape: of the target; heads, head size and rotation are taken from it.
        """
        super().__init__(shape)
        self.attn_norm, self.output_norm = Norm(shape.width, shape.eps), Norm(shape.width, shape.eps)

    def forward(self, hidden: Tensor, chats: Tensor, rotation: Rotation) -> Tensor:
        """Maps exited states (rows, length, width) to the vocabulary matrix's input.

        Args:
            hidden: inputs of the exit layer.
            chats: (rows, length), the number of the chat that each place belongs to.
            rotation: the target's rotations of these places.
        """
        mixed = self.mixed(*self.parts(self.attn_norm(hidden), rotation), chat_mask(chats))
        out: Tensor = self.output_norm(hidden + mixed)
        return out


@dataclass(frozen=True)
class Exit:
    """The place of an adapter in its target."""

    shape: Shape
    rotation: Rotation  # the target's rotations of the places of a window
    output: Tensor  # (vocabulary, width), the target's vocabulary matrix
    place: int  # which of the stored points after the last hidden state is the exit's

    def logits(self, model: Adapter, chats: Tensor, exits: Sequence[Tensor]) -> Tensor:
        """Scores after each place: (rows, length, vocabulary)."""
        return functional.linear(model(exits[self.place], chats, self.rotation), self.output)


def fit(
    train_on: Features,
    held_out: Features,
    exit_at: Exit,
    plan: Plan,
    checkpoint: Path,
    say: Say,
    start: Mapping[str, NDArray[Any]] | None = None,
) -> Adapter:
    """Trains an adapter; resumes from the checkpoint if there is one.

    Args:
        train_on: windows with the last hidden state as their first point.
        held_out: windows of the target's greedy replies.
        start: the ``tensors`` of an earlier adapter to start from.
    """
    torch.manual_seed(plan.seed)
    model, batch_loss = Adapter(exit_at.shape).to(exit_at.output.device), loss(exit_at)
    if start:
        model.load_state_dict({name: torch.from_numpy(values) for name, values in start.items()})
    about = {"exit": train_on.points[1 + exit_at.place]}
    train(Run(model, plan, train_on, held_out_check(held_out, batch_loss), about), checkpoint, batch_loss, say)
    return model.eval()


def fit_best(
    candidates: Mapping[int, Exit],
    train_on: Features,
    held_out: Features,
    plan: Plan,
    trial_tokens: int,
    work: Path,
    say: Say,
    depth: int = 6,
    start: Mapping[str, NDArray[Any]] | None = None,
) -> tuple[Adapter, dict[str, Any], Acceptance]:
    """Trains an adapter briefly for every exit layer, then fully for the best one.

    Args:
        plan: budget and rates of the full run.
        start: an earlier adapter for the only candidate, which then needs no trial.

    Returns:
        The adapter, the settings to keep with it, and its acceptance.
    """
    tried: dict[int, Acceptance] = {}
    for layer, exit_at in () if start else candidates.items():
        say(f"trying an exit before layer {layer}")
        trial = replace(plan, tokens=trial_tokens)
        adapter = fit(train_on, held_out, exit_at, trial, work / f"kangaroo-{layer}.pt", say)
        tried[layer] = acceptance(adapter, held_out, exit_at, depth)
    best = best_exit(tried, candidates[min(candidates)].shape) if tried else min(candidates)
    trials = [f"{layer}: {found}" for layer, found in tried.items()]
    say(f"acceptance by exit layer: {'; '.join(trials)}; taken: {best}")
    adapter = fit(train_on, held_out, candidates[best], plan, work / "kangaroo.pt", say, start)
    settings = {"exit_layer": best, "trials": trials}
    return adapter, settings, acceptance(adapter, held_out, candidates[best], depth)


def loss(exit_at: Exit) -> BatchLoss:
    """Cross-entropy against the target's distribution at the same place."""

    def of_batch(model: Adapter, ids: Tensor, weights: Tensor, chats: Tensor, last: Tensor, *exits: Tensor) -> Tensor:
        with torch.autocast(last.device.type, torch.bfloat16):
            with torch.no_grad():
                wanted = functional.linear(last, exit_at.output).float().softmax(-1)
            guessed = exit_at.logits(model, chats[:, :-1], exits).float()
        losses = functional.cross_entropy(guessed.flatten(0, 1), wanted.flatten(0, 1), reduction="none")
        weight = weights[:, 1:].flatten()
        return (losses * weight).sum() / weight.sum().clamp(min=1)

    return of_batch


@torch.no_grad()
def acceptance(model: Adapter, held_out: Features, exit_at: Exit, depth: int) -> Acceptance:
    """Acceptance by depth on stored windows of the target's greedy replies."""
    parts: list[Acceptance] = []
    device = exit_at.output.device
    for start in range(0, len(held_out), 16):
        ids, weights, chats, _, *exits = held_out.read(range(start, min(start + 16, len(held_out))))
        found = [torch.from_numpy(part).to(device) for part in exits]
        best = exit_at.logits(model, torch.from_numpy(chats).to(device)[:, :-1], found).argmax(-1).cpu().numpy()
        parts.append(of_guesses(chain_guesses(best, depth), ids, weights))
    return mean(parts)


def tensors(model: Adapter) -> dict[str, NDArray[Any]]:
    """The arrays for a heads file, see ``slipstream.models.heads.file``."""
    return {name: p.detach().float().cpu().numpy() for name, p in model.named_parameters()}


def relative_cost(exit_layer: int, shape: Shape) -> float:
    """Estimates the time of a drafted token, relative to a pass of the target, by the matrix weights that are read."""
    kv = 2 * shape.width * shape.kv_heads * shape.head_size
    attention = 2 * shape.width * shape.heads * shape.head_size + kv
    layer = attention + 3 * shape.width * shape.ffn
    head = shape.vocabulary * shape.width
    return (exit_layer * layer + attention + head) / (shape.layers * layer + head)


def best_exit(candidates: dict[int, Acceptance], shape: Shape) -> int:
    """The exit layer whose drafts should gain most: expected tokens per step over the step's relative time.

    Verification is assumed to cost one pass. Deeper exits guess better and cost more.
    """

    def gain(layer: int) -> float:
        cost = relative_cost(layer, shape)
        return max(candidates[layer].tokens_per_step(n) / (1 + n * cost) for n in range(1, _LONGEST + 1))

    return max(candidates, key=gain)
