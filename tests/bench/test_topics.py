"""A replayed change of topic: the text is the script's, and the figures say when the autopilot chose what was best."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.app.engine.forced import Forced
from tests.bench.__main__ import bench
from tests.bench.replay import Replayed, replay, replay_with
from tests.bench.test_command import TINY, options
from tests.bench.topic_figures import topic_figures
from tests.bench.topic_tables import topics_text
from tests.bench.topics import TopicReport, topic_text
from tests.models.fake_target import FakeTarget

from slipstream.app.bench.turns import session_of
from slipstream.app.engine.session import Session
from slipstream.app.library.resolve_model import choose
from slipstream.app.platform.paths import HOME_VARIABLE, Paths
from slipstream.drafters.autopilot.cost_model import CostModel
from slipstream.drafters.autopilot.policy import Autopilot
from slipstream.drafters.base import NO_DRAFT, Draft, Drafter, Plain, ShouldExtend
from slipstream.drafters.prompt_lookup import PromptLookup
from slipstream.models.errors import ContextFullError, UsageError
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import History, Token

PROMPT = [1, 2, 3, 4]
SCRIPT = [*range(5, 21)]


def committed(target: FakeTarget) -> list[Token]:
    return list(target.tokens)


def test_the_text_is_the_scripts_whatever_the_target_would_say() -> None:
    target = FakeTarget()
    steps = replay(target, Plain(), PROMPT, SCRIPT)
    assert committed(target) == [*PROMPT, *SCRIPT[:-1]]  # the last token is never evaluated
    assert [step.start for step in steps] == list(range(len(SCRIPT)))
    assert {step.tokens for step in steps} == {1} and {step.choice for step in steps} == {"none"}
    assert all(step.milliseconds > 0 for step in steps)


@pytest.mark.parametrize("right", [0.0, 0.5, 1.0])
def test_a_draft_is_right_where_it_guesses_the_script(right: float) -> None:
    target = FakeTarget()
    steps = replay(target, Forced(SCRIPT, target.abilities, right, depth=3), PROMPT, SCRIPT)
    assert committed(target)[: len(PROMPT) + len(SCRIPT) - 1] == [*PROMPT, *SCRIPT[:-1]]
    assert sum(step.tokens for step in steps) == len(SCRIPT)
    assert [step.start for step in steps] == [sum(s.tokens for s in steps[:at]) for at in range(len(steps))]
    sizes = [step.tokens for step in steps]
    assert {0.0: max(sizes) == 1, 0.5: max(sizes) > min(sizes), 1.0: sizes == [4] * 4}[right]
    assert {step.choice for step in steps[:-1]} == {"forced"}


def test_a_copied_stretch_is_drafted_from_the_prompt() -> None:
    document = [*range(21, 33)]
    target = FakeTarget()
    script = [*SCRIPT, *document]
    steps = replay(target, PromptLookup(), [*PROMPT, *document, 40], script)
    before = [step for step in steps if step.start < len(SCRIPT)]
    after = [step for step in steps if step.start >= len(SCRIPT)]
    assert len(before) == len(SCRIPT) and len(after) < len(document)
    assert "lookup" in {step.choice for step in after}


class Curious(Drafter):
    """Asks how deep an unlikely draft may be."""

    deepest = 0

    def draft(self, history: History, should_extend: ShouldExtend, sampler: Sampler) -> Draft:
        self.deepest = max(self.deepest, *(depth for depth in range(16) if not depth or should_extend(0.01, depth)))
        return NO_DRAFT


def test_the_autopilot_decides_itself_what_pays_as_in_a_chat() -> None:
    pilot = Autopilot({}, CostModel({1: 10.0, 64: 20.0}, {}, 0, 64), FakeTarget().abilities)
    drafters = Curious(), Curious()
    for drafter, inside in zip(drafters, (None, pilot), strict=True):
        replay(FakeTarget(), drafter, PROMPT, SCRIPT, pilot=inside)
    assert [drafter.deepest for drafter in drafters] == [0, 15]


def test_a_text_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ContextFullError, match=r"has 20 tokens, but the context holds 19"):
        replay(FakeTarget(n_ctx=19), Plain(), PROMPT, SCRIPT)


def steps(*made: tuple[int, float, str | None]) -> list[Replayed]:
    """Steps of so many tokens and milliseconds each."""
    found, start = list[Replayed](), 0
    for tokens, milliseconds, choice in made:
        found.append(Replayed(start, tokens, milliseconds, choice))
        start += tokens
    return found


PLAYED = {
    "none": [steps(*[(1, 10.0, "none")] * 8)] * 2,
    "lookup": [steps(*[(1, 11.0, "none")] * 4, *[(2, 12.0, "lookup")] * 2)] * 2,
    "auto": [
        steps(*[(1, 10.5, "none")] * 4, (1, 10.0, "none"), (1, 13.0, None), (2, 12.5, "lookup")),
        steps((1, 10.0, "draft"), *[(1, 10.5, "none")] * 3, *[(1, 10.0, "none")] * 4),
    ],
}


def test_each_stretch_has_its_best_choice_and_the_steps_until_auto_made_it() -> None:
    prose, quote = topic_figures([("prose", 4), ("quote", 4)], PLAYED)
    assert (prose.best, quote.best) == ("none", "lookup")
    assert prose.rates == pytest.approx({"none": 100.0, "lookup": 1000 / 11})
    assert quote.rates["lookup"] == pytest.approx(4000 / 24)
    assert "auto" not in prose.rates  # it is not a fixed choice
    assert prose.steps_until == [0, 1]
    assert quote.steps_until == [2, None]  # what was only tried is no choice
    assert prose.share == 7 / 8 and quote.share == 1 / 7
    assert quote.auto_rate == pytest.approx((4000 / 35.5 + 4000 / 40) / 2)


def test_choices_that_timing_tells_apart_no_better_count_as_best() -> None:
    close = {**PLAYED, "recycle": [steps(*[(1, 10.2, "recycle")] * 8)] * 2}
    prose, _ = topic_figures([("prose", 4), ("quote", 4)], close)
    assert prose.best == "none" and prose.as_good == ["none", "recycle"]


def test_a_step_that_runs_through_a_stretch_belongs_to_the_one_before() -> None:
    played = {"none": [steps(*[(1, 10.0, "none")] * 6)], "auto": [steps((5, 20.0, "lookup"), (1, 10.0, "none"))]}
    first, second, third = topic_figures([("a", 2), ("b", 2), ("c", 2)], played)
    assert first.auto_rate == 250 and second.auto_rate == 0 and third.auto_rate == 100
    assert second.steps_until == [None] and second.share == 0


def test_the_tables_name_the_changes() -> None:
    report = TopicReport("mini", 2, topic_figures([("prose", 4), ("quote", 4)], PLAYED), {"mtp": "it has none"})
    text = topics_text(report)
    assert "| quote   |      4 | lookup |" in text
    assert " 2 never |" in text and "- Left out: `mtp`, it has none." in text


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    home = Paths.default({HOME_VARIABLE: str(tmp_path_factory.mktemp("home"))})
    with session_of(choose(home)) as (opened, _):
        yield opened


def holds(tokens: Sequence[Token], part: Sequence[Token]) -> bool:
    return any(list(tokens[at : at + len(part)]) == list(part) for at in range(len(tokens)))


@pytest.mark.slow
def test_the_text_quotes_a_document_that_is_in_the_prompt_and_fits_the_bundled_model(session: Session) -> None:
    prompt, segments = topic_text(session, 160)
    assert [(segment.name, len(segment.tokens)) for segment in segments] == [
        ("prose", 160),
        ("quote", 160),
        ("code", 160),
    ]
    prose, quote, _ = (segment.tokens for segment in segments)
    assert holds(prompt, quote[-100:]) and not holds(prompt, prose[:8])
    assert len(prompt) + 3 * 160 <= session.target.abilities.n_ctx


@pytest.mark.slow
def test_the_real_target_writes_the_script_with_every_drafter(session: Session) -> None:
    prompt, segments = topic_text(session, 20)
    text = [token for segment in segments for token in segment.tokens]
    for name in ("none", "lookup", "draft", "recycle", "auto"):
        played = replay_with(session, name, prompt, text)
        assert sum(step.tokens for step in played) == len(text)
        assert list(session.target.tokens) == [*prompt, *text[:-1]]


@pytest.mark.slow
def test_the_part_runs_when_it_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    assert bench(options(tmp_path / "f.json", "topics", drafters="auto,lookup", tokens=8), TINY) == 0
    report = json.loads((tmp_path / "f.json").read_text())["topics"]
    assert [row["name"] for row in report["segments"]] == ["prose", "quote", "code"]
    for row in report["segments"]:
        assert row["tokens"] == 8 and row["rates"].keys() == {"none", "lookup"} and len(row["steps_until"]) == 1
        assert row["best"] in row["as_good"] and 0 <= row["share"] <= 1
    assert "| quote   |" in capsys.readouterr().out
    with pytest.raises(UsageError, match="watches the autopilot"):
        bench(options(None, "topics", drafters="lookup", tokens=8), TINY)
