"""Starts that meet what is rare: other programs, leftovers, backups that are no use, and half-readable rows."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.app.chats.damaged import filled, kept
from tests.app.chats.older import older

from slipstream.app.chats import chat_list
from slipstream.app.chats.backups import of_days, of_versions, verify
from slipstream.app.chats.open_database import storage_error
from slipstream.app.chats.salvage import rows
from slipstream.app.chats.schema import MIGRATIONS, migrate
from slipstream.app.chats.store import ChatStore
from slipstream.models.errors import SlipstreamError

PAGE = 4096


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sound") / "chats.db"
    filled(path, 3)
    return path


@pytest.fixture
def path(tmp_path: Path, sound: Path) -> Path:
    return Path(shutil.copy(sound, tmp_path / "chats.db"))


@pytest.fixture
def headless(path: Path) -> Path:
    """A copy that has to be rescued."""
    path.write_bytes(b"x" * 100 + path.read_bytes()[100:])
    return path


def failing(*_: object, **__: object) -> Any:
    raise OSError(5, "Input/output error")


# --- the place ----------------------------------------------------------------------------------------------------


def test_another_program_that_writes_is_told_apart(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other, closing(ChatStore(path)) as store:
        other.execute("BEGIN IMMEDIATE")
        store.database.execute("PRAGMA busy_timeout = 0")
        with pytest.raises(SlipstreamError, match="in use by another program") as error:
            store.create()
        assert error.value.hint == "Close it and try again."
        other.execute("ROLLBACK")
        store.create()


def test_a_file_that_cannot_be_read_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.open
    monkeypatch.setattr(
        Path, "open", lambda file, *mode, **more: failing() if file == path else real(file, *mode, **more)
    )
    with pytest.raises(SlipstreamError, match=r"cannot write to .*input/output error"):
        ChatStore(path)
    monkeypatch.undo()
    assert kept_in(path)


def kept_in(path: Path) -> dict[str, list[str]]:
    with closing(ChatStore(path)) as store:
        assert store.notice == ""
        return kept(store)


def test_leftovers_that_cannot_be_removed_are_an_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.with_name(".chats-day-2020-01-01.db.7").touch()
    monkeypatch.setattr(Path, "unlink", failing)
    with pytest.raises(SlipstreamError, match="cannot write to"):
        ChatStore(path)


@pytest.mark.skipif(os.name != "posix", reason="locks of POSIX")
def test_a_file_system_without_locks_will_do(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fcntl.flock", failing)
    with closing(ChatStore(path)) as store:
        assert store.alone
        store.add_user(store.create().id, "x")


def test_an_error_that_no_rescue_cures_is_worded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise sqlite3.OperationalError("unable to open database file")

    monkeypatch.setattr("slipstream.app.chats.open_database.migrate", refused)
    with pytest.raises(SlipstreamError, match="unable to open"):
        ChatStore(path)
    monkeypatch.undo()
    assert storage_error(path, sqlite3.DatabaseError("file is not a database")).title.endswith("are damaged.")


def test_a_name_that_is_taken_is_drawn_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(ChatStore(path)) as store:
        taken = store.list_chats()[0].id
        names = iter([taken, "fresh0"])
        monkeypatch.setattr(chat_list, "new_id", lambda: next(names))
        assert store.create().id == "fresh0"


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
        assert store.notice == "an index cannot be written. Fix its rights."
        assert len(store.list_chats()) == 1


# --- backups and versions -----------------------------------------------------------------------------------------


def test_a_backup_that_cannot_forget_is_deleted(path: Path) -> None:
    bad = path.with_name("chats-day-2020-01-01.db")
    bad.write_bytes(b"x" * 5000)
    with closing(ChatStore(path)) as store:
        store.delete(store.list_chats()[0].id)
    assert not bad.exists()


def test_a_database_with_faults_is_found(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA writable_schema = ON")
        db.execute("UPDATE sqlite_master SET sql = replace(sql, '(chat, id)', '(id, chat)')")
        db.commit()
    with closing(sqlite3.connect(path)) as db, pytest.raises(sqlite3.DatabaseError, match="corruption"):
        verify(db)


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
        migrate(db, path)
        assert db.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)
    assert len(of_versions(path)) == 1


# --- the rescue ---------------------------------------------------------------------------------------------------


def test_the_newest_backup_that_can_be_read_is_taken(headless: Path, sound: Path) -> None:
    shutil.copy(of_days(sound)[0], headless.with_name("chats-day-2020-01-01.db"))
    newer = headless.with_name("chats-day-2020-01-02.db")
    newer.write_bytes(b"x" * 5000)
    os.utime(headless.with_name("chats-day-2020-01-01.db"), (1.0, 1.0))
    raw = bytearray(headless.read_bytes())
    for at in range(6, len(raw) // PAGE):
        raw[at * PAGE : at * PAGE + PAGE] = bytes(PAGE)
    headless.write_bytes(raw)
    with closing(ChatStore(headless)) as store:
        assert "from a backup of 1970-01-01" in store.notice
        assert kept(store) == kept_in(sound)


def test_a_rescue_that_cannot_be_written_leaves_the_file(headless: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = headless.read_bytes()
    headless.with_name(".chats.db.rescued-1").write_bytes(b"of a start that was killed")
    for name, refusal in (("os.replace", failing), ("sqlite3.connect", broken)):
        with monkeypatch.context() as patch:
            patch.setattr(name, refusal)
            with pytest.raises(SlipstreamError, match="cannot write to"):
                ChatStore(headless)
        assert headless.read_bytes() == before
    with closing(ChatStore(headless)) as store:
        assert "12 messages in 3 chats were rescued" in store.notice
    assert not list(headless.parent.glob(".chats*"))


def broken(*_: object, **__: object) -> Any:
    raise sqlite3.OperationalError("disk I/O error")


def test_two_rescues_within_a_second_keep_both_files(headless: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.app.chats.rescue.time.strftime", lambda *_: "now")
    raw = headless.read_bytes()
    for _ in range(3):
        headless.write_bytes(raw)
        with closing(ChatStore(headless)) as store:
            assert store.notice
        for backup in of_days(headless):
            backup.unlink()
    aside = {file.name for file in headless.parent.glob("chats-damaged-*.db")}
    assert aside == {"chats-damaged-now.db", "chats-damaged-now-2.db", "chats-damaged-now-3.db"}


def test_rows_that_the_tables_refuse_are_left_out(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA ignore_check_constraints = ON")
        chat, gone = (row[0] for row in db.execute("SELECT id FROM chats LIMIT 2"))
        db.execute("UPDATE messages SET role = 'tool' WHERE chat = ? AND parent IS NULL", (chat,))
        db.execute("UPDATE messages SET chat = '../up' WHERE chat = ?", (gone,))
        db.execute("UPDATE chats SET id = 'no name' WHERE id = ?", (gone,))
        db.commit()
    path.write_bytes(b"x" * 100 + path.read_bytes()[100:])
    with closing(ChatStore(path)) as store:
        assert "7 messages in 2 chats were rescued" in store.notice
        found = kept(store)
    assert len(found) == 2 and len(found[chat]) == 3


def test_pages_that_only_look_like_rows_give_none(tmp_path: Path) -> None:
    def page(*cells: bytes) -> bytes:
        places, content, at = b"", b"", PAGE
        for cell in cells:
            at -= len(cell)
            places, content = places + at.to_bytes(2, "big"), cell + content
        head = b"\x0d\0\0" + len(cells).to_bytes(2, "big") + b"\0\0\0" + places
        return head.ljust(PAGE - len(content), b"\0") + content

    first = b"SQLite format 3\0" + PAGE.to_bytes(2, "big") + bytes(82) + page()[: PAGE - 100]
    good = b"\x03\x81\x00\x02\x01\x05"  # row 128 with the number 5
    late = b"\x03\xff\xff\xff\xff\xff\xff\xff\xff\xfe\x02\x01\x06"  # row -2
    wrong = (
        b"\x00\x01",  # no bytes
        b"\x02\x01\x02\x0a",  # a kind that is not used
        b"\x03\x01\x03\x01\x05",  # a header that ends elsewhere
        b"\x05\x01\x02\x01\x05\x00\x00",  # bytes that belong to nothing
        b"\xc0\x00\x01" + bytes(4000),  # a chain of pages that is not there
    )
    whole = first + page(good, *wrong[:4], late) + page(wrong[4])
    (tmp_path / "chats.db").write_bytes(whole)
    assert list(rows(tmp_path / "chats.db", trusted=True)) == [(128, [5]), (-2, [6])]
    (tmp_path / "chats.db").write_bytes(b"")
    assert list(rows(tmp_path / "chats.db", trusted=True)) == []
    assert list(rows(tmp_path / "missing.db", trusted=True)) == []


def test_tables_that_make_no_sense_are_damage(path: Path, sound: Path) -> None:
    raw = path.read_bytes()
    assert raw.count(b"tokenize='unicode61 remove_diacritics 2'") == 2
    path.write_bytes(raw.replace(b"tokenize='unicode61", b"tokenize='unicode\"1"))
    with closing(ChatStore(path)) as store:
        assert "12 messages in 3 chats were rescued" in store.notice
        assert kept(store) == kept_in(sound)


def test_a_pipe_in_the_place_of_the_chats_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "chats.db")
    with pytest.raises(SlipstreamError, match="is no file"):
        ChatStore(tmp_path / "chats.db")
