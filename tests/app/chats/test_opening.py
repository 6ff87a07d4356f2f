"""Starts and writes that meet what is rare: other programs, leftovers, no locks, full disks, odd values."""

import errno
import json
import os
import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest
from tests.app.chats.damaged import filled, kept, older

from slipstream.app.chats.backups import of_versions
from slipstream.app.chats.exporting import exported
from slipstream.app.chats.importing import import_chats
from slipstream.app.chats.reading import ChatReader
from slipstream.app.chats.schema import MIGRATIONS, migrate, storage_error
from slipstream.app.chats.store import ChatStore
from slipstream.app.cli.main import main
from slipstream.models.errors import SlipstreamError

DEEP: Final = "[" * 100_000
FIGURES: Final = '{"speed": {}, "by_depth": %s}'
ODD: Final[dict[str, tuple[object, ...]]] = {
    "chats.title": (b"\xff\x00blob", 3, "x" * 10_000, "a\x00b", 1e400),
    "chats.created": (float("inf"), float("-inf"), 9.4e12, "soon", b"\x00", -1e300, 2**62),
    "chats.updated": (float("inf"), 9.4e12, "soon", b"\xff", -5),
    "chats.model": (b"\xff", 5, 2.5),
    "chats.pinned": ("yes", b"1", 2**62, 1e300),
    "chats.sampling": ("{", "[]", DEEP, '{"temperature": "hot", "top_k": 1e99}', '{"temperature": NaN}', b"\xff", 7),
    "messages.content": (b"\xff\x00blob", 3, 2.5),
    "messages.tokens": ("text", 3, b"\x01", b"\xff" * 4096, 1.5),
    "messages.model": (b"\xff", 3),
    "messages.drafter": (b"\xff", 3),
    "messages.seed": ("x", b"\xff", "9" * 5000, -3, "٣", 2.5),
    "messages.speed": (
        "{", DEEP, "[1]", b"\xff", 5, '{"speed": 3}', '{"speed": {"tok_per_s": "fast"}}',
        '{"speed": {"tokens": 1e400}}',
        FIGURES % "3", FIGURES % "[[1]]", FIGURES % '[["a", "b"]]', '{"speed": {}, "origins": [[1, "plain"]]}',
        '{"speed": {}, "by_drafter": {"a": 1}}', '{"speed": {}, "drafter_depths": []}', '{"speed": {}, "ttft_ms": NaN}',
    ),
    "messages.reason": (b"\xff", 3, "summary " + "9" * 5000, "summary -1", "summary x"),
    "messages.created": (float("inf"), 9.4e12, "soon", b"\x00", -1e300),
    "messages.picked": ("first", b"\xff", 1e300, 2**62, 2**63 - 1, -1),
    "messages.parent": ("x", b"\xff", 2.5),
}  # fmt: skip


@pytest.fixture
def fresh(tmp_path: Path) -> Path:
    return tmp_path / "chats.db"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sound") / "chats.db"
    filled(path, 3)
    return path


@pytest.fixture
def path(tmp_path: Path, sound: Path) -> Path:
    return Path(shutil.copy(sound, tmp_path / "chats.db"))


def failing(*_: object, **__: object) -> Any:
    raise OSError(5, "Input/output error")


def test_another_program_that_writes_is_told_apart(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other, closing(ChatStore(path)) as store:
        other.execute("BEGIN IMMEDIATE")
        store.database.execute("PRAGMA busy_timeout = 0")
        with pytest.raises(SlipstreamError, match="in use by another program") as error:
            store.create()
        assert error.value.hint == "Close it and try again."
        other.execute("ROLLBACK")
        store.create()


def test_chats_that_cannot_be_erased_are_a_notice(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise SlipstreamError("an index cannot be written.", "Fix its rights.")

    with closing(ChatStore(path)) as store:
        chat = store.list_chats()[0].id
        monkeypatch.setattr("slipstream.app.chats.chat_list.chat_deleted", refused)
        store.delete(chat)
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE chats SET deleted = 1.0 WHERE id IN (SELECT id FROM chats LIMIT 1)")
        db.commit()
    with closing(ChatStore(path)) as store:
        assert store.notice == "an index cannot be written. Fix its rights." and len(store.list_chats()) == 1


def test_a_backup_that_cannot_forget_is_deleted(path: Path) -> None:
    bad = path.with_name("chats-day-2020-01-01.db")
    bad.write_bytes(b"x" * 5000)
    with closing(ChatStore(path)) as store:
        store.delete(store.list_chats()[0].id)
    assert not bad.exists()


def test_a_version_that_another_process_made_meanwhile_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    older(path)

    class Slow(sqlite3.Connection):
        """Another process migrates before this one has its lock."""

        def execute(self, *arguments: Any) -> sqlite3.Cursor:
            if arguments[0] == "BEGIN IMMEDIATE" and self.late:
                self.late = False
                ChatStore(path).close()
            return super().execute(*arguments)

        late = True

    with closing(sqlite3.connect(path, isolation_level=None, factory=Slow)) as db:
        migrate(db)
        assert db.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)
    assert len(of_versions(path)) == 1


def test_a_pipe_in_the_place_of_the_chats_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "chats.db")
    with pytest.raises(SlipstreamError, match="is no file"):
        ChatStore(tmp_path / "chats.db")


