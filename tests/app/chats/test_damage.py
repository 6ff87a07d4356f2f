"""Damaged chats: what can be read is rescued, the rest comes from the newest backup, and the screen says so."""

import io
import os
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest
from tests.app.chats.damaged import damaged_in, filled, kept, left_open

from slipstream.app.chats.backups import KEPT_ASIDE, marked, of_days
from slipstream.app.chats.reading import ChatReader
from slipstream.app.chats.store import ChatStore
from slipstream.app.cli.main import main
from slipstream.models.errors import SlipstreamError

PAGE: Final = 4096


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sound") / "chats.db"
    filled(path)
    return path


@pytest.fixture
def path(tmp_path: Path, sound: Path) -> Path:
    return Path(shutil.copy(sound, tmp_path / "chats.db"))


@pytest.fixture
def headless(path: Path) -> Path:
    path.write_bytes(b"x" * 100 + path.read_bytes()[100:])
    return path


def opened(path: Path) -> tuple[dict[str, list[str]], str]:
    with closing(ChatStore(path)) as store:
        assert store.database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert store.database.execute("PRAGMA foreign_key_check").fetchall() == []
        found = kept(store)
        for chat, texts in found.items():
            assert texts == [] or chat in {hit.chat for hit in store.search("message", 1000)}, "the index has it not"
        notice = store.notice
    with closing(ChatStore(path)) as store:
        assert store.notice == "" and kept(store) == found
    return found, notice


def kept_of(path: Path) -> dict[str, list[str]]:
    with closing(ChatStore(path)) as store:
        return kept(store)


def texts_of(found: dict[str, list[str]]) -> set[str]:
    return {text for texts in found.values() for text in texts}


def test_a_sound_file_stays(path: Path, sound: Path) -> None:
    assert opened(path) == (kept_of(sound), "") and not list(path.parent.glob("*damaged*"))


@pytest.mark.parametrize("place", [0, 16, 18, 20, 28, 44, 47, 56, 59, 60, 63, range(100), range(PAGE)])
def test_a_damaged_beginning_costs_nothing(path: Path, sound: Path, place: int | range) -> None:
    raw = bytearray(path.read_bytes())
    for at in place if isinstance(place, range) else (place,):
        raw[at] ^= 0xFF
    path.write_bytes(raw)
    found, notice = opened(path)
    assert found == kept_of(sound)
    if notice:
        (aside,) = path.parent.glob("chats-damaged-*.db")
        assert aside.name in notice and f"{sum(map(len, found.values()))} messages" in notice
        assert "from a backup" not in notice


@pytest.mark.parametrize("how", ["1 page", "5 pages", "first half"])
@pytest.mark.parametrize("seed", range(3))
def test_what_is_damaged_costs_its_rows_and_a_backup_has_those(path: Path, sound: Path, how: str, seed: int) -> None:
    whole = kept_of(sound)
    damaged_in(path, how, random.Random(seed))
    second = Path(shutil.copytree(path.parent, path.parent / "second")) / "chats.db"
    shutil.copy(of_days(sound)[0], second.parent)
    found, notice = opened(path)
    rescued = texts_of(found)
    assert rescued <= texts_of(whole) and len(rescued) > len(texts_of(whole)) // 4 and "were rescued" in notice
    found, notice = opened(second)
    assert found == whole and ("from a backup of" in notice) == (rescued != texts_of(whole))


def make_folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()
    (path / "inside").write_text("stays")


def test_a_folder_in_the_place_of_the_file_is_set_aside(path: Path, sound: Path) -> None:
    shutil.copy(of_days(sound)[0], path.parent)
    make_folder(path)
    found, notice = opened(path)
    assert found == kept_of(sound)
    assert "chats.db was a folder: 32 messages in 8 chats were rescued, 32 of them from a backup" in notice
    assert [file.read_text() for file in path.parent.rglob("inside")] == ["stays"]


@pytest.mark.parametrize("how", [Path.unlink, lambda path: path.write_bytes(b"")], ids=["missing", "empty"])
def test_a_lost_file_comes_from_the_newest_good_backup(path: Path, sound: Path, how: Callable[[Path], object]) -> None:
    shutil.copy(of_days(sound)[0], path.with_name("chats-day-2020-01-01.db"))
    os.utime(path.with_name("chats-day-2020-01-01.db"), (1.0, 1.0))
    path.with_name("chats-day-2020-01-02.db").write_bytes(b"x" * 5000)
    how(path)
    found, notice = opened(path)
    assert found == kept_of(sound) and "32 of them from a backup of 1970-01-01" in notice


