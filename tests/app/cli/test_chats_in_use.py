"""Chats that cannot be opened when the chat starts: it waits with a word, then offers a chat that is not kept."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.app.bundled_program import PROGRAM
from tests.app.terminal import Terminal

from slipstream.app.chats.store import ChatStore

pytestmark = [pytest.mark.program, pytest.mark.slow]


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
