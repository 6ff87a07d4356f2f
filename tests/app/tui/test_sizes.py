"""Small screens, no colours, a terminal that changes under the chat, and the keys at the bottom."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
from tests.app.terminal import Terminal
from tests.app.tui.conftest import Open
from tests.app.tui.driver import Driver
from tests.app.tui.endings import Chat
from tests.app.tui.pictures import drawn
from tests.app.tui.scripted import LOADED, Script, ScriptedEngine
from textual.color import Color
from textual.geometry import Size
from textual.theme import Theme
from textual.widgets._footer import FooterKey

from slipstream.app.protocol.events import Piece
from slipstream.app.speed import Speed
from slipstream.app.tui.chat.authorship import BONUS, DRAFTERS, RECOVERED, SPARE, legend, style_of
from slipstream.app.tui.chat.bars import StatusBar
from slipstream.app.tui.keys import KeyBar
from slipstream.app.tui.settings.apply_settings import DARK, LIGHT
from slipstream.drafters.registry import METHODS

TEXT = (
    "The sea is **wide**.\n\n```python\nprint('a line of code that is longer than forty characters')\n```\n\n"
    "| a | b |\n|---|---|\n| c | d |\n\n- one\n"
)
SCREENS = {
    "chat": (), "colours": ("f3",), "drafts": ("f4",), "chats": ("ctrl+o",), "drafters": ("ctrl+d",),
    "models": ("ctrl+l",), "bench": ("f8",), "settings": ("f9",), "help": ("f1",), "recall": ("ctrl+r",),
    "palette": ("alt+p",), "delete": ("ctrl+o", "delete"), "text": (*"some words", "ctrl+j", *"more"),
    "commands": ("/",), "message": ("ctrl+up",), "theme": (*"/theme", "enter"), "system": (*"/system", "enter"),
}  # fmt: skip
SMALL = [(1, 1), (1, 6), (3, 6), (6, 1), (12, 1), (12, 6)]
EDGE = [(20, 5), (21, 12), (40, 5)]


async def test_the_smallest_terminal_shows_everything_that_matters(open_chat: Open) -> None:
    async with open_chat(Script(TEXT, hold=5), Script(TEXT), size=(40, 12)) as chat:
        assert "See it guess: Tell me a story" in chat.shown()
        await chat.begin("x", 5)
        chat.engine.go()
        await chat.until(chat.idle)
        lines = chat.shown().splitlines()
        assert len(lines) == 12
        assert {len(line) for line in lines} == {40}
        assert "tok/s" in lines[-2] and "tok/s · draft" in lines[-2]
        assert chat.screen.transcript.size.height >= 4
        await chat.press("f3")
        assert "corrected" in chat.shown()
        await chat.press("f1", "escape", "ctrl+o", "ctrl+d", "escape", "escape")
        assert chat.app.is_running


async def test_without_colours_weight_tells_pieces_apart(open_chat: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with open_chat(Script("The sea is wide and blue, and it is never quite still.")) as chat:
        await chat.say("x")
        await chat.press("f2")
        await chat.say("y")
        await chat.press("f3")
        looks = set()
        for strip in drawn(chat.app.screen):
            for segment in strip:
                if segment.style and segment.style.color:
                    red, green, blue = segment.style.color.get_truecolor()
                    assert red == green == blue
                if segment.text.strip() in ("guessed: draft", "lookup", "corrected by the model", "extra by it"):
                    assert segment.style
                    looks.add((segment.style.bold, segment.style.italic, segment.style.underline))
        assert len(looks) == 4


@pytest.mark.parametrize("width", range(1, 160, 7))
def test_the_legend_fits(width: int) -> None:
    for drafters in ((), ("medusa", "lookup"), tuple(DRAFTERS)):
        shown = legend(width, drafters)
        assert shown.cell_length <= max(width, 42)
        assert "extra" in shown.plain and (not drafters or drafters[-1] in shown.plain)


def test_every_drafter_has_a_style_of_its_own() -> None:
    methods = {name for name in METHODS if name != "none"}
    assert set(DRAFTERS) <= methods
    assert len(methods - set(DRAFTERS)) <= 1, "only one drafter can have the spare style; add the others to DRAFTERS"
    looks = {style_of(Piece("x", "accepted", name)) for name in (*DRAFTERS, "a new one")}
    assert len(looks | {style_of(Piece("x", "recovered")), style_of(Piece("x", "bonus")), ""}) == len(DRAFTERS) + 4


@pytest.mark.parametrize("theme", [DARK, LIGHT])
def test_no_colour_is_hard_to_read(theme: Theme) -> None:
    """At least 3:1 against the page, as WCAG 2.1 asks of large text and of what carries a meaning."""
    page = Color.parse(str(theme.background))
    for style in (*DRAFTERS.values(), SPARE, RECOVERED, BONUS):
        words = style.split()
        share = float(words.pop().rstrip("%")) / 100 if style.endswith("%") else 1.0
        name = words[-1]
        colour = page.blend(Color.parse(str(getattr(theme, name[1:])) if name.startswith("$") else name), share)
        light, dark = sorted((_luminance(page), _luminance(colour)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 3, style


def _luminance(colour: Color) -> float:
    parts = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in colour.normalized]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


async def test_neither_height_nor_columns_of_the_strip_change_while_a_reply_is_written(open_chat: Open) -> None:
    async with open_chat(Script("word " * 90, hold=20)) as chat:
        strip, sizes, columns = chat.screen.status, set(), list[tuple[int, ...]]()

        def look() -> None:
            first, _, third = str(strip.render()).splitlines()
            sizes.add((strip.region, chat.screen.transcript.region))
            if strip.speed.tokens:  # the promise stands there from the first token on
                columns.append((first.index(" tok/s"), third.index("text identical")))

        look()
        await chat.say("x", wait=False)
        await chat.until(lambda: strip.speed.tokens > 0)
        look()
        chat.engine.go()
        await chat.until(chat.idle)
        look()
        assert len(sizes) == 1 and len(columns) == 2 and len(set(columns)) == 1
        first, second, third = str(strip.render()).splitlines()
        assert "1.7x faster" in first and "measured here" in second and "tokens per step" in third
        assert first.count("█") == pytest.approx(1.7 * second.count("█"), abs=1.5)


@pytest.mark.parametrize("size", [(40, 1), (60, 1), (60, 3), (80, 3), (100, 4), (140, 3), (200, 4)])
@pytest.mark.parametrize("drafter", ["none", "draft", "a-drafter-with-a-very-long-name"])
def test_the_strip_never_spills(monkeypatch: pytest.MonkeyPatch, size: tuple[int, int], drafter: str) -> None:
    monkeypatch.setattr(StatusBar, "size", Size(*size))
    strip = StatusBar(lambda: "lookup")
    strip.begin(drafter)
    strip.idle()
    strip.promise("same distribution")
    strip.speed = Speed(12345.6, 1.0, 12.34, 10.04, 9, 9, 9, 9)
    strip.explain(size[1] == 4)
    lines = str(strip.render()).splitlines()
    assert len(lines) == size[1]
    assert all(len(line.rstrip()) <= size[0] and "…" not in line for line in lines)
    assert ("12,345.6 tok/s" if len(lines) > 1 else "12,346 tok/s") in lines[0]


def bottom(chat: Driver) -> str:
    return chat.shown().splitlines()[-1]


def whole(chat: Driver) -> bool:
    bar = chat.app.screen.query_one(KeyBar)
    shown = [f"{key.key_display} {key.description}" for key in bar.query(FooterKey)]
    return bool(shown) and bottom(chat).split() == " ".join(shown).split()


@pytest.mark.parametrize("width", [40, 60, 80, 100, 140])
async def test_help_stop_and_quit_are_whole_at_every_width(open_chat: Open, width: int) -> None:
    async with open_chat(Script("The sea is wide.", hold=4), size=(width, 24)) as chat:
        await chat.until(lambda: whole(chat) and "f1 Help" in bottom(chat) and "^q Quit" in bottom(chat))
        await chat.say("x", wait=False)
        await chat.until(lambda: "Esc Stop" in bottom(chat))
        assert whole(chat) and "f1 Help" in bottom(chat) and "^q Quit" in bottom(chat)
        chat.engine.go()
        await chat.until(chat.idle)


@pytest.mark.parametrize("key", ["f9", "ctrl+l", "f8", "ctrl+d"])
async def test_the_way_back_is_whole_on_the_smallest_screen(open_chat: Open, key: str) -> None:
    async with open_chat(size=(40, 12)) as chat:
        await chat.press(key)
        await chat.until(lambda: "Esc Back" in bottom(chat) and whole(chat))


async def test_the_device_gives_way_before_the_title(open_chat: Open) -> None:
    engine = ScriptedEngine([Script("Blue.")], loaded=replace(LOADED, device="CPU, 1 thread"))
    async with open_chat(engine=engine) as chat:
        await chat.say("Why is the sea blue")
        assert "Why is the sea blue" in chat.shown().splitlines()[0]
        assert "slipstream-mini · CPU, 1 thread" not in chat.shown().splitlines()[0]
        await chat.pilot.resize_terminal(100, 24)
        await chat.until(lambda: "slipstream-mini · CPU, 1 thread" in chat.shown().splitlines()[0])
        assert "Why is the sea blue" in chat.shown().splitlines()[0]


@pytest.mark.slow
@pytest.mark.parametrize("screen", SCREENS)
async def test_every_screen_bears_every_size(open_chat: Open, screen: str) -> None:
    async with open_chat(Script(TEXT)) as chat:
        await chat.say("hello")
        await chat.press(*SCREENS[screen])
        for size in (*SMALL, *EDGE):
            await chat.pilot.resize_terminal(*size)
            await chat.press("down")
            assert chat.app.is_running, size
            chat.shown()
        await chat.pilot.resize_terminal(80, 24)
        await chat.press("escape", "escape")
        assert chat.app.is_running and len(chat.shown().splitlines()) == 24


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
async def test_random_sizes_while_a_reply_is_written(open_chat: Open, seed: int) -> None:
    chance = random.Random(seed)
    async with open_chat(Script(TEXT * 10, hold=20)) as chat:
        await chat.begin("x", 20)
        chat.engine.go()
        for _ in range(25):
            width = chance.choice((chance.randint(1, 12), chance.randint(12, 60), chance.randint(60, 200)))
            await chat.pilot.resize_terminal(width, chance.choice((chance.randint(1, 6), chance.randint(6, 60))))
            await chat.press(
                chance.choice(("f3", "f4", "ctrl+o", "a", "pageup", "ctrl+home", "f1", "escape", "ctrl+j"))
            )
            assert chat.app.is_running
        await chat.until(chat.idle)


@pytest.mark.slow
def test_a_window_too_small_says_so_and_waits(tmp_path: Path) -> None:
    chat = Chat(tmp_path)
    with chat.terminal as terminal:
        chat.bring("idle")
        for size in ((10, 3), (5, 4)):
            _resized(terminal, *size)
            terminal.until(lambda: terminal.shown.split() == ["too", "small"])
        _resized(terminal, 80, 24)
        terminal.shows("half a thought")
        _resized(terminal, 3, 1)
        terminal.type("\x11")
        assert terminal.ended() == 0 and terminal.as_before


def _resized(terminal: Terminal, columns: int, lines: int) -> None:
    terminal.resize(columns, lines)
    terminal.read(0.2)
