"""The training loop of all heads: budget, schedule, optimizers, early stop, checkpoints and the progress line."""

import errno
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream.drafters.training.acceptance import Acceptance
from slipstream.models.gguf.tensors import replacing

Say = Callable[[str], None]  # takes a progress line
_BETWEEN_STATES = (".blk.", ".attn_", ".head.", ".fc.")
"""Parts of the names of the matrices between hidden states, which Muon trains; AdamW trains the rest."""
_WARM_UPS = 3  # steps of a run at least, in times of its warm-up
_PATIENCE = 6  # checks without a better acceptance after which a run ends


class Draws(Protocol):
    """A source of batches, whose place in the order can be stored and restored."""

    def batch(self, rows: int, length: int) -> tuple[NDArray[Any] | Tensor, ...]:
        """Arrays whose first axis is ``rows``."""

    def state(self) -> dict[str, Any]:
        """The state that ``restore`` needs to continue from here."""

    def restore(self, state: dict[str, Any]) -> None:
        """Goes back to a stored state."""


@dataclass(frozen=True)
class TrainingPlan:
    """The settings of one run, which ends when ``tokens`` are used up or held-out acceptance no longer rises."""

    tokens: int
    batch_tokens: int = 4096
    window: int = 256
    matrix_rate: float = 0.01
    other_rate: float = 1e-3
    matrix_decay: float = 0.1
    warm_up_steps: int = 40
    decay_from: float = 0.5
    final_rate: float = 0.02
    seed: int = 7
    save_seconds: float = 60.0
    check_every: int = 25

    def fitted(self) -> "TrainingPlan":
        """This plan with smaller batches, and if need be a shorter warm-up, so that most steps come after it."""
        batch = min(self.batch_tokens, self.tokens // (_WARM_UPS * self.warm_up_steps) // self.window * self.window)
        batch = max(self.window, batch)
        return replace(
            self, batch_tokens=batch, warm_up_steps=min(self.warm_up_steps, self.tokens // batch // _WARM_UPS)
        )

    def done(self, tokens: int) -> float:
        """Share of the budget that is used, 0 to 1."""
        return min(1.0, tokens / self.tokens)

    def rate(self, step: int, done: float) -> float:
        """Factor on the learning rates: warm-up by steps, then constant, then linear to ``final_rate``."""
        warm = min(1.0, (step + 1) / max(1, self.warm_up_steps))
        fall = max(0.0, (done - self.decay_from) / (1 - self.decay_from))
        return warm * (1 - fall * (1 - self.final_rate))


@dataclass
class TrainingProgress:
    """How far a run is."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    best: float = 0.0  # the most tokens per step that a check has found on held-out text
    worse: int = 0  # checks since then
    history: list[dict[str, Any]] = field(default_factory=list)


class Run:
    """A model, its optimizers and its data; it can be saved and resumed."""

    def __init__(self, model: Any, plan: TrainingPlan, draws: Draws, check: Callable[[], Acceptance]) -> None:
        """Builds the optimizers; the model's method ``loss`` takes a batch of ``draws``, as tensors."""
        self.model, self.plan, self.draws, self.check = model, plan, draws, check
        self.progress = TrainingProgress()
        self.best: dict[str, Tensor] = {}  # the weights of the best check
        wanted = {name: p for name, p in model.named_parameters() if p.requires_grad}
        matrices = [p for name, p in wanted.items() if _between_states(name, p)]
        others = [p for name, p in wanted.items() if not _between_states(name, p)]
        self.optimizers: list[torch.optim.Optimizer] = [
            torch.optim.AdamW(others, lr=plan.other_rate, betas=(0.9, 0.95), weight_decay=0.0)
        ]
        self.rates, self.decays = [plan.other_rate], [0.0]
        if matrices:  # Muon (Jordan et al., github.com/KellerJordan/Muon) needs 1.6 times fewer tokens than AdamW here
            muon = torch.optim.Muon(matrices, lr=plan.matrix_rate, momentum=0.95, nesterov=True)
            self.optimizers.insert(0, muon)
            self.rates.insert(0, plan.matrix_rate)
            self.decays.insert(0, plan.matrix_decay)

    @property
    def done(self) -> float:
        """Share of the run that is over, 0 to 1."""
        progress = self.progress
        return 1.0 if progress.worse >= _PATIENCE else self.plan.done(progress.tokens)

    def step(self) -> float:
        """One optimizer step on one batch; returns its loss."""
        plan, progress = self.plan, self.progress
        began = time.monotonic()
        rows = max(1, plan.batch_tokens // plan.window)
        device = next(self.model.parameters()).device
        batch = [torch.as_tensor(part, device=device) for part in self.draws.batch(rows, plan.window)]
        factor = plan.rate(progress.step, plan.done(progress.tokens))
        for optimizer, rate, decay in zip(self.optimizers, self.rates, self.decays, strict=True):
            for group in optimizer.param_groups:  # ``resume`` has loaded stored values
                group["lr"], group["weight_decay"] = rate * factor, decay
            optimizer.zero_grad(set_to_none=True)
        loss = self.model.loss(*batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_([p for p in self.model.parameters() if p.grad is not None], 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
        progress.step += 1
        progress.tokens += rows * plan.window
        progress.seconds += time.monotonic() - began
        return float(loss.detach())

    def measure(self) -> Acceptance:
        """Checks the model on held-out text, and keeps its weights if none before were better."""
        progress = self.progress
        began = time.monotonic()
        found = self.check()
        gain = found.tokens_per_step(len(found.shares))
        progress.worse += 1
        if gain > progress.best:
            progress.best, progress.worse = gain, 0
            self.best = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
        progress.seconds += time.monotonic() - began
        return found

    def save(self, path: Path) -> None:
        """Writes a checkpoint; a crash leaves the old one or the new one, never a part."""
        state = {
            "model": self.model.state_dict(),
            "best": self.best,
            "optimizers": [o.state_dict() for o in self.optimizers],
            "draws": self.draws.state(),
            "progress": asdict(self.progress),
        }
        with replacing(path) as part:
            try:
                torch.save(state, part)
            except RuntimeError as error:  # torch's own, of a full disk
                raise OSError(errno.ENOSPC, "the disk is full") from error

    def resume(self, path: Path) -> None:
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.best = state["best"]
        for optimizer, stored in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(stored)
        self.draws.restore(state["draws"])
        self.progress = TrainingProgress(**state["progress"])


def train(run: Run, path: Path, say: Say) -> None:
    """Trains to the end of the plan, or until held-out acceptance no longer rises; the model gets the best weights.

    It resumes from the checkpoint ``path`` if it exists, and writes it at the end.

    Raises:
        SlipstreamError: If a checkpoint cannot be written; the one before it is kept.
    """
    if path.exists():
        run.resume(path)
    plan, progress = run.plan, run.progress
    saved, average = progress.seconds, 0.0
    mark = (progress.tokens, time.monotonic())
    while run.done < 1:
        loss = run.step()
        average = loss if not average else 0.95 * average + 0.05 * loss
        if progress.step % plan.check_every == 0 or progress.step == 10 or run.done == 1:
            found = run.measure()
            speed = (progress.tokens - mark[0]) / (time.monotonic() - mark[1])
            mark = (progress.tokens, time.monotonic())
            left = progress.seconds * (1 - run.done) / max(run.done, 1e-9) / 60
            progress.history.append({"tokens": progress.tokens, "loss": average, "accepted": list(found.shares)})
            say(
                f"step {progress.step}  tokens {progress.tokens / 1e6:.2f}M  loss {average:.3f}  "
                f"held-out acceptance {found}  {speed:.0f} tok/s  {plan.done(progress.tokens):.1%}  {left:.1f} min left"
            )
            if progress.worse >= _PATIENCE:
                say(f"stopped: acceptance has not risen for {_PATIENCE} checks; the best weights are kept")
        if progress.seconds - saved >= plan.save_seconds:
            saved = progress.seconds
            run.save(path)
    run.save(path)
    run.model.load_state_dict(run.best)


def _between_states(name: str, parameter: Tensor) -> bool:
    return parameter.ndim == 2 and any(part in f".{name}" for part in _BETWEEN_STATES)


def weighted(losses: Tensor, weights: Tensor) -> Tensor:
    """The mean of losses with weights."""
    return (losses * weights).sum() / weights.sum().clamp(min=1e-6)
