"""The training loop both models share: budget, schedule, optimizer, checkpoints and the progress line."""

import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from slipstream.drafters.training.corpus import Sampler, Source
from slipstream.drafters.training.model import Decoder, Shape

BatchLoss = Callable[[Decoder, Tensor, Tensor], Tensor]
"""Loss of (model, ids, weights), ids and weights of shape (rows, length + 1)."""


@dataclass(frozen=True)
class Plan:
    """What one run does. The budget is minutes or tokens, whichever is used up first; 0 means no such limit."""

    minutes: float = 0.0
    tokens: int = 0
    batch_tokens: int = 8192
    window: int = 256
    long_window: int = 1024
    long_share: float = 0.18
    matrix_rate: float = 0.02
    other_rate: float = 4e-3
    warm_up_steps: int = 40
    decay_from: float = 0.6
    final_rate: float = 0.02
    seed: int = 7
    save_seconds: float = 180.0
    check_every: int = 50

    def done(self, tokens: int, seconds: float) -> float:
        """Share of the budget that is used, 0 to 1."""
        by_time = seconds / (self.minutes * 60) if self.minutes else 0.0
        by_tokens = tokens / self.tokens if self.tokens else 0.0
        return min(1.0, max(by_time, by_tokens))

    def rate(self, step: int, done: float) -> float:
        """Factor on the learning rates: warm-up by steps, then constant, then linear to ``final_rate``."""
        warm = min(1.0, (step + 1) / self.warm_up_steps)
        fall = max(0.0, (done - self.decay_from) / (1 - self.decay_from))
        return warm * (1 - fall * (1 - self.final_rate))


