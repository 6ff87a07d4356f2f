"""What the screen says, and keeps, when the chats are damaged or the disk takes nothing more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.app.chats_damaged import filled
from tests.app.tui.conftest import Open
from tests.app.tui.scripted import Script

from slipstream.app.chats.store import ChatStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ChatStore]:
    path = tmp_path / "chats.db"
    filled(path, 2)
    path.write_bytes(b"x" * 100 + path.read_bytes()[100:])
    store = ChatStore(path)
    yield store
    store.close()


async def test_the_screen_says_what_was_rescued(open_chat: Open, store: ChatStore) -> None:
    async with open_chat() as chat:
        assert any("8 messages in 2 chats were rescued" in " ".join(notice.split()) for notice in chat.notices())


async def test_a_reply_that_cannot_be_kept_stays_on_the_screen(open_chat: Open, store: ChatStore) -> None:
    async with open_chat(Script("The sea is wide and blue.", hold=8), Script("Yes.")) as chat:
        await chat.say("Is it?", wait=False)
        await chat.until(lambda: chat.screen._reply is not None and len(chat.screen._reply.text) >= 8)
        with store._read():
            store._db.execute("PRAGMA query_only = ON")
        chat.engine.go()
        await chat.until(chat.idle)
        said = " ".join(" ".join(chat.notices()).split()).lower()
        assert "cannot write to" in said and "is not kept: copy it before you leave" in said
        assert chat.texts() == ["Is it?", "The sea is wide and blue."]
        await chat.say("And?", wait=False)
        await chat.until(lambda: len(chat.notices()) > 2)
        assert chat.screen.prompt.text == "And?", "what cannot be kept is not sent, and not lost"
        with store._read():
            store._db.execute("PRAGMA query_only = OFF")
        await chat.say("And?")
        assert chat.texts()[-2:] == ["And?", "Yes."]
