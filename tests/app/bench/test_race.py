"""A race: the same reply with a drafter and without, whose steps alternate."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from slipstream.app.bench import race as race_module
from slipstream.app.bench.race import race, run_race
from slipstream.app.bench.race_events import (
    RaceEvent,
    RaceFrame,
    Racer,
    RaceRequest,
    RaceResult,
    RaceStart,
    decoded,
    encoded,
)
from slipstream.app.bench.turns import session_of
from slipstream.app.engine import reply as engine_reply
from slipstream.app.engine.process.frames import ProtocolError
from slipstream.app.engine.session import Session
from slipstream.app.library.resolve_model import choose
from slipstream.app.platform.paths import Paths
from slipstream.app.protocol.events import Loaded
from slipstream.app.protocol.requests import Sampling
from slipstream.app.tui.race import picture
from slipstream.models.errors import SlipstreamError
from slipstream.models.types import Evaluation

START = RaceStart("mini", "auto", "Tell me a story.", 1, 100, 20.0, "same text")
FRAME = RaceFrame(Racer("The keeper climbed", 60, 1.0), Racer("The keeper", 40, 1.0))


@pytest.fixture(scope="module")
def bundled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Session, Loaded]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLIPSTREAM_HOME", str(tmp_path_factory.mktemp("home")))
        with session_of(choose(Paths.default(), n_ctx=1024)) as opened:
            yield opened


def raced(opened: tuple[Session, Loaded], drafter: str, tokens: int = 60) -> list[RaceEvent]:
    prompt = "Say this twice: the quick brown fox jumps over the lazy dog."
    return list(race(*opened, drafter, prompt, Sampling(0.8, seed=3), tokens))


@pytest.mark.slow
@pytest.mark.parametrize("drafter", ["auto", "lookup", "draft"])
def test_both_write_the_same_text(bundled: tuple[Session, Loaded], drafter: str) -> None:
    start, *frames, finish = raced(bundled, drafter)
    assert isinstance(start, RaceStart) and start.drafter == drafter and start.plain_ms > 0
    assert isinstance(finish, RaceResult) and not finish.stopped and finish.differs_at is None
    ours, plain = finish.frame.ours, finish.frame.plain
    assert ours.text == plain.text and ours.tokens == plain.tokens and ours.over and plain.over
    assert len(frames) > 1 and all(isinstance(frame, RaceFrame) for frame in frames)


def test_each_clock_counts_its_own_steps_alone_and_the_one_behind_goes_next(
    bundled: tuple[Session, Loaded], monkeypatch: pytest.MonkeyPatch
) -> None:
    session, _ = bundled
    assert session.open_second
    beside, now = session.open_second, 0.0

    def slowed(opened: Session, seconds: float) -> Session:
        evaluate = opened.target.evaluate

        def later(*given: Any) -> Evaluation:
            nonlocal now
            now += seconds
            return evaluate(*given)

        monkeypatch.setattr(opened.target, "evaluate", later)
        return opened

    monkeypatch.setattr(engine_reply, "perf_counter", lambda: now)
    monkeypatch.setattr(session, "open_second", lambda: slowed(beside(), 0.25))
    slowed(session, 0.125)
    _, *frames, finish = raced(bundled, "lookup")
    assert isinstance(finish, RaceResult)
    ours, plain = finish.frame.ours, finish.frame.plain
    assert plain.seconds == 0.25 * plain.tokens
    assert ours.seconds <= 0.125 * ours.tokens and ours.tokens == plain.tokens
    for frame in frames:
        assert isinstance(frame, RaceFrame)
        if not frame.ours.over and not frame.plain.over:
            assert abs(frame.ours.seconds - frame.plain.seconds) <= 0.25


def test_the_drafter_warms_up_on_another_reply_for_a_while(
    bundled: tuple[Session, Loaded], monkeypatch: pytest.MonkeyPatch
) -> None:
    start, *_ = raced(bundled, "lookup", 20)
    assert isinstance(start, RaceStart) and 16 < start.warm_up <= 128
    assert f"after {start.warm_up} other tokens" in picture(start, FRAME, None, 80, 24)[0][0]
    monkeypatch.setattr(race_module, "_WARM_UP_SECONDS", 1e-9)
    start, *_, finish = raced(bundled, "lookup", 20)
    assert isinstance(start, RaceStart) and 1 <= start.warm_up <= 8  # a step
    assert isinstance(finish, RaceResult) and finish.frame.ours.over and finish.differs_at is None


def test_a_race_can_be_stopped(bundled: tuple[Session, Loaded]) -> None:
    asked = iter([False] * 600)
    events = list(race(*bundled, "lookup", "Tell me a story.", Sampling(seed=1), 400, lambda: next(asked, True)))
    assert isinstance(events[-1], RaceResult) and events[-1].stopped
    assert events[-1].differs_at is None


def test_without_a_drafter_there_is_no_race(bundled: tuple[Session, Loaded]) -> None:
    with pytest.raises(SlipstreamError, match="nothing to race"):
        raced(bundled, "none")


@pytest.mark.slow
def test_the_process_of_a_race_prints_an_event_a_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SLIPSTREAM_HOME", str(tmp_path))
    load = replace(choose(Paths.default()), n_ctx=32_768)  # a race needs two short contexts only
    request = RaceRequest(load, "lookup", "Say this twice: a big red dog.")
    assert run_race(json.dumps(asdict(request))) == 0
    printed = capsys.readouterr()
    start, *_, result = (decoded(json.loads(line)) for line in printed.out.splitlines())
    assert isinstance(start, RaceStart) and (start.drafter, start.prompt) == ("lookup", request.prompt)
    assert isinstance(result, RaceResult) and not result.stopped and result.differs_at is None
    assert result.frame.ours.text == result.frame.plain.text and not printed.err


def test_events_survive_json() -> None:
    finish = RaceResult(FRAME, True, None, 0.5, 1.5, True)
    for event in (START, FRAME, finish):
        assert decoded(json.loads(json.dumps(encoded(event)))) == event
    wrongs: list[dict[str, Any]] = [{}, {"frame": {}}, {"bench": {}}]
    for wrong in wrongs:
        with pytest.raises((LookupError, ProtocolError)):
            decoded(wrong)


def test_no_ratio_before_both_have_written_enough() -> None:
    assert FRAME.speedup == pytest.approx(1.5)
    assert RaceFrame(FRAME.ours, Racer("The", 29, 1.0)).speedup is None
    assert RaceFrame(Racer("The", 29, 1.0), FRAME.plain).speedup is None


@pytest.mark.parametrize("size", [(30, 10), (80, 22), (140, 38)])
def test_a_picture_has_always_as_many_lines(size: tuple[int, int]) -> None:
    width, height = size
    long = Racer("word " * 400, 90, 2.0)
    done = RaceResult(RaceFrame(long, long), False, None, 0.7, 2.1)
    pictures = [
        picture(START, RaceFrame(Racer(), Racer()), None, width, height),
        picture(START, FRAME, None, width, height),
        picture(START, done.frame, done, width, height),
    ]
    assert len({len(lines) for lines in pictures}) == 1 and len(pictures[0]) <= height
    assert all(len(text) <= width for lines in pictures for text, _ in lines)


def test_a_picture_says_what_came_of_it() -> None:
    finish = RaceResult(FRAME, False, None, 0.68, 2.4)
    words = "\n".join(text for text, _ in picture(START, FRAME, finish, 80, 22))
    assert "1.5x faster: 60 tok/s instead of 40" in words and "Text identical ✓" in words
    assert "68 % right · 2.4 tokens per step" in words
    differs = RaceResult(FRAME, False, 11, 0.68, 2.4)
    assert "differ from token 12 on" in "\n".join(text for text, _ in picture(START, FRAME, differs, 80, 22))
    quick = RaceStart("mini", "auto", "Tell me.", 1, 100, 4.0, "same text")
    lane = Racer("The keeper climbed", 44, 0.074)
    even = RaceResult(RaceFrame(lane, lane), False, None, None, 1.0)
    words = "\n".join(text for text, _ in picture(quick, even.frame, even, 80, 22))
    assert "shown 15x slower" in words and "44 tokens · 0.07 s · 595 tok/s" in words
    assert "needs only 1.7 ms a token: a larger one gains more" in words  # measured in the race, not in the warm-up
    slow = RaceResult(RaceFrame(FRAME.ours, FRAME.ours), False, None, None, 1.0)
    assert "needs only" not in "\n".join(text for text, _ in picture(quick, slow.frame, slow, 80, 22))


def test_seconds_are_compared_only_where_both_wrote_as_many_tokens() -> None:
    def said(ours: Racer, plain: Racer) -> str:
        frame = RaceFrame(ours, plain)
        return picture(START, frame, RaceResult(frame, False, None, 0.5, 2.0), 80, 22)[-3][0]

    assert said(Racer("The", 60, 2.0), Racer("The", 60, 3.0)) == "1.5x faster: 2.00 s instead of 3.00 s"
    assert said(Racer("The", 60, 2.0), Racer("The", 61, 3.0)) == "1.5x faster: 30 tok/s instead of 20"
    assert said(Racer("The", 30, 2.0), Racer("The", 60, 6.0)) == "1.5x faster: 15.0 tok/s instead of 10.0"


def test_a_race_that_was_lost_is_not_drawn_as_won() -> None:
    lost = RaceFrame(Racer("The", 60, 2.0, True), Racer("The", 60, 1.0, True))
    kinds = {
        kind
        for text, kind in picture(START, lost, RaceResult(lost, False, None, 0.2, 1.1), 80, 22)
        if "0.5x as fast" in text
    }
    assert kinds == {"bad"}
