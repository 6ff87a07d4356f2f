"""The strip says in at most eight words why nothing is guessed."""

from __future__ import annotations

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
from slipstream.app.tui.chat.status_bar import StatusBar

SPEED = Speed(44.0, 0.5, 1.5, 40.0, drafted=20, accepted=10, steps=40, tokens=60)
PLAIN = Speed(800.0, None, 1.0, 800.0, steps=60, tokens=60)


def choice(drafter: str, plain_ms: float = 25.0, trial: bool = False) -> Choice:
    return Choice(drafter, 0 if drafter == "none" else 6, 2.9, 4.1, plain_ms, trial)


def stepped(drafter: str, speed: Speed, chosen: Choice | None) -> Stepped:
    return Stepped(1, [], [5], drafter, 6, 3, 12.0, speed, 4.1, chosen)


@pytest.mark.parametrize(
    ("drafter", "steps", "words"),
    [
        ("auto", [stepped("lookup", SPEED, choice("lookup"))], "lookup is guessing"),
        ("auto", [stepped("lookup", SPEED, choice("lookup", trial=True))], "trying lookup"),
        ("auto", [stepped("none", SPEED, choice("none"))], "not guessing: it would not be faster now"),
        ("auto", [stepped("none", PLAIN, choice("none", 1.2))], "not guessing: a token takes only 1 ms"),
        ("auto", [stepped("lookup", SPEED, choice("lookup")), stepped("none", SPEED, None)], "lookup is guessing"),
        ("lookup", [stepped("none", PLAIN, None)], "lookup found nothing to guess yet"),
        ("none", [stepped("none", PLAIN, None)], "not guessing: no drafter is chosen (Ctrl-D)"),
    ],
)
def test_the_strip_says_who_guesses_or_why_not(
    monkeypatch: pytest.MonkeyPatch, drafter: str, steps: list[Stepped], words: str
) -> None:
    monkeypatch.setattr(StatusBar, "size", Size(80, 3))
    strip = StatusBar(lambda: drafter)
    strip.promise("same text")
    strip.begin(drafter)
    for step in steps:
        strip.step(step)
    about = str(strip.render()).splitlines()[2]
    assert about.startswith(f" {words}  ") and about.endswith("text identical ✓")
    assert len(words.split()) <= 8


def quick(generate: Generate, text: str) -> Iterator[Stepped]:
    """A reply of a model whose tokens are too short to gain: the autopilot guesses nothing."""
    words = text.split(" ")
    for at, word in enumerate(words, 1):
        speed = Speed(800.0, None, 1.0, 800.0, steps=at, tokens=at)
        yield Stepped(
            generate.request, [Piece(word, "plain")], [at], "none", 0, 0, 1.2, speed, 1.0, choice("none", 1.2)
        )


@pytest.mark.parametrize("bundled", [True, False])
async def test_the_bundled_model_hints_once_at_larger_ones(
    open_chat: Open, monkeypatch: pytest.MonkeyPatch, bundled: bool
) -> None:
    hint = "Guessing gains more on a larger model; Ctrl-L lists some"
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


def test_a_busy_machine_is_said_to_be_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StatusBar, "size", Size(80, 3))
    strip = StatusBar(lambda: "auto")
    strip.begin("auto")
    strip.step(stepped("lookup", Speed(44.0, tokens=60, busy=True), None))
    first, second, _ = str(strip.render()).splitlines()
    assert first.endswith("measuring") and second.endswith("machine is busy")
