"""Searching, deleting for good, and older files."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import sys
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.app.chats_older import OLDER, older

from slipstream.app.chats.backups import DAYS, backups, of_days, of_versions
from slipstream.app.chats.reading import ChatReader
from slipstream.app.chats.records import Figures
from slipstream.app.chats.schema import MIGRATIONS, migrate
from slipstream.app.chats.store import ChatStore
from slipstream.app.engine.protocol import Speed
from slipstream.models.errors import SlipstreamError, UsageError

FIGURES = Figures(Speed(48.0, 0.71, 2.2, 1.7, 20, 14, 9, 30), [[3, 2]], {"lookup": {"steps": 9}}, 40, 12, 0, 120.0)


@pytest.fixture
def store(tmp_path: Path) -> ChatStore:
    return ChatStore(tmp_path / "chats.db")


def say(store: ChatStore, chat: str, question: str, answer: str, beside: int | None = None) -> tuple[int, int]:
    asked = store.add_user(chat, question, beside)
    reply = store.begin_reply(chat, model="m", fingerprint="f", drafter="lookup", seed=7)
    store.finish_reply(reply.id, text=answer, tokens=[1, 2], reason="stop", figures=FIGURES)
    return asked.id, reply.id


def words_in(path: Path) -> set[str]:
    """All words of the full-text indexes, deleted ones that still take up room included."""
    with closing(sqlite3.connect(path)) as db:
        found: set[str] = set()
        for table in ("message_words", "title_words"):
            db.execute(f"CREATE VIRTUAL TABLE temp.{table}_terms USING fts5vocab('main', '{table}', 'row')")
            found |= {str(row[0]) for row in db.execute(f"SELECT term FROM {table}_terms")}
        return found


def everything(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.iterdir())


# --- search -------------------------------------------------------------------------------------------------------


def test_words_are_found_with_their_place(store: ChatStore) -> None:
    chat = store.create().id
    asked, reply = say(store, chat, "Where does the red fox sleep?", "It sleeps in a den.\nCAFÉS are too loud.")
    other = store.create("Foxes at night").id
    assert [(hit.chat, hit.message, hit.role) for hit in store.search("fox")] == [
        (other, None, ""),
        (chat, None, ""),
        (chat, asked, "user"),
    ]
    (hit,) = [hit for hit in store.search("cafe den") if hit.message]
    assert (hit.message, hit.role) == (reply, "assistant")
    assert [hit.snippet[start:end] for start, end in hit.spans] == ["den", "CAFÉS"]
    assert "\n" not in hit.snippet
    assert store.search("fox den") == store.search("") == store.search('"*(') == store.search("' OR NEAR(") == []
    assert [hit.message for hit in store.search("FOX slee", 2)] == [None, asked]
    store.withdraw(asked)
    assert asked not in [hit.message for hit in store.search("fox")]


def test_words_without_spaces_between_are_found_inside(store: ChatStore) -> None:
    chat = store.create("百%").id
    asked, _ = say(store, chat, "x" * 100 + "昔々あるところにおじいさんがいました" + "y" * 200, "ok")
    (hit,) = store.search("ところ おじい")
    assert hit.message == asked
    assert [hit.snippet[start:end] for start, end in hit.spans] == ["ところ", "おじい"]
    assert hit.snippet.startswith("…x") and hit.snippet.endswith("y…")
    assert store.search("百_") == []
    assert [hit.message for hit in store.search("百%")] == [None]


def test_what_is_being_written_is_found_once_it_is_over(store: ChatStore) -> None:
    chat = store.create("t").id
    store.add_user(chat, "x")
    reply = store.begin_reply(chat, model="m", fingerprint="f", drafter="none", seed=1)
    store.append_reply(reply.id, "an otter", [1])
    assert not store.search("otter")
    store.finish_reply(reply.id)
    assert [hit.message for hit in store.search("otter")] == [reply.id]
    before = store.go_on(store.messages(chat)[-1], model="m", fingerprint="g", drafter="none")
    assert (before.tokens, before.model) == ([], "g"), "tokens of another model are of no use"
    assert not store.search("otter")
    store.finish_reply(reply.id, text="an owl")
    assert not store.search("otter")
    assert [hit.message for hit in store.search("owl")] == [reply.id]


# --- delete -------------------------------------------------------------------------------------------------------


def test_a_deleted_chat_is_gone_until_it_is_brought_back(store: ChatStore) -> None:
    chat = store.create().id
    say(store, chat, "about the zebra", "striped")
    reader = ChatReader(store.path)
    assert reader.has([chat])
    store.delete(chat)
    assert not store.search("zebra") and not store.prompts() and not store.list_chats()
    assert not reader.has([chat]) and not reader.newest()
    with pytest.raises(UsageError, match="there is no chat"):
        store.messages(chat)
    with pytest.raises(UsageError, match="deleted just now"):
        store.open_or_create(chat)
    store.erase_deleted()  # it is not a minute ago
    assert store.restore(chat)
    assert len(store.messages(chat)) == len(store.search("striped")) + 1 == 2
    assert reader.has([chat])
    store.delete(chat)
    store.erase_deleted(0)
    assert not store.restore(chat)


def test_nothing_of_an_erased_chat_is_left_in_the_files(tmp_path: Path, store: ChatStore) -> None:
    for number in range(30):
        say(store, store.create().id, f"keep{number} these words", f"kept{number}")
    gone, kept = store.create().id, store.create("sandpiper").id
    asked, _ = say(store, gone, "the plover nests", "avocet")
    say(store, gone, "the dunlin nests", "godwit", beside=asked)
    store.rename(gone, "curlew")
    traces = {"plover", "dunlin", "avocet", "godwit", "curlew"}
    assert traces <= words_in(store.path)
    store.delete(gone)
    store.erase_deleted(0)
    assert (tmp_path / "chats.db-wal").stat().st_size == 0
    assert not traces & words_in(store.path)
    assert not any(word[1:].encode() in everything(tmp_path) for word in traces)  # an index leaves shared letters out
    assert {"keep7", "sandpiper"} <= words_in(store.path)
    assert [hit.chat for hit in store.search("sandpiper")] == [kept]
    assert len(store.search("these words", 99)) == 60  # questions and titles


def test_the_next_start_erases_what_was_deleted(tmp_path: Path) -> None:
    store = ChatStore(tmp_path / "chats.db")
    chat = store.create().id
    say(store, chat, "the plover nests", "avocet")
    store.delete(chat)
    store._db.close()  # as a kill would
    store._hold.close()
    assert b"lover" in everything(tmp_path)
    with closing(ChatStore(tmp_path / "chats.db")) as store:
        assert not store.restore(chat)
        assert b"lover" not in everything(tmp_path)


# --- older files --------------------------------------------------------------------------------------------------


def test_a_file_of_the_version_before_opens_and_is_backed_up(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    older(path)
    with pytest.raises(SlipstreamError, match="another version"):
        ChatReader(path).newest()
    with closing(ChatStore(path)) as store:
        assert [m.content for m in store.messages("aaaaaa")] == ["about sandpipers", "second", "more", "half"]
        assert store.messages("aaaaaa")[-1].status == "interrupted"
        assert store.forks("aaaaaa") == {3: [2, 3]}
        assert [hit.message for hit in store.search("sandpiper")] == [1]
        assert [hit.message for hit in store.search("half")] == [6]
        assert [hit.message for hit in store.search("old")] == [None]
        assert not store.search("refused")
        (backup,) = of_versions(path)
        assert stat.S_IMODE(backup.stat().st_mode) == 0o600
        with closing(sqlite3.connect(backup)) as db:
            assert db.execute("PRAGMA user_version").fetchone() == (1,)
            assert db.execute("SELECT count(*) FROM messages").fetchone() == (6,)
        store.delete("aaaaaa")
    assert b"sandpiper" not in everything(tmp_path), "a backup forgets what is deleted"
    with closing(ChatStore(path)) as store:
        assert of_versions(path) == [backup]


def test_a_migration_that_fails_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "chats.db"
    older(path)
    whole = MIGRATIONS
    for count in range(1, len(whole[1]) + 1):
        broken = (whole[0], (*whole[1][:count], "SELECT nothing"))
        monkeypatch.setattr("slipstream.app.chats.schema.MIGRATIONS", broken)
        with pytest.raises(SlipstreamError, match="cannot write to"):
            ChatStore(path)
        with closing(sqlite3.connect(path)) as db:
            assert db.execute("PRAGMA user_version").fetchone() == (1,)
            assert not db.execute("SELECT name FROM sqlite_master WHERE name LIKE '%words%'").fetchall()
    monkeypatch.setattr("slipstream.app.chats.schema.MIGRATIONS", whole)
    with closing(ChatStore(path)) as store:
        assert len(store.messages("aaaaaa")) == 4


@pytest.mark.skipif(sys.platform == "win32", reason="forks")
@pytest.mark.parametrize("version", [0, *OLDER])
def test_a_kill_between_any_two_statements_leaves_the_old_or_the_new(tmp_path: Path, version: int) -> None:
    statements, ended = 0, False
    while not ended:
        path = tmp_path / str(statements) / "chats.db"
        path.parent.mkdir()
        if version:
            older(path, version)
        child = os.fork()
        if child == 0:
            with suppress(BaseException):
                with closing(sqlite3.connect(path, isolation_level=None, factory=Killed)) as db:
                    db.left = statements
                    db.execute("PRAGMA journal_mode=WAL")
                    migrate(db, path)
                os._exit(0)
            os._exit(1)
        status = os.waitpid(child, 0)[1]
        ended = os.WIFEXITED(status)
        assert os.WEXITSTATUS(status) == 0 if ended else os.WTERMSIG(status) == signal.SIGKILL
        with closing(sqlite3.connect(path)) as db:
            (there,) = db.execute("PRAGMA user_version").fetchone()
            assert version <= there <= len(MIGRATIONS)
            assert tables(db) == tables_of(there)
        with closing(ChatStore(path)) as store:
            assert store.notice == ""
            assert not version or [m.content for m in store.messages("aaaaaa")][-1] == "half"
            assert len(of_versions(path)) == min(version, 1) or there > version
        statements += 1
    assert statements > sum(map(len, MIGRATIONS[version:]))


class Killed(sqlite3.Connection):
    """Kills its process instead of the n-th statement."""

    left = 0

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1
        return super().execute(*arguments)


def tables(db: sqlite3.Connection) -> list[tuple[str, str]]:
    return db.execute("SELECT name, sql FROM sqlite_master WHERE sql NOT NULL ORDER BY name").fetchall()


def tables_of(version: int) -> list[tuple[str, str]]:
    with closing(sqlite3.connect(":memory:")) as db:
        for migration in MIGRATIONS[:version]:
            for statement in migration:
                db.execute(statement)
        return tables(db)


def test_only_a_few_backups_stay(tmp_path: Path) -> None:
    for version in (2, 10, 9):
        (tmp_path / f"chats-version-{version}.db").touch()
    older(tmp_path / "chats.db")
    ChatStore(tmp_path / "chats.db").close()
    assert [path.stem[-2:] for path in of_versions(tmp_path / "chats.db")] == ["-2", "-9", "10"]


def test_a_backup_a_day_is_made_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    ChatStore(path).close()
    assert not backups(path), "there is nothing to back up"
    with closing(ChatStore(path)) as store:
        say(store, store.create().id, "the plover nests", "avocet")
    (first,) = of_days(path)
    assert stat.S_IMODE(first.stat().st_mode) == 0o600
    with closing(sqlite3.connect(first)) as db:
        assert db.execute("SELECT count(*) FROM messages").fetchone() == (2,)
    with closing(ChatStore(path)) as store:
        chat = store.create().id
        say(store, chat, "the dunlin nests", "godwit")
    assert b"dunlin" not in first.read_bytes(), "one a day is enough"
    for day in range(1, 9):
        first.rename(first.with_name(f"chats-day-2020-01-0{day}.db"))
        os.utime(first.with_name(f"chats-day-2020-01-0{day}.db"), (1.0, 1.0))
        (tmp_path / ".chats-day-2019-12-31.db.12").write_bytes(b"cut short")
        ChatStore(path).close()
        assert b"dunlin" in first.read_bytes()
    assert len(of_days(path)) == DAYS and first in of_days(path)
    assert not list(tmp_path.glob(".chats-*"))
    with closing(ChatStore(path)) as store:
        store.delete(chat)
    assert b"dunlin" not in everything(tmp_path)


def test_a_file_with_faults_makes_no_backup(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    with closing(ChatStore(path)) as store:
        say(store, store.create().id, "the plover nests", "avocet")
        store._db.execute("PRAGMA writable_schema = ON")
        store._db.execute("UPDATE sqlite_master SET rootpage = 3 WHERE name = 'messages_of_parent'")
    assert not backups(path)
    with closing(ChatStore(path)) as store:
        assert "2 messages in 1 chats were rescued" in store.notice
