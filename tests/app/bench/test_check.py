"""The audit of exactness: it passes where all is well, and finds a fault that was put in."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.app.bench.test_command import TINY, options

from slipstream.app.bench.check import CheckReport, audit, check_text, near_tie, noisy_gap, row_rounding
from slipstream.app.bench.prompts import PromptSet, asked
from slipstream.app.bench.turns import BenchTurn, ReplyPlan, session_of, write
from slipstream.app.cli.bench import bench
from slipstream.app.engine.exactness import SAME_DISTRIBUTION, SAME_TEXT
from slipstream.app.engine.session import Session
from slipstream.app.library.resolve_model import choose
from slipstream.app.platform.paths import HOME_VARIABLE, Paths
from slipstream.app.protocol.requests import Sampling
from slipstream.drafters.base import Draft, Drafter, ShouldExtend
from slipstream.drafters.tree import chain_draft
from slipstream.models.sampling.sampler import Sampler, gumbel
from slipstream.models.types import EMPTY_TREE, Evaluation, Floats, History, Token, TokenTree

PLAN = ReplyPlan(
    names=("recycle",),
    sets=(PromptSet("copy", (asked("Repeat this: the sea, the sea, the sea, the sea.", "Once more."),)),),
    temperatures=(0.0, 0.8), seeds=(1, 2), tokens=24
)  # fmt: skip


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    home = Paths.default({HOME_VARIABLE: str(tmp_path_factory.mktemp("home"))})
    with session_of(choose(home)) as (opened, _):
        yield opened


def checked(session: Session, names: Sequence[str] = ("recycle",), promise: str = SAME_TEXT) -> CheckReport:
    report = CheckReport("mini", promise, dict.fromkeys(names, 0), {}, 0.05)
    return audit(session, report, PLAN, 2048, lambda _line: None)


def test_every_drafter_reads_the_same_part_of_a_prompt(session: Session) -> None:
    asked_long = PromptSet("long", (asked("The fox met seven geese by the river. " * 30),)).prompts[0]
    turn = BenchTurn("long", 0, 0, asked_long.messages, Sampling(), 4)
    read = [write(session, name, turn).done.prefilled_tokens for name in ("none", "eagle3", "none", "medusa", "lookup")]
    assert read[0] > 256 and {*read[1:]} <= {128, 129}  # the first one reads the whole


class Sloppy(Sampler):
    """Forgets the drafted tokens before a row when it keys the noise: plain decoding never notices."""

    def pick(self, logits: Floats, history: History, ahead: Sequence[Token] = ()) -> Token:
        return super().pick(logits, history)


@pytest.mark.slow
def test_a_wrong_sampler_is_found(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.app.engine.chat_model.Sampler", Sloppy)
    report = checked(session, ("recycle", "draft"))
    assert report.wrong and not report.passed
    assert all("temperature 0.8" in finding.place for finding in report.findings)  # without noise nothing is wrong
    assert any((finding.difference.gap or 9) > 2 * report.tolerance for finding in report.wrong)
    first = report.wrong[0].difference
    assert first.plain == first.again != first.drafted
    text = check_text(report)
    assert f"FAILED: {len(report.wrong)} replies differ by more than floating point explains." in text
    assert "WRONG" in text and f"token {first.index + 1} is {first.drafted} in place of {first.plain}" in text


class Meddler(Drafter):
    """Takes tokens out of the target's cache, which no drafter may."""

    name = "meddler"

    def __init__(self, session: Session) -> None:
        self._session, self._steps = session, 0

    def begin(self, history: History) -> None:
        self._steps = 0

    def draft(self, history: History, should_extend: ShouldExtend, sampler: Sampler) -> Draft:
        self._steps += 1
        if self._steps == 6:
            self._session.target.rewind(len(history.tokens) - 5)
        return chain_draft([5], [0.5], self.name)


@pytest.mark.slow
def test_a_drafter_that_breaks_the_target_is_found(session: Session) -> None:
    session.drafters.put("meddler", Meddler(session))
    report = checked(session, ("meddler", "lookup"), SAME_DISTRIBUTION)
    assert {finding.drafter for finding in report.wrong} == {"meddler"} and not report.passed
    assert all(finding.difference.index >= 5 for finding in report.findings)


class Unsteady(Sampler):
    """Plain decoding itself draws something else now and then, so that not even it repeats itself."""

    def pick(self, logits: Floats, history: History, ahead: Sequence[Token] = ()) -> Token:
        best = super().pick(logits, history, ahead)
        return (best + 1) % logits.size if len(history.tokens) % 16 == 15 and not ahead else best


