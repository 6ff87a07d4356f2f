"""What a terminal sends never ends the program."""

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.app.tui.conftest import Open
from tests.app.tui.driver import Driver
from textual import events
from textual.app import App
from textual.message import Message
from textual.widgets import Static

from slipstream.app.tui.input_guard import KEY_GAP, PASTE_WAIT, SEQUENCE_WAIT, InputReader, mark
from slipstream.app.tui.parts.dialogs import Dialog, Sheet

WHOLE = (
    b"\x1b[200~a\x1b[31mred\x1b[0m\rb\x1b[201~", b"\x1b[<0;5;6M", b"\x1b[<35;1;1M", b"\xc3\xa9\xff\xfe", b"\x1b[1;5A",
    b"\x1bOP", b"\x1b[99999999u", b"\x1b[<0;99999999999;3M", b"\x1b]11;rgb:00/00/00\x07", b"\x1bb", b"q\r",
    b"\x1b[M !!", b"\x1b[?2026;2$y", b"\x1b[I", b"\xf0\x9f\x92\xa1", b"\x1b[24;80R", b"\x1b[48;9;9;9;9t",
)  # fmt: skip


def described(message: Message) -> str:
    if isinstance(message, events.Key):
        return message.key
    if isinstance(message, events.Paste):
        return f"pasted {message.text!r}"
    if isinstance(message, events.MouseEvent):
        return f"{type(message).__name__} {message.x:g} {message.y:g}"
    return type(message).__name__


def read(*parts: bytes, wait: float = 0.0) -> list[str]:
    """What a reader makes of bytes that come in parts, and of a silence after each."""
    reader, found = InputReader(), []
    for number, part in enumerate(parts):
        now = number * (wait + 0.001)
        found += [*reader.feed(part, now), *reader.tick(now + wait)]
    return [described(message) for message in found]


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (b"\x1b[1114112u", []),  # a code point that does not exist
        (b"\x1b[99999999999999999999u", []),
        (b"\x1b[31m\x1b[0;1;2xq", ["q"]),
        (b"a\xffb\xc3(", ["a", "replacement_character", "b", "replacement_character", "left_parenthesis"]),
        (b"\x1b[" + b"1" * 5000 + b"m" + b"\r", ["enter"]),
        (b"\x1b]0;title\x1b]0;another\x07q", ["q"]),
        (b"\x1b[1;\x1b[A", ["up"]),
        (b"\x1bx\x1b[3$", ["alt+x", "shift+delete"]),
        (b"\x1b[48;99999999;99999999;1;1t", []),  # a size is taken from the system alone
        (b"\x1b[200~one\x1b[31m\r\ntwo\x00\x1b[201~", ["pasted 'one[31m\\ntwo'"]),
        (b"\x1b[200~\x1b[48;1;1;1;1t\x1b[A\x1b[201~", ["pasted '[48;1;1;1;1t[A'"]),
        (b"\x00" * 90 + b"q", ["q"]),
        (b"x" * 40 + b"\r", [f"pasted {'x' * 40!r}", "enter"]),  # a terminal without bracketed paste
        (b"\r\n" * 40, [f"pasted {chr(10) * 40!r}"]),
        (b"the first line\rand another line\r", ["pasted 'the first line\\nand another line\\n'"]),
    ],
)
def test_malformed_input_is_dropped_and_the_rest_is_read(sent: bytes, expected: list[str]) -> None:
    assert read(sent) == expected


def test_input_may_be_split_anywhere_and_be_anything() -> None:
    whole = [described(message) for part in WHOLE for message in InputReader().feed(part, 0.0)]
    assert read(*(bytes([byte]) for part in WHOLE for byte in part)) == whole
    chance = random.Random(5)
    for _ in range(300):
        parts = [
            chance.choice(WHOLE)[: chance.randint(1, 12)] + chance.randbytes(chance.randint(0, 9)) for _ in range(30)
        ]
        read(*parts, wait=chance.choice([0.0, 0.2, 2.0]))


def test_an_unfinished_sequence_or_paste_ends_by_itself() -> None:
    assert read(b"\x1b", b"a", wait=0.15) == ["escape", "a"]
    assert read(b"\x1b[1;", b"a", wait=SEQUENCE_WAIT) == ["a"]
    assert read(b"\x1b[1;", b"5A", wait=0.15) == ["ctrl+up"]
    assert read(b"\x1b[200~begun", b"\x11", wait=PASTE_WAIT) == ["pasted 'begun'", "ctrl+q"]
    assert read(b"\x1b[200~begun", b"\x1b", b"\x11", wait=KEY_GAP) == ["pasted 'begun'", "escape", "ctrl+q"]
    assert read(b"\x1b[200~beg", b"\x11", b"un\x1b", b"[201~", wait=0.1) == ["pasted 'begun'"]
    slow = read(b"\x1b[200~begun", b", and much later ended\x1b[201~", wait=PASTE_WAIT)
    assert slow == ["pasted 'begun'", "pasted ', and much later ended'"]


