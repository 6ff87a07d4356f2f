"""A race: the same reply with a drafter and without, whose steps alternate."""

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from slipstream.app.bench import race as race_module
from slipstream.app.bench import race_events
from slipstream.app.bench.race import race, run_race
from slipstream.app.bench.race_events import RaceEvent, RaceFrame, Racer, RaceRequest, RaceResult, RaceStart, decoded
from slipstream.app.bench.turns import session_of
from slipstream.app.engine import reply as engine_reply
from slipstream.app.engine.process.frames import ProtocolError
from slipstream.app.engine.reply import Reply
from slipstream.app.engine.session import Session
from slipstream.app.library.resolve_model import choose
from slipstream.app.platform.paths import Paths
from slipstream.app.protocol.events import Loaded
from slipstream.app.protocol.requests import Generate, Message, Sampling
from slipstream.app.tui.race import BAD, BOLD, TEXT, RacePicture, picture
from slipstream.models.errors import SlipstreamError
from slipstream.models.types import Evaluation

PROMPT = "Say this twice: the quick brown fox jumps over the lazy dog."
START = RaceStart("mini", "auto", "Tell me a story.", 1, 100, 20.0, "same text")
FRAME = RaceFrame(Racer("The keeper climbed", 60, 1.0), Racer("The keeper", 40, 1.0))


@pytest.fixture(scope="module")
def bundled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Session, Loaded]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLIPSTREAM_HOME", str(tmp_path_factory.mktemp("home")))
        with session_of(choose(Paths.default(), n_ctx=1024)) as opened:
            yield opened


def raced(opened: tuple[Session, Loaded], drafter: str, tokens: int = 60) -> list[RaceEvent]:
    return list(race(*opened, drafter, asked(PROMPT), Sampling(0.8, seed=3), tokens))


def asked(*contents: str) -> list[Message]:
    roles = cycle(("user", "assistant"))
    return [Message(role, content) for role, content in zip(roles, contents, strict=False)]


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

    def slowed(opened: Session, *seconds: float) -> Session:
        evaluate, taken = opened.target.evaluate, cycle(seconds)

        def later(*given: Any) -> Evaluation:
            nonlocal now
            now += next(taken)
            return evaluate(*given)

        monkeypatch.setattr(opened.target, "evaluate", later)
        return opened

    monkeypatch.setattr(engine_reply, "perf_counter", lambda: now)
    monkeypatch.setattr(session, "open_second", lambda: slowed(beside(), 0.25))
    slowed(session, 0.125, 0.0625)
    _, *frames, finish = raced(bundled, "lookup")
    assert isinstance(finish, RaceResult)
    ours, plain = finish.frame.ours, finish.frame.plain
    assert plain.seconds == 0.25 * plain.tokens and plain.noise < 1e-6 < 0.01 < ours.noise < 0.34
    assert ours.seconds <= 0.125 * ours.tokens and ours.tokens == plain.tokens
    for frame in frames:
        assert isinstance(frame, RaceFrame)
        if not frame.ours.over and not frame.plain.over:
            assert abs(frame.ours.seconds - frame.plain.seconds) <= 0.25


def test_the_drafter_warms_up_elsewhere(bundled: tuple[Session, Loaded], monkeypatch: pytest.MonkeyPatch) -> None:
    session, _ = bundled
    replies: list[tuple[str, int]] = []

    def begin(request: Generate, *more: Any) -> Reply:
        replies.append((request.messages[-1].content, request.max_tokens))
        return type(session).begin(session, request, *more)

    monkeypatch.setattr(session, "begin", begin)
    raced(bundled, "lookup", 20)
    assert [prompt == PROMPT for prompt, _ in replies] == [False, True] and replies[0][1] == 128
    monkeypatch.setattr(race_module, "_WARM_UP_SECONDS", 1e-9)
    *_, finish = raced(bundled, "lookup", 20)
    assert isinstance(finish, RaceResult) and finish.frame.ours.over and finish.differs_at is None


