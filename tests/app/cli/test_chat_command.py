"""``slipstream`` itself, in a terminal: what keeps it from starting, chats that cannot be opened, the short session."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.app.bundled_program import PROGRAM
from tests.app.terminal import Terminal

from slipstream.app.chats.store import ChatStore

SMALL = "slipstream: the terminal has 20x5 characters; the chat needs 40x12."


@pytest.mark.parametrize(
    ("size", "arguments", "code", "words"),
    [
        ((20, 5), [], 1, SMALL),
        ((80, 24), ["-m", "/no/such.gguf"], 1, "slipstream: "),
        ((80, 24), ["--drafter", "x"], 2, "slipstream: "),
    ],
)
def test_what_keeps_the_chat_from_starting_is_one_clear_line_before_any_screen(
    tmp_path: Path, size: tuple[int, int], arguments: list[str], code: int, words: str
) -> None:
    with Terminal(*PROGRAM[:3], *arguments, home=tmp_path, size=size) as terminal:
        assert terminal.ended() == code
        shown = terminal.sent.decode().removeprefix("started").partition("left ")[0]
        assert shown.startswith(words) and shown.count("\n") == 1 and "\x1b" not in shown


@pytest.mark.program
@pytest.mark.slow
def test_a_locked_file_is_waited_for_with_a_word(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with closing(ChatStore(home / "chats.db")) as store:
        store.add_user(store.open_or_create("one").id, "said before")
    with closing(sqlite3.connect(home / "chats.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with Terminal(*PROGRAM, "--chat", "one", home=home, size=(100, 40)) as terminal:
            terminal.shows("Waiting for up to 30 seconds")
            other.execute("ROLLBACK")
            terminal.shows("said before", "Message, / for commands")
            terminal.type("\x11")
            assert terminal.ended() == 0


@pytest.mark.program
@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="pipes of POSIX")
def test_a_file_that_cannot_be_opened_leaves_a_chat_that_is_not_kept(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    os.mkfifo(home / "chats.db")
    with Terminal(*PROGRAM, home=home, size=(100, 40)) as terminal:
        terminal.shows("Chat without keeping it? [y/N]")
        terminal.type("y\r")
        terminal.shows("Nothing is kept", "Message, / for commands")
        terminal.type("\x11")
        assert terminal.ended() == 0
    assert (home / "chats.db").is_fifo()
    with Terminal(*PROGRAM, "--chat", "one", home=home, size=(100, 40)) as terminal:
        assert terminal.ended() == 1 and b"Move it elsewhere" in terminal.sent


ALTERNATE = b"\x1b[?1049h"


@pytest.mark.program
@pytest.mark.slow
def test_what_was_said_stays_in_the_terminal(tmp_path: Path) -> None:
    with Terminal(*PROGRAM, "--inline", "--chat", "short", home=tmp_path, size=(80, 30)) as terminal:
        terminal.shows("Enter sends")
        terminal.type("Tell me about the sea.\r")
        terminal.shows("\u203a Tell me about the sea.", "Esc leaves")
        terminal.type("\x11")
        assert terminal.ended() == 0
        shown = terminal.shown
        assert ALTERNATE not in terminal.sent and terminal.as_before
        above, _, below = shown.partition("\u203a Tell me about the sea.")
        assert "started" in above and below.split("left 0.")[0].strip() and "Enter sends" not in shown