def test_a_system_without_such_locks_will_do(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr("fcntl.flock", unsupported)
    with closing(ChatStore(fresh)) as store:
        assert store.alone
        chat = store.create().id
        store.add_user(chat, "the plover nests")
        store.delete(chat)
        store.erase_deleted(0)
        assert store.list_chats() == []


def test_a_link_to_nowhere_is_named(fresh: Path) -> None:
    fresh.symlink_to(fresh.parent / "gone" / "chats.db")
    with pytest.raises(SlipstreamError, match=r"cannot write to .*chats\.db.*no such file") as error:
        ChatStore(fresh)
    assert error.value.hint and fresh.is_symlink()


def test_a_full_disk_is_said_and_what_fits_later_is_kept(fresh: Path) -> None:
    with closing(ChatStore(fresh)) as store:
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


@pytest.mark.parametrize("version", [0, 1])
def test_a_migration_that_finds_the_disk_full_changes_nothing(fresh: Path, version: int) -> None:
    if version:
        older(fresh, version)
    with closing(sqlite3.connect(fresh, isolation_level=None)) as db:
        db.execute(f"PRAGMA max_page_count = {db.execute('PRAGMA page_count').fetchone()[0] or 1}")
        with pytest.raises(sqlite3.DatabaseError, match="full") as error:
            migrate(db)
        assert storage_error(fresh, error.value).title == f"cannot write to {fresh}: the disk is full."
        assert not db.in_transaction and db.execute("PRAGMA user_version").fetchone() == (version,)
    with closing(ChatStore(fresh)) as store:
        assert store.notice == "" and bool(kept(store)) == bool(version)


@pytest.mark.skipif(sys.platform == "win32", reason="limits of POSIX")
def test_a_migration_whose_file_may_not_grow_changes_nothing(fresh: Path) -> None:
    import resource

    older(fresh)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with closing(sqlite3.connect(fresh, isolation_level=None)) as db:
        resource.setrlimit(resource.RLIMIT_FSIZE, (fresh.stat().st_size, hard))
        try:
            with pytest.raises(sqlite3.OperationalError, match="disk I/O error") as error:
                migrate(db)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert not db.in_transaction and db.execute("PRAGMA user_version").fetchone() == (1,)
        assert "disk i/o error" in storage_error(fresh, error.value).title.lower()
    with closing(ChatStore(fresh)) as store:
        assert store.notice == "" and any(kept(store).values())


def test_no_backup_means_no_migration(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def version() -> object:
        with closing(sqlite3.connect(fresh)) as db:
            return db.execute("PRAGMA user_version").fetchone()[0]

    older(fresh)
    before = version()
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", failing)
        with pytest.raises(SlipstreamError, match=r"cannot write to .*chats-version-\d+\.db.*input/output error"):
            ChatStore(fresh)
    assert version() == before and not list(fresh.parent.glob(".chats-*"))
    with closing(ChatStore(fresh)) as store:
        assert any(kept(store).values())
    assert len(list(fresh.parent.glob("chats-version-*.db"))) == 1


@pytest.mark.parametrize(
    ("column", "number"), [(column, number) for column, values in ODD.items() for number in range(len(values))]
)
def test_a_bad_value_costs_only_itself(
    path: Path, column: str, number: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table, name = column.split(".")
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA ignore_check_constraints = ON")
        db.execute(f"UPDATE {table} SET {name} = ? WHERE rowid IN (2, 6)", (ODD[column][number],))
        db.commit()
    with closing(ChatStore(path)) as store:
        chats = store.list_chats()
        assert len(chats) == 3
        for chat in chats:
            store.sampling(chat.id), store.forks(chat.id), store.refused(chat.id)
            shown, everything = store.messages(chat.id), store.all_messages(chat.id)
            assert shown and everything and (name == "parent" or len(shown) == 4)
            for message, _ in everything:
                store.show(message.id)
        store.prompts(), store.search("message"), store.search("blob"), store.search("日本")
        for form in ("md", "json"):
            text = exported(store, [chat.id for chat in chats], "md" if form == "md" else "json")
        with closing(ChatStore(path.with_name("other.db"))) as other:
            assert len(import_chats(other, text.encode(), "file")) == 3
        for chat in chats:
            store.add_user(chat.id, "goes on")
            reply = store.begin_reply(chat.id, model="m", fingerprint="f", drafter="none", seed=1)
            store.finish_reply(reply.id, text="yes")
            assert [message.content for message in store.messages(chat.id)][-2:] == ["goes on", "yes"]
        reader = ChatReader(path)
        assert sum(len(reader.replies(chat, 0)) for chat in reader.newest()) >= 6
    monkeypatch.setenv("SLIPSTREAM_HOME", str(path.parent))
    for words in (["list"], ["list", "--json"], ["search", "message"], ["export"], ["delete", *(c.id for c in chats)]):
        with pytest.raises(SystemExit) as ended:
            main(["chats", *words])
        assert ended.value.code == 0, capsys.readouterr().err
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith('{"id"')]


@pytest.mark.parametrize("circle", ["parent = id", "parent = id + 2", "parent = 99"])
def test_messages_in_a_circle_or_without_a_beginning_end_nothing(path: Path, circle: str) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"UPDATE messages SET {circle}")
        db.commit()
    with closing(ChatStore(path)) as store:
        for chat in store.list_chats():
            store.messages(chat.id), store.all_messages(chat.id), store.forks(chat.id)
            store.show(5)
            exported(store, [chat.id], "md")
            store.add_user(chat.id, "goes on")
            assert store.messages(chat.id)[-1].content == "goes on"
            store.delete(chat.id)
        store.erase_deleted(0)
        assert store.list_chats() == []


def test_a_chat_whose_id_is_no_name_is_not_listed(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        for row, name in ((1, b"blob"), (2, "../up")):
            db.execute("UPDATE chats SET id = ? WHERE rowid = ?", (name, row))
        db.commit()
    with closing(ChatStore(path, path.with_name("states"))) as store:
        assert len(store.list_chats()) == 1