def test_a_race_in_a_chat_goes_on_with_it_and_can_be_stopped(bundled: tuple[Session, Loaded]) -> None:
    chat = asked("My cat is called Mia.", "A nice name.", "Tell me a story about her.")
    start, *_, finish = race(*bundled, "lookup", chat, Sampling(0.0), 30)
    assert isinstance(start, RaceStart) and (start.prompt, start.earlier) == (chat[-1].content, 2)
    assert "after 2 messages of this chat" in picture(start, FRAME, None, 80, 24)[1][0]
    *_, alone = race(*bundled, "lookup", chat[-1:], Sampling(0.0), 30)
    assert isinstance(finish, RaceResult) and isinstance(alone, RaceResult)
    assert finish.frame.plain.text != alone.frame.plain.text
    goes_on = iter([False] * 600)
    story = asked("Tell me a story.")
    events = list(race(*bundled, "lookup", story, Sampling(seed=1), 400, lambda: next(goes_on, True)))
    assert isinstance(events[-1], RaceResult) and events[-1].stopped and events[-1].differs_at is None
    with pytest.raises(SlipstreamError, match="nothing to race"):
        raced(bundled, "none")


@pytest.mark.slow
def test_the_process_of_a_race_prints_an_event_a_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SLIPSTREAM_HOME", str(tmp_path))
    load = replace(choose(Paths.default()), n_ctx=32_768)  # a race needs two short contexts only
    request = RaceRequest(load, "lookup", asked("Say this twice: a big red dog."))
    assert run_race(json.dumps(asdict(request))) == 0
    printed = capsys.readouterr()
    start, *_, result = (decoded(json.loads(line)) for line in printed.out.splitlines())
    assert isinstance(start, RaceStart) and (start.drafter, start.prompt) == ("lookup", request.messages[-1].content)
    assert isinstance(result, RaceResult) and not result.stopped and result.differs_at is None
    assert result.frame.ours.text == result.frame.plain.text and not printed.err


def test_events_survive_json_and_have_no_ratio_before_both_have_written_enough() -> None:
    finish = RaceResult(FRAME, True, None, 0.5, 1.5, True)
    for event in (START, FRAME, finish):
        assert decoded(json.loads(json.dumps(race_events.encoded(event)))) == event
    wrongs: list[dict[str, Any]] = [{}, {"frame": {}}, {"bench": {}}]
    for wrong in wrongs:
        with pytest.raises((LookupError, ProtocolError)):
            decoded(wrong)
    assert FRAME.speedup == pytest.approx(1.5) and RaceFrame(FRAME.ours, Racer("The", 29, 1.0)).speedup is None
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
    assert "race, then warming up …" in RacePicture("").render().plain
    assert len({len(lines) for lines in pictures}) == 1 and len(pictures[0]) <= height
    assert all(len(text) <= width for lines in pictures for text, _ in lines)


@pytest.mark.parametrize(
    ("drafter", "seconds", "tokens_per_step", "words"),
    [
        ("eagle3", 2.0, 2.4, ["eagle3 is 1.5x faster here: 2.00 s instead of 3.00 s.", "68 % of guesses right · 2.4 "]),
        ("lookup", 3.25, 1.1, ["lookup loses 0.2 s here: 3.25 s instead of 3.00 s.", "There is little to copy"]),
        ("medusa", 3.0, 1.2, ["Same speed with medusa here: 3.00 s", "Right guesses gave only 1.2 tokens per step"]),
        ("draft", 3.3, 2.1, ["draft loses 0.3 s here", "A step with guesses takes 2.3 times as long. Larger models"]),
        ("auto", 0.3, 2.1, ["Same speed with auto", "A token takes only 5 ms without", "F6 fetches Owl 1B."]),
        ("auto", 3.3, 1.0, ["auto loses 0.3 s here", "Right guesses gave only 1.0 tokens per step"]),
        ("auto", 3.0, 1.0, ["Same speed with auto here", "auto guesses only where that should pay"]),
    ],
)
def test_a_race_ends_in_one_sentence(drafter: str, seconds: float, tokens_per_step: float, words: list[str]) -> None:
    plain = Racer("The", 60, 0.3 if seconds < 1 else 3.0, True)
    result = RaceResult(RaceFrame(Racer("The", 60, seconds, True), plain), False, None, 0.68, tokens_per_step)
    shown = "\n".join(
        text for text, _ in picture(replace(START, drafter=drafter), result.frame, result, 90, 22, "F6 fetches Owl 1B.")
    )
    assert all(each in shown for each in words) and "Text identical ✓" in shown and "cut at" not in shown


