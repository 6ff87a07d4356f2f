import errno
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.training.gguf_file import random_decoder
from torch import Tensor, nn
from torch.nn import functional

from slipstream.drafters.training.acceptance import Acceptance
from slipstream.drafters.training.corpus import TrainingText, WindowSampler
from slipstream.drafters.training.decoder import DecoderShape
from slipstream.drafters.training.loop import Run, TrainingPlan, train
from slipstream.models.errors import SlipstreamError

TINY = DecoderShape(width=64, layers=2, heads=2, kv_heads=1, head_size=32, ffn=96, vocabulary=64, context=128)
PLAN = TrainingPlan(
    tokens=40 * 512, batch_tokens=512, window=64, matrix_rate=0.02, other_rate=4e-3, warm_up_steps=5, check_every=4
)


class TextModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.decoder = random_decoder(TINY)

    def loss(self, ids: Tensor, weights: Tensor, chats: Tensor) -> Tensor:
        return functional.cross_entropy(self.decoder(ids[:, :-1], chats[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def run_of(plan: TrainingPlan = PLAN, checks: Sequence[float] | None = None) -> Run:
    """A run on walks through few ids, which are easy to learn; it measures the loss, or the given acceptances."""
    rng = np.random.default_rng(1)
    walk = np.cumsum(rng.integers(1, 3, 20_000)) % 60 + 2
    text = TrainingText.of((walk[a : a + 200].tolist(), [1.0] * 200) for a in range(0, 20_000, 200))
    model = TextModel()
    held = [torch.from_numpy(part) for part in WindowSampler(text, 9).batch(8, 64)]
    given = iter(checks or ())

    @torch.no_grad()
    def check() -> Acceptance:
        return Acceptance((next(given) if checks else float(torch.exp(-model.loss(*held))),), (100,))

    return Run(model, plan, WindowSampler(text, 3), check)


def test_it_learns_and_says_how_well(tmp_path: Path) -> None:
    run, lines = run_of(), list[str]()
    before = run.check().shares[0]
    train(run, tmp_path / "m.pt", lines.append)
    assert run.check().shares[0] > 3 * before and run.progress.tokens >= PLAN.tokens
    for word in ("step 40", "loss", f"held-out acceptance {run.check()}", "tok/s", "100.0%", "min left"):
        assert word in lines[-1]


def test_a_resumed_run_equals_one_that_was_not_stopped(tmp_path: Path) -> None:
    whole, before, after = run_of(), run_of(), run_of()
    losses = [whole.step() for _ in range(30)]
    first = [before.step() for _ in range(17)]
    before.measure()
    before.save(tmp_path / "half.pt")
    after.resume(tmp_path / "half.pt")
    assert after.progress.step == 17 and after.progress.best == before.progress.best > 1
    assert first + [after.step() for _ in range(13)] == losses
    for left, right in zip(whole.model.parameters(), after.model.parameters(), strict=True):
        assert torch.equal(left, right)


def test_it_stops_where_acceptance_falls_and_keeps_the_best_weights(tmp_path: Path) -> None:
    run, lines = run_of(checks=[0.2, 0.3, 0.4, *[0.39] * 20]), list[str]()
    best: list[Tensor] = []

    def say(line: str) -> None:
        lines.append(line)
        if "acceptance 0.400" in line:
            best.append(next(run.model.parameters()).detach().clone())

    train(run, tmp_path / "m.pt", say)
    assert len([line for line in lines if line.startswith("step")]) == 9
    assert "has not risen for 6 checks" in lines[-1]
    assert torch.equal(next(run.model.parameters()), best[0])
    again = run_of(checks=[0.1])
    train(again, tmp_path / "m.pt", lines.append)  # what was over is over
    assert again.progress.step == run.progress.step
    assert torch.equal(next(again.model.parameters()), best[0])


def test_a_crash_while_saving_keeps_the_old_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of()
    run.save(tmp_path / "m.pt")

    def torn(state: object, path: Path) -> None:
        Path(path).write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    run.step()
    monkeypatch.setattr(torch, "save", torn)
    with pytest.raises(SlipstreamError, match=r"cannot write .*m\.pt: .*(full|space)") as error:
        run.save(tmp_path / "m.pt")
    monkeypatch.undo()
    assert "room" in error.value.hint
    other = run_of()
    other.resume(tmp_path / "m.pt")
    assert other.progress.step == 0
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize(
    ("tokens", "batch", "warm"), [(10**6, 4096, 40), (60_000, 256, 40), (3_000, 256, 3), (100, 256, 0)]
)
def test_a_short_run_does_not_end_while_it_warms_up(tokens: int, batch: int, warm: int) -> None:
    plan = TrainingPlan(tokens=tokens).fitted()
    assert (plan.batch_tokens, plan.warm_up_steps) == (batch, warm)
    assert plan.rate(tokens // 2 // batch, 0.4) == 1.0
