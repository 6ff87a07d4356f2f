"""Chats of thousands of messages in one line: opened, searched, branched, exported and deleted as any other."""

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random

import pytest
from tests.soak.strange_chats import export

from slipstream.app.chats.exporting import exported
from slipstream.app.chats.importing import import_chats
from slipstream.app.chats.reading import ChatReader
from slipstream.app.chats.store import ChatStore

MOST = 2.0  # seconds of one processor


@contextmanager
def soon(what: str) -> Iterator[None]:
    begun = time.process_time()
    yield
    assert (took := time.process_time() - begun) < MOST, f"{what} took {took:.1f} s"


@pytest.mark.parametrize("messages", [1_100, pytest.param(10_000, marks=pytest.mark.slow)])
def test_everything_is_done_soon(tmp_path: Path, messages: int) -> None:
    path = tmp_path / "chats.db"
    with closing(ChatStore(path)) as store:
        (chat,) = import_chats(store, export(1, messages, Random(1)), "export")
        with soon("opening"):
            assert len(store.messages(chat.id)) == messages and store.forks(chat.id) == {}
        with soon("searching"):
            assert len(store.search("foxes", 200)) == 200
        with soon("branching"):
            asked = store.add_user(chat.id, "and now?")
            for number in (asked.id, 1, messages // 2):
                store.add_user(chat.id, "or this?", replaces=number)
            store.show(asked.id)
        assert len(store.messages(chat.id)) == messages + 1
        with soon("Markdown"):
            exported(store, [chat.id], "md")
        with soon("JSON"):
            exported(store, [chat.id], "json")
        with soon("the engine's reading"):
            assert ChatReader(path).newest() and len(ChatReader(path).replies(chat.id, 0, 256)) == 256
        with soon("a system message"):
            store.set_system(chat.id, "Be brief.")
        with soon("deleting"):
            store.delete(chat.id)
            store.erase_deleted(0)
        assert store.database.rows("SELECT count(*) FROM messages") == [(0,)]


def test_many_branches_in_a_line_are_exported_soon(tmp_path: Path) -> None:
    with closing(ChatStore(tmp_path / "chats.db")) as store:
        (chat,) = import_chats(store, export(1, 2_000, Random(1)), "export")
        for number in range(1, 400):
            store.add_user(chat.id, f"or {number}?", replaces=number)
        store.add_user(chat.id, "or else?", replaces=1)  # all others are beside the shown branch now
        with soon("Markdown"):
            text = exported(store, [chat.id], "md")
        assert text.count("*Another branch, ") > 300