def test_a_plain_reply_unlike_the_targets_is_no_near_tie(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.app.engine.chat_model.Sampler", Unsteady)
    report = checked(session, ("draft",))
    assert report.wrong
    assert any(finding.difference.again != finding.difference.plain for finding in report.wrong)
    assert "run again, plain decoding has" in check_text(report)


def test_a_target_that_wavers_when_wide_differs_at_near_ties(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two best logits change places in passes of several rows where they are less than 3 apart."""
    evaluate = session.target.evaluate

    def wavering(last: Token, tree: TokenTree = EMPTY_TREE) -> Evaluation:
        evaluation = evaluate(last, tree)
        for logits in evaluation.logits if len(tree) else ():
            second, best = np.argsort(logits)[-2:]
            if logits[best] - logits[second] < 3:
                logits[best], logits[second] = logits[second], logits[best]
        return evaluation

    monkeypatch.setattr(session.target, "evaluate", wavering)
    plan = replace(PLAN, temperatures=(0.0,))
    report = CheckReport("mini", SAME_DISTRIBUTION, {"draft": 0}, {})
    found = audit(session, report, plan, 2048, lambda _line: None)
    assert found.findings and found.passed and not found.wrong
    assert all(0 <= (finding.difference.gap or 0) < 3 for finding in found.findings)
    assert found.tolerance > 0


def test_a_rows_rounding_is_that_of_its_own_passes(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    target, off = session.target, 0.0
    tokens = [(7919 * at + 4099) % target.abilities.n_vocab for at in range(80)]
    evaluate = target.evaluate

    def rounded(last: Token, tree: TokenTree = EMPTY_TREE) -> Evaluation:
        evaluation = evaluate(last, tree)
        if len(tree):
            evaluation.logits[-1, best] += off
        return evaluation

    target.prefill(tokens[:-1])
    row = target.evaluate(tokens[-1]).logits[0].copy()
    target.keep(())
    best = int(np.argmax(row))
    assert row_rounding(target, tokens, row) == 0.0  # here, every width gives the same bits
    monkeypatch.setattr(target, "evaluate", rounded)
    for off in (0.01, 5.0):
        assert row_rounding(target, tokens, row) == pytest.approx(off, rel=1e-3)


@pytest.mark.slow
def test_near_ties_break_only_the_stronger_promise(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.app.engine.chat_model.Sampler", Sloppy)
    found = checked(session, ("recycle", "draft"))
    ties = [
        replace(finding, difference=replace(finding.difference, near_tie=True, gap=0.01)) for finding in found.findings
    ]
    same_text = replace(found, findings=ties)
    assert not same_text.passed and not same_text.wrong and "the same text was promised" in check_text(same_text)
    distribution = replace(same_text, promise=SAME_DISTRIBUTION)
    assert distribution.passed and "each at a near-tie" in check_text(distribution)


def row(*values: float) -> Floats:
    return np.array(values, np.float32)


def test_the_gap_is_in_logits_and_a_near_tie_is_what_a_small_change_turns_over() -> None:
    history, logits = History([1, 2, 3]), row(1.0, 3.0, 2.75, -4.0)
    assert noisy_gap(Sampler(temperature=0), logits, history) == pytest.approx(0.25)
    sampler = Sampler(temperature=0.5, top_k=0, top_p=1, min_p=0, seed=4)
    scores = np.sort(logits.astype(float) + 0.5 * gumbel(4, history.position, np.arange(4)))
    assert noisy_gap(sampler, logits, history) == pytest.approx(scores[-1] - scores[-2], abs=1e-6)
    assert noisy_gap(Sampler(temperature=0.5, top_k=1), logits, history) is None
    assert noisy_gap(Sampler(temperature=0), row(-math.inf, 2.0), history) is None
    history, greedy = History([1, 2, 3]), Sampler(temperature=0)
    close, apart = row(1.0, 3.0, 2.95), row(1.0, 3.0, 2.85)
    assert near_tie(greedy, close, history, (1, 2), 0.05) and not near_tie(greedy, apart, history, (1, 2), 0.05)
    assert near_tie(greedy, apart, history, (1, 2), 0.1)
    assert not near_tie(greedy, close, history, (1, 0), 0.05)  # it is not the second best that was drafted
    # Where the target's row says a third thing, or only the drafted one, nothing is explained.
    history, greedy = History([1, 2, 3]), Sampler(temperature=0)
    assert not near_tie(greedy, row(1.0, 3.0, 2.0), history, (2, 1), 0.05)


def test_a_token_at_the_limit_of_a_truncation_is_a_near_tie() -> None:
    """The noise favours a token that the truncation just keeps, or just leaves out."""
    history = History([1, 2, 3])
    limit = 5.0 + math.log(0.05)  # of min-p
    for value in (limit - 0.02, limit + 0.02):
        logits = row(5.0, value, -9.0)
        for seed in range(400):
            sampler = Sampler(temperature=1.0, top_k=0, top_p=1, min_p=0.05, seed=seed)
            if Sampler(temperature=1.0, top_k=0, top_p=1, min_p=0, seed=seed).pick(logits, history) == 1:
                break
        assert sampler.pick(logits, history) == (1 if value > limit else 0)
        assert near_tie(sampler, logits, history, (0, 1), 0.05)
        assert not near_tie(sampler, logits, history, (0, 1), 0.005)


@pytest.mark.slow
def test_the_command_passes_and_writes_down_what_it_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    chosen = options(tmp_path / "f.json", check=True, drafters="lookup,medusa", prompts="copy", limit=1)
    assert bench(chosen, TINY) == 0
    figures = json.loads((tmp_path / "f.json").read_text())
    assert figures.keys() == {"machine", "check"} and figures["check"]["passed"]
    assert figures["check"]["compared"] == {"lookup": 1, "medusa": 1} and figures["check"]["findings"] == []
    assert "Passed: every reply" in capsys.readouterr().out


@pytest.mark.slow
def test_the_command_fails_where_a_reply_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    monkeypatch.setattr("slipstream.app.engine.chat_model.Sampler", Sloppy)
    chosen = options(tmp_path / "f.json", check=True, drafters="draft", prompts="story", limit=2, tokens=40)
    assert bench(chosen, TINY) == 1
    found = json.loads((tmp_path / "f.json").read_text())["check"]
    assert not found["passed"] and found["findings"][0].keys() == {"drafter", "place", "difference"}
    keys = {"index", "plain", "drafted", "again", "gap", "near_tie", "rounding"}
    assert found["findings"][0]["difference"].keys() == keys