def test_an_empty_file_without_a_past_is_a_new_one(tmp_path: Path) -> None:
    (tmp_path / "chats.db").touch()
    assert opened(tmp_path / "chats.db") == ({}, "")


def test_a_log_without_its_database_is_read(tmp_path: Path) -> None:
    with closing(ChatStore(tmp_path / "busy" / "chats.db")) as store:
        store.add_user(store.create().id, "message in the log")
        shutil.copy(tmp_path / "busy" / "chats.db-wal", tmp_path)
    found, notice = opened(tmp_path / "chats.db")
    assert [*found.values()] == [["message in the log"]] and "was missing" in notice


def test_rows_without_a_chat_or_a_question_find_a_place(path: Path, sound: Path) -> None:
    whole = kept_of(sound)
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA foreign_keys = OFF")
        db.execute("UPDATE messages SET speed = '{', seed = 'x'")
        db.execute("DROP TRIGGER chat_removed")
        db.execute("DELETE FROM chats")
        db.execute("DELETE FROM messages WHERE id IN (SELECT min(id) FROM messages GROUP BY chat)")
    db.close()
    path.write_bytes(b"x" * 100 + path.read_bytes()[100:])
    assert opened(path)[0] == {chat: texts[1:] for chat, texts in whole.items()}


def test_rows_that_the_tables_refuse_are_left_out(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA ignore_check_constraints = ON")
        chat, gone = (row[0] for row in db.execute("SELECT id FROM chats LIMIT 2"))
        db.execute("UPDATE messages SET role = 'tool' WHERE chat = ? AND parent IS NULL", (chat,))
        db.execute("UPDATE messages SET chat = '../up' WHERE chat = ?", (gone,))
        db.execute("UPDATE chats SET id = 'no name' WHERE id = ?", (gone,))
        db.commit()
    path.write_bytes(b"x" * 100 + path.read_bytes()[100:])
    found, notice = opened(path)
    assert "27 messages in 7 chats were rescued" in notice and len(found[chat]) == 3


def test_a_log_as_a_kill_leaves_it_is_sound(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    whole = left_open(path)
    assert opened(path) == (whole, "")


def test_a_crash_before_the_backup_and_a_damaged_file_cost_nothing_of_the_log(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    whole = left_open(path)
    path.write_bytes(b"x" * PAGE + path.read_bytes()[PAGE:])
    found, notice = opened(path)
    assert found == whole and "were rescued" in notice


def test_a_kill_amid_a_rescue_repeats_or_ends_it(headless: Path, sound: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class KilledError(BaseException):
        pass

    real, whole = os.replace, kept_of(sound)
    for last in range(6):
        left = iter(range(last))

        def replace(source: Path, target: Path, left: Iterator[int] = left) -> None:
            if next(left, None) is None:
                raise KilledError
            real(source, target)

        monkeypatch.setattr(os, "replace", replace)
        with pytest.raises(KilledError):
            ChatStore(headless)
        monkeypatch.setattr(os, "replace", real)
        if last < 5:
            assert not list(headless.parent.glob("*damaged*"))
    assert not headless.exists() and opened(headless) == (whole, "")


def test_what_is_found_amid_the_chat_is_rescued_at_the_next_start(path: Path, sound: Path) -> None:
    whole = kept_of(sound)
    store = ChatStore(path)
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE message_words_data SET block = x'ffffffffffffffff'")
        db.commit()
    with pytest.raises(SlipstreamError, match="are damaged") as error:
        store.search("message")
        store.add_user(store.list_chats()[0].id, "x")
    assert "Start slipstream again" in error.value.hint
    store.close()
    found, notice = opened(path)
    assert {chat: texts[:4] for chat, texts in found.items()} == whole and "was damaged" in notice
    assert not path.with_name("chats.db.damaged").exists()


@pytest.mark.parametrize(
    ("was", "now"),
    [
        (b"message_added AFTER INSERT", b"message_added AFTER\xa0INSERT"),
        (b"tokenize='unicode61", b"tokenize='unicode\"1"),
    ],
)
def test_tables_that_make_no_sense_are_damage(path: Path, sound: Path, was: bytes, now: bytes) -> None:
    assert was in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(was, now))
    found, notice = opened(path)
    assert found == kept_of(sound) and "were rescued" in notice


def test_a_garbled_message_can_be_read_and_comes_from_the_backup(path: Path, sound: Path) -> None:
    raw = path.read_bytes()
    at = raw.index(b"message 3.1 ")
    path.write_bytes(raw[:at] + b"mess\xffge" + raw[at + 7 :])
    assert any(text.startswith("mess\ufffdge 3.1") for text in texts_of(kept_of(path)))
    newest = ChatReader(path).newest()
    assert sum(len(ChatReader(path).replies(chat, 0)) for chat in newest) == 16
    path.write_bytes(b"x" * 100 + path.read_bytes()[100:])
    for backup in of_days(path):
        backup.unlink()
    shutil.copy(of_days(sound)[0], path.parent)
    found, notice = opened(path)
    assert found == kept_of(sound) and ", 1 of them from a backup" in notice


def test_a_bad_place_of_the_disk_costs_its_rows(headless: Path, sound: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Bad(io.FileIO):
        def read(self, size: int | None = -1, /) -> bytes:
            if self.tell() // PAGE % 5 == 4:
                raise OSError(5, "input/output error")
            return super().read(-1 if size is None else size)

    real = Path.open

    def opens(file: Path, mode: str = "r", *more: Any, **options: Any) -> Any:
        return Bad(file) if file == headless else real(file, mode, *more, **options)

    monkeypatch.setattr(Path, "open", opens)
    found = kept_of(headless)
    assert texts_of(found) < texts_of(kept_of(sound)) and len(texts_of(found)) > len(texts_of(kept_of(sound))) // 4


def failing(*_: object, **__: object) -> Any:
    raise OSError(5, "Input/output error")


def broken(*_: object, **__: object) -> Any:
    raise sqlite3.OperationalError("disk I/O error")


def test_a_rescue_that_cannot_be_written_leaves_the_file(headless: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = headless.read_bytes()
    headless.with_name(".chats-rescued.db.1").write_bytes(b"of a start that was killed")
    for name, refusal in (("os.replace", failing), ("sqlite3.connect", broken)):
        with monkeypatch.context() as patch:
            patch.setattr(name, refusal)
            with pytest.raises(SlipstreamError, match="cannot write to"):
                ChatStore(headless)
        assert headless.read_bytes() == before
    assert "32 messages in 8 chats were rescued" in opened(headless)[1]
    assert not list(headless.parent.glob(".chats*"))


def test_two_instances_leave_a_damaged_file_to_the_last(path: Path) -> None:
    with closing(ChatStore(path)):
        raw = path.read_bytes()
        path.write_bytes(b"x" * 100 + raw[100:])
        with pytest.raises(SlipstreamError, match="are damaged") as error:
            ChatStore(path)
        assert "Close every other slipstream" in error.value.hint
        path.write_bytes(raw)


def test_commands_say_what_was_rescued_and_what_was_set_aside_is_kept_for_a_month(
    headless: Path, sound: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLIPSTREAM_HOME", str(headless.parent))
    with pytest.raises(SystemExit) as ended:
        main(["chats", "list"])
    assert ended.value.code == 0
    out, error = capsys.readouterr()
    assert len(out.splitlines()) == len(kept_of(sound))
    assert "were rescued. The file as it was is kept for a month" in error
    now = headless.stat().st_mtime + KEPT_ASIDE + 60
    monkeypatch.setattr("slipstream.app.chats.backups.time.time", lambda: now)
    assert list(headless.parent.glob("chats-damaged-*.db"))
    ChatStore(headless).close()
    assert not list(headless.parent.glob("*damaged*"))


@pytest.mark.parametrize(
    "change", ["ALTER TABLE messages ADD COLUMN other TEXT", 'ALTER TABLE chats ADD COLUMN "a) VALUES (1) --" TEXT']
)
def test_columns_that_this_version_does_not_know_cost_no_row(path: Path, change: str) -> None:
    expected = kept_of(path)
    with closing(sqlite3.connect(path)) as db:
        db.execute(change)
    marked(path).touch()
    assert opened(path)[0] == expected


def test_a_table_without_its_columns_costs_only_its_rows(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("ALTER TABLE messages RENAME TO words")
        db.execute("CREATE TABLE messages (other TEXT)")
        db.execute("INSERT INTO messages VALUES ('x')")
        db.commit()
    marked(path).touch()
    found, _ = opened(path)
    assert all(not texts for texts in found.values())
