import errno
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from slipstream.drafters.training import loop
from slipstream.drafters.training.family import mix
from slipstream.drafters.training.family.decoders import decoder_run, distillation_loss, load_decoder, weighted_loss
from slipstream.drafters.training.loop import Plan, Run
from slipstream.drafters.training.model import Decoder, Shape
from slipstream.models.errors import SlipstreamError

TINY = Shape(width=64, layers=2, heads=2, kv_heads=1, head_size=32, ffn=96, vocabulary=600, context=128)
PLAN = Plan(tokens=40 * 512, batch_tokens=512, window=64, longer=((0.8, 128),), warm_up_steps=5, check_every=10)


def _run(prepared: Path, plan: Plan = PLAN) -> Run:
    stored = prepared / "corpus.npz"
    return decoder_run(TINY, plan, mix.load(stored, "train"), mix.load(stored, "held_out"), compiled=False)


def test_it_learns_one_batch_by_heart(prepared: Path) -> None:
    run = _run(prepared, Plan(tokens=10**9, batch_tokens=256, window=64, warm_up_steps=5))
    batch = run.draws.batch(4, 64)
    run.draws.batch = lambda rows, length: batch  # type: ignore[method-assign]
    losses = [run.step(weighted_loss) for _ in range(60)]
    assert losses[0] > 5
    assert losses[-1] < 0.5


def test_ids_that_weigh_less_than_nothing_become_less_likely(prepared: Path) -> None:
    run = _run(prepared, Plan(tokens=10**9, batch_tokens=256, window=64, warm_up_steps=5))
    ids, weights, chats = run.draws.batch(4, 64)
    run.draws.batch = lambda rows, length: (ids, weights, chats)  # type: ignore[method-assign]
    for _ in range(40):
        run.step(weighted_loss)

    def probabilities() -> Tensor:
        with torch.no_grad():
            rows = run.model(torch.from_numpy(ids)[:, :-1], torch.from_numpy(chats)[:, :-1]).softmax(-1)
        return rows.gather(-1, torch.from_numpy(ids)[:, 1:, None])[..., 0].numpy()[weights[:, 1:] > 0]

    assert probabilities().mean() > 0.7
    weights *= -1
    losses = [run.step(weighted_loss) for _ in range(40)]
    weights *= -1
    assert losses[0] > 1 and losses[-1] < 0.1
    assert probabilities().mean() < 0.1


def test_the_unlikelihood_of_a_sure_id_is_finite() -> None:
    model = nn.Embedding(4, 4)
    with torch.no_grad():
        model.weight.copy_(1e4 * torch.eye(4))
    ids, weights = torch.zeros((1, 5), dtype=torch.int64), torch.full((1, 5), -1.0)
    loss = weighted_loss(_Unchained(model), ids, weights, torch.zeros_like(ids))
    loss.backward()
    assert 5 < float(loss.detach()) < 20
    assert model.weight.grad is not None and bool(torch.isfinite(model.weight.grad).all())


class _Unchained(nn.Module):
    """Logits of a token alone."""

    def __init__(self, table: nn.Embedding) -> None:
        super().__init__()
        self.table = table

    def forward(self, ids: Tensor, _: Tensor) -> Tensor:
        found: Tensor = self.table(ids)
        return found


def test_a_resumed_run_equals_one_that_was_not_stopped(prepared: Path, tmp_path: Path) -> None:
    whole = _run(prepared)
    losses = [whole.step(weighted_loss) for _ in range(40)]
    before = _run(prepared)
    first = [before.step(weighted_loss) for _ in range(17)]
    before.save(tmp_path / "half.pt")
    after = _run(prepared)
    after.resume(tmp_path / "half.pt")
    assert after.progress.step == 17
    assert first + [after.step(weighted_loss) for _ in range(23)] == losses
    for left, right in zip(whole.model.parameters(), after.model.parameters(), strict=True):
        assert torch.equal(left, right)
    assert losses[-1] < losses[0] - 1


def test_a_crash_while_saving_keeps_the_old_checkpoint(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = _run(prepared)
    run.save(tmp_path / "m.pt")

    def torn(state: object, path: Path) -> None:
        Path(path).write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(torch, "save", torn)
    run.step(weighted_loss)
    with pytest.raises(SlipstreamError, match=r"cannot write the checkpoint .*m\.pt: the disk is full") as error:
        run.save(tmp_path / "m.pt")
    monkeypatch.undo()
    assert "goes on" in error.value.hint
    assert load_decoder(tmp_path / "m.pt")[1]["step"] == 0
    assert not list(tmp_path.glob("*.part"))


def test_the_schedule_follows_the_budget() -> None:
    plan = Plan(minutes=10, tokens=1000)
    assert plan.done(0, 0) == 0
    assert plan.done(500, 60) == 0.5
    assert plan.done(100, 540) == 0.9
    assert plan.done(5000, 0) == 1
    assert plan.rate(0, 0) == pytest.approx(1 / plan.warm_up_steps)
    assert plan.rate(1000, plan.decay_from) == 1
    assert plan.rate(1000, 1.0) == pytest.approx(plan.final_rate)
    assert plan.rate(1000, 0.7) > plan.rate(1000, 0.8)


def test_the_last_part_is_trained_on_long_windows(prepared: Path) -> None:
    run = _run(prepared)
    lengths: list[int] = []

    def spy(model: Decoder, *batch: torch.Tensor) -> torch.Tensor:
        lengths.append(batch[0].shape[1] - 1)
        return weighted_loss(model, *batch)

    while PLAN.done(run.progress.tokens, 0) < 1:
        run.step(spy)
    assert lengths[0] == PLAN.window
    assert lengths[-1] == 128
    share = sum(n == 128 for n in lengths) / len(lengths)
    assert share == pytest.approx(0.2, abs=0.03)


def test_training_says_where_it_is_and_lowers_the_held_out_loss(prepared: Path, tmp_path: Path) -> None:
    run = _run(prepared)
    start = run.check(run.model)
    lines: list[str] = []
    loop.train(run, tmp_path / "m.pt", weighted_loss, say=lines.append)
    model, progress = load_decoder(tmp_path / "m.pt")
    assert progress["tokens"] >= PLAN.tokens
    assert run.check(model) < start - 1.5
    for word in ("step 40", "loss", "held-out", "tok/s", "100.0%", "min left"):
        assert word in lines[-1]


def test_distillation_pulls_the_draft_to_the_target(prepared: Path, tmp_path: Path) -> None:
    target = _run(prepared)
    loop.train(target, tmp_path / "t.pt", weighted_loss, say=lambda line: None)
    teacher, _ = load_decoder(tmp_path / "t.pt")
    draft = _run(prepared, replace(PLAN, seed=8))
    batch = [torch.from_numpy(part) for part in draft.draws.batch(16, 64)]

    def overlap(model: nn.Module) -> float:
        with torch.no_grad():
            theirs, ours = (m(batch[0], batch[2]).softmax(-1) for m in (teacher, model))
        return float(torch.minimum(theirs, ours).sum(-1).mean())

    assert overlap(draft.model) < 0.5
    loop.train(draft, tmp_path / "d.pt", distillation_loss(teacher), say=lambda line: None)
    assert overlap(draft.model) > 0.6
    assert overlap(teacher) == pytest.approx(1.0)
