"""What the screen says, and keeps, when the chats are damaged or the disk takes nothing more."""

import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.app.chats.damaged import filled
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
        await chat.begin("Is it?", 8)
        with store.database.read():
            store.database.execute("PRAGMA query_only = ON")
        chat.engine.go()
        await chat.until(chat.idle)
        said = " ".join(" ".join(chat.notices()).split()).lower()
        assert "cannot write to" in said and "is not kept: copy it before you leave" in said
        assert chat.texts() == ["Is it?", "The sea is wide and blue."]
        await chat.say("And?", wait=False)
        await chat.until(lambda: len(chat.notices()) > 2)
        assert chat.screen.prompt.text == "And?", "what cannot be kept is not sent, and not lost"
        with store.database.read():
            store.database.execute("PRAGMA query_only = OFF")
        await chat.say("And?")
        assert chat.texts()[-2:] == ["And?", "Yes."]


@pytest.mark.skipif(os.name != "posix", reason="elsewhere, open files cannot be deleted")
async def test_deleted_chats_are_said_and_the_chat_goes_on(
    open_chat: Open, store: ChatStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slipstream.app.tui.chat.screen.KEEP_PROMPT", 1e6)
    async with open_chat(Script("Blue."), Script("Wide.", hold=2), Script("Deep.")) as chat:
        await chat.say("Is the sea blue?")
        before = len(chat.notices())
        shutil.rmtree(store.path.parent)
        await chat.say("And wide?", wait=False)
        await chat.until(lambda: len(chat.notices()) > before)
        assert "was deleted or moved by another program: all chats were written to a new one." in " ".join(
            chat.notices()[-1].split()
        )
        shutil.rmtree(store.path.parent)  # and once more, while the reply is written
        chat.engine.go()
        await chat.until(chat.idle)
        await chat.say("And deep?")
        said = ["Is the sea blue?", "Blue.", "And wide?", "Wide.", "And deep?", "Deep."]
        assert chat.texts() == said and len(chat.notices()) == before + 2
    store.close()
    with closing(ChatStore(store.path)) as again:
        assert [message.content for message in again.messages(again.list_chats()[0].id)] == said
        assert len(again.list_chats()) == 3
