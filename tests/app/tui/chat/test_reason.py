"""The strip says in at most eight words why nothing is guessed."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.app.tui.conftest import Open
from textual.geometry import Size

from slipstream.app.library.resolve_model import choose
from slipstream.app.platform.paths import Paths
from slipstream.app.protocol.events import Choice, Piece, Stepped
from slipstream.app.protocol.requests import Generate
from slipstream.app.speed import Speed
from slipstream.app.tui.chat.bars import StatusBar

SPEED = Speed(44.0, 0.5, 1.5, 40.0, drafted=20, accepted=10, steps=40, tokens=60)
PLAIN = Speed(800.0, None, 1.0, 800.0, steps=60, tokens=60)
STEADY = Speed(40.0, None, 1.0, 40.0, steps=60, tokens=60)


def choice(drafter: str, plain_ms: float = 25.0, trial: bool = False, check: float = 1.1) -> Choice:
    return Choice(drafter, 0 if drafter == "none" else 6, 2.9, 4.1, plain_ms, trial, check)


def stepped(drafter: str, speed: Speed, chosen: Choice | None) -> Stepped:
    return Stepped(1, [], [5], drafter, 6, 3, 12.0, speed, 4.1, chosen)


@pytest.mark.parametrize(
    ("drafter", "steps", "words"),
    [
        ("auto", [stepped("lookup", SPEED, choice("lookup"))], "lookup is guessing"),
        ("auto", [stepped("lookup", SPEED, choice("lookup", trial=True))], "trying lookup"),
        ("auto", [stepped("none", SPEED, choice("none"))], "not guessing: no drafter is right often enough now"),
        (
            "auto",
            [stepped("none", STEADY, choice("none", check=1.86))],
            "not guessing: checking 2 tokens costs as much as writing 1.9",
        ),
        (
            "auto",
            [stepped("none", STEADY, choice("none", check=11.9))],  # measured on a busy machine
            "not guessing: checking 2 tokens costs as much as writing 2",
        ),
        ("auto", [stepped("none", PLAIN, choice("none", 1.2))], "not guessing: a token takes only 1 ms"),
        ("auto", [stepped("lookup", SPEED, choice("lookup")), stepped("none", SPEED, None)], "lookup is guessing"),
        ("lookup", [stepped("none", PLAIN, None)], "lookup found nothing to guess yet"),
        ("none", [stepped("none", PLAIN, None)], "not guessing: no drafter is chosen (Ctrl-D)"),
    ],
)
def test_the_strip_says_why(monkeypatch: pytest.MonkeyPatch, drafter: str, steps: list[Stepped], words: str) -> None:
    monkeypatch.setattr(StatusBar, "size", Size(80, 3))
    strip = StatusBar(lambda: drafter)
    strip.promise("same text")
    strip.begin(drafter)
    for step in steps:
        strip.step(step)
    first, second, about = str(strip.render()).splitlines()
    drafted = steps[-1].speed.drafted
    assert (about if drafted else second).startswith(f" {words}") and about.endswith("text identical ✓")
    assert ("with drafter" in first and "without" in second) == bool(drafted)


def quick(generate: Generate, text: str) -> Iterator[Stepped]:
    """A reply of a model whose tokens are too short to gain: the autopilot guesses nothing."""
    words = text.split(" ")
    for at, word in enumerate(words, 1):
        speed = Speed(800.0, None, 1.0, 800.0, steps=at, tokens=at)
        yield Stepped(
            generate.request, [Piece(word, "plain")], [at], "none", 0, 0, 1.2, speed, 1.0, choice("none", 1.2)
        )


@pytest.mark.parametrize("bundled", [True, False])
async def test_the_bundled_one_hints_at_others(open_chat: Open, monkeypatch: pytest.MonkeyPatch, bundled: bool) -> None:
    hint = "Guessing gains more on a larger model. Ctrl-L lists larger ones."
    monkeypatch.setattr("tests.app.tui.scripted.play", quick)
    async with open_chat(drafter="auto") as chat:
        if bundled:
            chat.screen.model.load = replace(choose(Paths.default()), drafter="auto")
        for text in ("one", "two"):
            await chat.say(text)
            assert "not guessing: a token takes only 1 ms" in chat.shown()
        assert chat.toasts().count(hint) == bundled


async def test_a_model_that_gains_does_not_hint_at_others(open_chat: Open) -> None:
    async with open_chat(drafter="auto") as chat:
        chat.screen.model.load = replace(choose(Paths.default()), drafter="auto")
        await chat.say("one")
        assert not chat.toasts()


@pytest.mark.parametrize(
    ("speed", "first", "second"),
    [
        (Speed(44.0, tokens=60, drafted=9, busy=True), "44 tok/s  measuring", "– tok/s  machine is busy"),
        (Speed(44.0, tokens=60, drafted=9, unsteady_tok_per_s=40.0), "44 tok/s  measuring", "40 tok/s  unsteady"),
        (replace(SPEED, noise=0.04), "44 tok/s  1.1x faster", "40 tok/s  measured here"),
        (replace(SPEED, noise=0.06), "44 tok/s  same speed", "40 tok/s  measured here"),  # within its own noise
        (replace(STEADY, busy=True), "40 tok/s  machine is busy", ""),
    ],
)
def test_load_and_noise_are_said_once(monkeypatch: pytest.MonkeyPatch, speed: Speed, first: str, second: str) -> None:
    monkeypatch.setattr(StatusBar, "size", Size(80, 3))
    strip = StatusBar(lambda: "auto")
    strip.begin("auto")
    strip.step(stepped("lookup", speed, None))
    lines = [line.rstrip() for line in str(strip.render()).splitlines()]
    assert lines[0].endswith(first) and lines[1].endswith(second) and len(lines) == 3