def test_a_reply_in_which_nothing_was_guessed_has_no_ratio() -> None:
    lane = Racer("The keeper climbed", 100, 0.17, True)
    result = RaceResult(RaceFrame(lane, lane), False, 11, None, 1.0)
    start = replace(START, promise="same distribution")
    words = "\n".join(text for text, _ in picture(start, result.frame, result, 78, 22, "Ctrl-L lists larger models."))
    assert "auto guessed nothing here: a difference is chance." in words
    assert "x faster" not in words and "same speed" not in words
    assert "A token takes only 2 ms without guesses." in words and "Ctrl-L lists" in words
    assert "The texts part at token 12: rounding turned a near tie. Both are the model's." in words
    assert "cut at 100 tokens" in words and "shown 3x slower" in picture(START, FRAME, None, 80, 22)[0][0]


def test_at_the_end_the_bars_are_the_seconds_and_a_lost_race_is_not_drawn_as_won() -> None:
    frame = RaceFrame(Racer("The", 60, 1.0, True), Racer("The", 60, 2.0, True))
    lines = picture(START, frame, RaceResult(frame, False, None, 0.5, 2.0), 80, 22)
    ours, plain = (text.count("█") for text, kind in lines if "█" in text)
    assert plain == 2 * ours or abs(plain - 2 * ours) == 1
    assert ["(bars: seconds)" in text for text, _ in lines if "█" in text] == [False, True]
    running = [text.count("█") for text, _ in picture(START, frame, None, 80, 22) if "█" in text]
    assert running[0] == running[1]
    promised = picture(START, frame, RaceResult(frame, False, 3, 0.5, 2.0), 80, 22)
    assert "The texts part at token 4: against the promise." in [text for text, _ in promised]
    lost = RaceFrame(Racer("The", 60, 2.0, True), Racer("The", 60, 1.0, True))
    lines = picture(START, lost, RaceResult(lost, False, None, 0.2, 1.1), 80, 22)
    assert {kind for text, kind in lines if "0.5x as fast" in text or "loses 1.0 s" in text} == {BAD}
    unsure = RaceFrame(Racer("The", 60, 2.2, True, 0.04), Racer("The", 60, 2.0, True, 0.04))
    lines = picture(START, unsure, RaceResult(unsure, False, None, 0.2, 1.1), 80, 22)
    assert [kind for text, kind in lines if text.endswith("same speed")] == [TEXT]
    assert ("Same speed with auto here: 2.20 s instead of 2.00 s, which may be chance.", BOLD) in lines


def test_seconds_are_compared_only_where_both_wrote_as_many_tokens() -> None:
    def said(ours: Racer, plain: Racer) -> str:
        frame = RaceFrame(ours, plain)
        return picture(START, frame, RaceResult(frame, False, None, 0.5, 2.0), 80, 22)[-5][0]

    assert said(Racer("The", 60, 2.0), Racer("The", 61, 3.0)) == "auto is 1.5x faster here: 30 tok/s instead of 20."
    assert said(Racer("The", 30, 2.0), Racer("The", 60, 6.0)) == "auto is 1.5x faster here: 15.0 tok/s instead of 10.0."