@pytest.mark.parametrize("piece", [b"\x1b[31m", b"\x1b]0;x", b"\x1b[200~\x1b[31m", b"\x1bP", b"\x1b[1", b"x", b"\r\n"])
def test_reading_takes_linear_time(piece: bytes) -> None:
    def seconds(count: int) -> float:
        reader, began = InputReader(), time.process_time()
        for _ in range(count):
            for _ in reader.feed(piece * (4096 // len(piece)), 0.0):
                pass
        return time.process_time() - began

    assert seconds(40) < 10 * 4 * seconds(10) + 0.1


def from_terminal(message: Message) -> Message:
    mark(message)
    return message


def at(kind: Callable[..., Message], x: int, y: int) -> Message:
    return from_terminal(kind(None, x, y, 0, 0, 1, False, False, False, screen_x=x, screen_y=y))


def breaks(_: object) -> None:
    raise IndexError("no such row")


async def click(chat: Driver, x: int, y: int) -> None:
    for kind in (events.MouseDown, events.MouseUp):
        chat.app.post_message(at(kind, x, y))
    await chat.pilot.pause()


async def test_an_error_that_a_click_causes_is_shown_and_logged(
    open_chat: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLIPSTREAM_HOME", str(tmp_path / "home"))

    class Broken(Static):
        on_click = breaks

    async with open_chat() as chat:
        broken = Broken("click here")
        await chat.screen.mount(broken)
        await chat.pilot.pause()
        await click(chat, broken.region.x, broken.region.y)
        assert any("A key or a click had no effect" in toast and "errors.log" in toast for toast in chat.toasts())
        assert "IndexError" in (tmp_path / "home" / "logs" / "errors.log").read_text()
        await chat.say("hello")
        assert chat.alive and len(chat.replies()) == 1


async def test_an_error_of_something_else_still_ends_the_chat(open_chat: Open) -> None:
    with pytest.raises(IndexError, match="no such row"):
        async with open_chat() as chat:
            chat.app.call_later(breaks, None)
            await chat.pilot.pause()


async def test_a_widget_that_is_mounted_while_the_chat_ends_is_no_error(open_chat: Open) -> None:
    async with open_chat() as chat:
        chat.app.exit(0)
        chat.screen.call_next(chat.screen.mount, Static("late"))
        chat.screen.call_next(lambda: Static().mount(Static("nowhere")))
        await chat.pilot.pause()
    assert chat.app.return_value == 0


async def test_mouse_reports_from_outside_are_dropped(open_chat: Open) -> None:
    async with open_chat() as chat:
        for x, y in ((5000, 5), (5, 5000), (-3, 5), (80, 24)):
            await click(chat, x, y)
            chat.app.post_message(at(events.MouseMove, x, y))
            chat.app.post_message(at(events.MouseScrollDown, x, y))
        await chat.pilot.pause()
        assert chat.app.focused is chat.screen.prompt and not chat.toasts()


async def test_a_click_on_a_list_that_has_just_closed_does_nothing(open_chat: Open) -> None:
    async with open_chat(size=(100, 30)) as chat:
        await chat.press("/")
        choices = chat.screen.prompt.choices
        for kind in (events.MouseDown, events.MouseUp):
            chat.app.post_message(at(kind, choices.region.x + 4, choices.region.y + 3))
        chat.app.call_later(choices.offer, ())
        await chat.pilot.pause()
        assert chat.alive and not chat.toasts()


async def test_a_click_on_a_message_that_has_just_gone_does_nothing(open_chat: Open) -> None:
    async with open_chat(size=(100, 30)) as chat:
        await chat.say("hello")
        [reply] = chat.replies()
        place = reply.region
        with chat.app.batch_update():
            await reply.remove()
            await click(chat, place.x + 4, place.y)
        await chat.say("and again")
        assert chat.alive and not chat.toasts()


async def test_a_screen_closes_no_dialog_above_it_and_closes_later() -> None:
    app = App[None]()
    async with app.run_test() as pilot:
        below, above = Sheet[None](), Dialog[None]()
        await app.push_screen(below)
        await app.push_screen(above)
        below.dismiss()  # an answer that came late
        await pilot.pause()
        assert app.screen is above
        for screen in (above, below):
            screen.dismiss()
            screen.dismiss()
            await pilot.pause()
        assert len(app.screen_stack) == 1
