"""What a chat store seldom meets: no locks at all, files in the way, full disks, and questions about nothing."""

from __future__ import annotations

import errno
import os
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.app.chats.damaged import filled, kept
from tests.app.chats.older import older

from slipstream.app.chats.open_database import storage_error
from slipstream.app.chats.records import StoredChat
from slipstream.app.chats.salvage import is_log_damaged, rows
from slipstream.app.chats.schema import migrate
from slipstream.app.chats.store import ChatStore
from slipstream.models.errors import SlipstreamError


def failing(*_: object, **__: object) -> Any:
    raise OSError(5, "Input/output error")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chats.db"


# --- the place ----------------------------------------------------------------------------------------------------


def test_a_system_without_such_locks_will_do(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr("fcntl.flock", unsupported)
    with closing(ChatStore(path)) as store:
        assert store.alone
        chat = store.create().id
        store.add_user(chat, "the plover nests")
        store.delete(chat)
        store.erase_deleted(0)
        assert store.list_chats() == []


@pytest.mark.parametrize("name", ["chats.db.lock", "chats.db.writer"])
def test_a_folder_where_a_lock_belongs_is_named(path: Path, name: str) -> None:
    (path.parent / name).mkdir()
    with pytest.raises(SlipstreamError, match=rf"cannot write to .*{name}.*is a directory") as error:
        ChatStore(path)
    assert error.value.hint and not path.exists()
    (path.parent / name).rmdir()
    ChatStore(path).close()


def test_a_link_to_nowhere_is_named(path: Path) -> None:
    path.symlink_to(path.parent / "gone" / "chats.db")
    with pytest.raises(SlipstreamError, match=r"cannot write to .*chats\.db.*no such file") as error:
        ChatStore(path)
    assert error.value.hint and path.is_symlink()


def test_a_store_is_closed_once(path: Path) -> None:
    store = ChatStore(path)
    store.create()
    store.close()
    (backup,) = path.parent.glob("chats-day-*")
    backup.unlink()
    store.close()
    assert not backup.exists()
    with closing(ChatStore(path)) as again:
        assert again.alone and len(again.list_chats()) == 1


# --- the disk -----------------------------------------------------------------------------------------------------


def test_a_full_disk_is_said_and_what_fits_later_is_kept(path: Path) -> None:
    with closing(ChatStore(path)) as store:
        chat = store.create("a").id
        store.add_user(chat, "before")
        pages = store.database.execute("PRAGMA page_count").fetchone()[0]
        store.database.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(SlipstreamError, match="the disk is full") as error:
            store.add_user(chat, "too long " * 10_000)
        assert error.value.hint == "Make some room and try again."
        assert [message.content for message in store.messages(chat)] == [
            "before"
        ] and not store.database.connection.in_transaction
        store.database.execute("PRAGMA max_page_count = 1000000")
        store.add_user(chat, "after")
        assert [message.content for message in store.messages(chat)] == ["before", "after"]


def test_a_full_disk_that_sqlite_has_rolled_back_itself_is_said_too(path: Path) -> None:
    with closing(ChatStore(path)) as store:
        chat = store.create("a").id
        store.add_user(chat, "before")
        pages = store.database.execute("PRAGMA page_count").fetchone()[0]
        store.database.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(SlipstreamError, match="the disk is full"):  # no index changes, which it would undo alone
            store.begin_reply(chat, model="m" * 90_000, fingerprint="f", drafter="none", seed=1)
        assert not store.database.connection.in_transaction
        store.database.execute("PRAGMA max_page_count = 1000000")
        store.begin_reply(chat, model="m", fingerprint="f", drafter="none", seed=1)
        assert len(store.all_messages(chat)) == 2


@pytest.mark.parametrize("version", [0, 1])
def test_a_migration_that_finds_the_disk_full_changes_nothing(path: Path, version: int) -> None:
    if version:
        older(path, version)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(f"PRAGMA max_page_count = {db.execute('PRAGMA page_count').fetchone()[0] or 1}")
        with pytest.raises(sqlite3.DatabaseError, match="full") as error:
            migrate(db, path)
        assert storage_error(path, error.value).title == f"cannot write to {path}: the disk is full."
        assert not db.in_transaction and db.execute("PRAGMA user_version").fetchone() == (version,)
    with closing(ChatStore(path)) as store:
        assert store.notice == "" and bool(kept(store)) == bool(version)


@pytest.mark.skipif(sys.platform == "win32", reason="limits of POSIX")
def test_a_migration_whose_file_may_not_grow_changes_nothing(path: Path) -> None:
    import resource

    older(path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, hard))
        try:
            with pytest.raises(sqlite3.OperationalError, match="disk I/O error") as error:
                migrate(db, path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert not db.in_transaction and db.execute("PRAGMA user_version").fetchone() == (1,)
        assert "disk i/o error" in storage_error(path, error.value).title.lower()
    with closing(ChatStore(path)) as store:
        assert store.notice == "" and any(kept(store).values())


def test_no_backup_means_no_migration(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def version() -> object:
        with closing(sqlite3.connect(path)) as db:
            return db.execute("PRAGMA user_version").fetchone()[0]

    older(path)
    before = version()
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", failing)
        with pytest.raises(SlipstreamError, match=r"cannot write to .*chats-version-\d+\.db.*input/output error"):
            ChatStore(path)
    assert version() == before and not list(path.parent.glob(".chats-*"))
    with closing(ChatStore(path)) as store:
        assert any(kept(store).values())
    assert len(list(path.parent.glob("chats-version-*.db"))) == 1


def test_a_log_that_cannot_be_read_is_left_to_sqlite(tmp_path: Path) -> None:
    assert not is_log_damaged(tmp_path / "missing.db-wal")
    (tmp_path / "chats.db-wal").mkdir()
    assert not is_log_damaged(tmp_path / "chats.db-wal")


def test_a_page_that_is_only_in_the_log_of_a_lost_file_is_read(path: Path) -> None:
    with closing(ChatStore(path)) as store:
        chat = store.create().id
        store.add_user(chat, "the avocet wades")
        (path.parent / "lost.db-wal").write_bytes(path.with_name("chats.db-wal").read_bytes())
    found = [value for _, values in rows(path.with_name("lost.db"), trusted=True) for value in values]
    assert "the avocet wades" in found


def test_states_of_chats_that_are_gone_leave_with_the_next_start(path: Path) -> None:
    states = path.parent / "states"
    states.mkdir()
    with closing(ChatStore(path, states)) as store:
        chat = store.create().id
        for name in (chat, "gone00"):
            (states / f"{name}.state").write_bytes(b"x")
    assert [file.name for file in states.iterdir()] == [f"{chat}.state"]
    (states / "gone01.state").write_bytes(b"of an engine that outlived its chat")
    with closing(ChatStore(path, states)):
        assert [file.name for file in states.iterdir()] == [f"{chat}.state"]


# --- questions ----------------------------------------------------------------------------------------------------


def test_showing_a_message_that_is_gone_changes_nothing(path: Path) -> None:
    filled(path, 1)
    with closing(ChatStore(path)) as store:
        before = kept(store)
        store.show(10_000)
        assert kept(store) == before


def test_a_chat_from_elsewhere_takes_no_place_that_is_taken(path: Path) -> None:
    with closing(ChatStore(path)) as store:
        chat = store.create("mine").id
        store.add_user(chat, "own")
        taken = store.add_chat(StoredChat(chat, "theirs", 1.0, 2.0, ""), store.all_messages(chat))
        assert taken.id != chat and taken.title == "theirs"
        assert kept(store) == {chat: ["own"], taken.id: ["own"]}


def test_what_followed_a_refused_message_is_not_handed_on(path: Path) -> None:
    with closing(ChatStore(path)) as store:
        chat = store.create().id
        refused = store.add_user(chat, "too long")
        reply = store.begin_reply(chat, model="m", fingerprint="f", drafter="none", seed=1)
        store.finish_reply(reply.id, text="half")
        store.withdraw(refused.id)
        assert store.all_messages(chat) == []