@dataclass
class Progress:
    """How far a run is."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    history: list[dict[str, float]] = field(default_factory=list)


class Run:
    """A model, its optimizers and its data, which can be stored and taken up again."""

    def __init__(self, shape: Shape, plan: Plan, train: dict[str, Source], held_out: dict[str, Source]) -> None:
        """Seeds torch and builds everything; ``resume`` then replaces it by a stored state."""
        torch.manual_seed(plan.seed)
        self.plan = plan
        self.model = Decoder(shape)
        self.sampler = Sampler(train, plan.seed)
        self.held_out = held_out
        self.progress = Progress()
        matrices = [p for n, p in self.model.named_parameters() if p.ndim == 2 and n.startswith("blk.")]
        others = [p for n, p in self.model.named_parameters() if not (p.ndim == 2 and n.startswith("blk."))]
        # Muon (Jordan et al., github.com/KellerJordan/Muon) needs 1.6 times fewer tokens than AdamW here.
        self.optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Muon(matrices, lr=plan.matrix_rate, weight_decay=0.01, momentum=0.95, nesterov=True),
            torch.optim.AdamW(others, lr=plan.other_rate, betas=(0.9, 0.95), weight_decay=0.0),
        ]

    def step(self, batch_loss: BatchLoss) -> float:
        """One optimizer step on one batch; returns its loss."""
        plan, progress = self.plan, self.progress
        began = time.monotonic()
        done = plan.done(progress.tokens, progress.seconds)
        length = plan.long_window if done >= 1 - plan.long_share else plan.window
        rows = max(1, plan.batch_tokens // length)
        ids, weights = (torch.from_numpy(part) for part in self.sampler.batch(rows, length))
        factor = plan.rate(progress.step, done)
        for optimizer, rate in zip(self.optimizers, (plan.matrix_rate, plan.other_rate), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = rate * factor
            optimizer.zero_grad(set_to_none=True)
        loss = batch_loss(self.model, ids, weights)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
        progress.step += 1
        progress.tokens += rows * length
        progress.seconds += time.monotonic() - began
        return float(loss.detach())

    def save(self, path: Path) -> None:
        """Writes everything to ``path`` in one move."""
        state = {
            "shape": asdict(self.model.shape),
            "model": self.model.state_dict(),
            "optimizers": [o.state_dict() for o in self.optimizers],
            "sampler": self.sampler.state(),
            "progress": asdict(self.progress),
        }
        save_atomically(state, path)

    def resume(self, path: Path) -> None:
        """Takes up a run that ``save`` stored."""
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        for optimizer, stored in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(stored)
        self.sampler.restore(state["sampler"])
        self.progress = Progress(**state["progress"])


def train(run: Run, path: Path, batch_loss: BatchLoss, say: Callable[[str], None] = print) -> None:
    """Trains until the budget is used up; continues from ``path`` if it exists and ends with it written.

    Args:
        run: a fresh run.
        path: the checkpoint.
        batch_loss: what to minimise.
        say: takes the progress lines.
    """
    if path.exists():
        run.resume(path)
    plan, progress = run.plan, run.progress
    saved, average = progress.seconds, 0.0
    mark = (progress.tokens, time.monotonic())
    while plan.done(progress.tokens, progress.seconds) < 1:
        loss = run.step(batch_loss)
        average = loss if not average else 0.95 * average + 0.05 * loss
        if progress.step % plan.check_every == 0 or progress.step == 10:
            began = time.monotonic()
            held = held_out_loss(run.model, run.held_out, plan, rows=32)
            progress.seconds += time.monotonic() - began
            speed = (progress.tokens - mark[0]) / (time.monotonic() - mark[1])
            mark = (progress.tokens, time.monotonic())
            done = plan.done(progress.tokens, progress.seconds)
            left = progress.seconds * (1 - done) / max(done, 1e-9) / 60
            entry = {"step": progress.step, "tokens": progress.tokens, "loss": average, "held_out": held}
            progress.history.append(entry)
            say(
                f"step {progress.step}  tokens {progress.tokens / 1e6:.2f}M  loss {average:.3f}  held-out {held:.3f}  "
                f"{speed:.0f} tok/s  {done:.1%}  {left:.1f} min left"
            )
        if progress.seconds - saved >= plan.save_seconds:
            saved = progress.seconds
            run.save(path)
    run.save(path)


def weighted_loss(model: Decoder, ids: Tensor, weights: Tensor) -> Tensor:
    """Mean cross-entropy over the ids that weigh anything, in nats."""
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(ids[:, :-1])  # of all rows: a shape that changes with every batch fills oneDNN's cache
    weight = weights[:, 1:].flatten()
    losses = functional.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    return (losses * weight).sum() / weight.sum()


@torch.no_grad()
def held_out_loss(model: Decoder, held_out: dict[str, Source], plan: Plan, rows: int, length: int = 0) -> float:
    """Mean loss of the reply's own tokens on a fixed draw of held-out windows, in nats per token.

    Args:
        model: what to measure.
        held_out: the held-out split.
        plan: gives the window length and the seed.
        rows: how many windows.
        length: of a window; 0 for the plan's.
    """
    sampler = Sampler(held_out, plan.seed)
    total = count = 0.0
    for _ in range(0, rows, 16):
        ids, weights = (torch.from_numpy(part) for part in sampler.batch(16, length or plan.window))
        replies = (weights >= 1).float()
        seen = float(replies[:, 1:].sum())
        if seen:
            total += float(weighted_loss(model, ids, replies)) * seen
            count += seen
    return total / max(count, 1.0)


def load_model(path: Path) -> tuple[Decoder, dict[str, Any]]:
    """The model of a checkpoint, and the checkpoint's progress."""
    state = torch.load(path, weights_only=True)
    model = Decoder(Shape(**state["shape"]))
    model.load_state_dict(state["model"])
    return model.eval(), state["progress"]


def save_atomically(state: dict[str, Any], path: Path) -> None:
    """Writes a checkpoint so that a crash leaves the old one or the new one, never a part."""
    part = path.with_suffix(".part")
    torch.save(state, part)
    os.replace(part, path)
