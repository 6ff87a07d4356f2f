"""Damaged chats: what can be read is rescued, the rest comes from a backup, and the screen says so."""

from __future__ import annotations

import io
import os
import random
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.app.chats.damaged import BREAKS, filled, kept, left_open

from slipstream.app.chats.backups import of_days
from slipstream.app.chats.reading import ChatReader
from slipstream.app.chats.rescue import KEPT_ASIDE
from slipstream.app.chats.store import ChatStore
from slipstream.app.cli.main import main
from slipstream.models.errors import SlipstreamError

PAGE = 4096


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed store with its backup of the day."""
    path = tmp_path_factory.mktemp("sound") / "chats.db"
    filled(path)
    return path


@pytest.fixture
def path(tmp_path: Path, sound: Path) -> Path:
    """A copy without a backup."""
    return Path(shutil.copy(sound, tmp_path / "chats.db"))


def opened(path: Path) -> tuple[dict[str, list[str]], str]:
    """What a store has after it was opened, and what it says."""
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


def test_a_sound_file_stays(path: Path, sound: Path) -> None:
    assert opened(path) == (kept_of(sound), "")
    assert not list(path.parent.glob("*damaged*"))


def kept_of(path: Path) -> dict[str, list[str]]:
    with closing(ChatStore(path)) as store:
        return kept(store)


@pytest.mark.parametrize("place", [0, 15, 16, 18, 19, 20, 21, 28, 44, 47, 56, 59, 60, 63, range(100)])
def test_a_damaged_header_costs_nothing(path: Path, sound: Path, place: int | range) -> None:
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


@pytest.mark.parametrize("seed", range(6))
def test_damaged_pages_cost_their_rows_and_a_backup_has_those(path: Path, sound: Path, seed: int) -> None:
    whole = kept_of(sound)
    texts = {text for chat in whole.values() for text in chat}
    raw = bytearray(path.read_bytes())
    chance = random.Random(seed)
    for at in chance.sample(range(1, len(raw) // PAGE), 1 + 3 * (seed // 2)):
        raw[at * PAGE : at * PAGE + PAGE] = chance.randbytes(PAGE) if seed % 2 else bytes(PAGE)
    path.write_bytes(raw)
    second = Path(shutil.copytree(path.parent, path.parent / "second")) / "chats.db"
    shutil.copy(of_days(sound)[0], second.parent)
    found, notice = opened(path)
    rescued = {text for chat in found.values() for text in chat}
    assert rescued <= texts and len(rescued) > len(texts) // 4 and "were rescued" in notice
    found, notice = opened(second)
    assert found == whole and ("from a backup of" in notice) == (rescued != texts)


@pytest.mark.parametrize("length", [1, 100, PAGE, 5 * PAGE + 77])
def test_what_a_truncated_file_has_left_is_rescued(path: Path, sound: Path, length: int) -> None:
    path.write_bytes(path.read_bytes()[:length])
    found, notice = opened(path)
    texts = {text for chat in kept_of(sound).values() for text in chat}
    assert {text for chat in found.values() for text in chat} <= texts and notice
    assert bool(found) == (length > PAGE)


@pytest.mark.parametrize("how", ["empty", "folder"])
def test_a_file_that_is_none_is_made_anew_of_the_backup(path: Path, sound: Path, how: str) -> None:
    shutil.copy(of_days(sound)[0], path.parent)
    path.unlink()
    if how == "folder":
        path.mkdir()
        (path / "inside").write_text("stays")
    else:
        path.touch()
    found, notice = opened(path)
    assert found == kept_of(sound)
    assert how in notice and "from a backup" in notice
    (aside,) = path.parent.glob("chats-damaged-*.db")
    assert how == "empty" or (aside / "inside").read_text() == "stays"


def test_an_empty_file_without_a_past_is_a_new_one(tmp_path: Path) -> None:
    (tmp_path / "chats.db").touch()
    assert opened(tmp_path / "chats.db") == ({}, "")


def test_rows_without_a_chat_or_a_question_find_a_place(path: Path, sound: Path) -> None:
    whole = kept_of(sound)
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA foreign_keys = OFF")
        for (chat,) in db.execute("SELECT id FROM chats").fetchall():
            db.execute("UPDATE messages SET speed = '{', seed = 'x' WHERE chat = ?", (chat,))
        db.execute("DROP TRIGGER chat_removed")
        db.execute("DELETE FROM chats")
        db.execute("DELETE FROM messages WHERE id IN (SELECT min(id) FROM messages GROUP BY chat)")
    db.close()
    path.write_bytes(b"x" * 100 + path.read_bytes()[100:])
    found, _ = opened(path)
    assert found == {chat: texts[1:] for chat, texts in whole.items()}


@pytest.mark.parametrize("how", BREAKS)
def test_a_damaged_log_is_noticed_and_read_past_the_damage(tmp_path: Path, how: str) -> None:
    path = tmp_path / "chats.db"
    whole = left_open(path)
    log = path.with_name("chats.db-wal")
    log.write_bytes(BREAKS[how](log.read_bytes()))
    found, notice = opened(path)
    if how == "all garbage":
        assert notice and found.keys() <= whole.keys()
    elif how == "cut short":  # as a power cut leaves it
        assert notice == "" and found.keys() <= whole.keys()
    else:
        assert "had a damaged log" in notice
        lost = [text for chat, texts in whole.items() for text in texts if text not in found.get(chat, [])]
        assert len(lost) <= 3, "more than the damaged frame held"


def test_a_log_as_a_kill_leaves_it_is_sound(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    whole = left_open(path)
    assert opened(path) == (whole, "")


def test_a_kill_amid_the_rescue_begins_it_again_or_ends_it(
    path: Path, sound: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class KilledError(BaseException):
        pass

    path.write_bytes(b"x" * 100 + path.read_bytes()[100:])
    real, whole = os.replace, kept_of(sound)
    for last in range(6):
        left = iter(range(last))

        def replace(source: Path, target: Path, left: Iterator[int] = left) -> None:
            if next(left, None) is None:
                raise KilledError
            real(source, target)

        monkeypatch.setattr(os, "replace", replace)
        with pytest.raises(KilledError):
            ChatStore(path)
        monkeypatch.setattr(os, "replace", real)
        if last < 5:
            assert not list(path.parent.glob("*damaged*"))
    assert not path.exists()
    assert opened(path) == (whole, "")


def test_what_is_found_amid_the_chat_is_rescued_at_the_next_start(path: Path, sound: Path) -> None:
    whole = kept_of(sound)
    store = ChatStore(path)
    store.database.execute("UPDATE message_words_data SET block = x'00ff00ff'")
    with pytest.raises(SlipstreamError, match="are damaged") as error:
        store.search("message")
        store.add_user(store.list_chats()[0].id, "x")
    assert "Start slipstream again" in error.value.hint
    store.close()
    found, notice = opened(path)
    assert {chat: texts[:4] for chat, texts in found.items()} == whole and "was damaged" in notice
    assert not path.with_name("chats.db.damaged").exists()


def test_a_full_text_index_is_checked_too(path: Path, sound: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("UPDATE message_words_data SET block = x'00ff00ff' WHERE id > 10")
    db.close()
    found, notice = opened(path)
    assert found == kept_of(sound) and "were rescued" in notice


def test_a_table_whose_words_are_garbled_is_damage(path: Path, sound: Path) -> None:
    raw = path.read_bytes()
    assert raw.count(b"CREATE TRIGGER message_added AFTER INSERT") == 1
    path.write_bytes(raw.replace(b"message_added AFTER INSERT", b"message_added AFTER\xa0INSERT"))
    found, notice = opened(path)
    assert found == kept_of(sound) and "were rescued" in notice


def test_a_garbled_message_comes_from_the_backup(path: Path, sound: Path) -> None:
    raw = path.read_bytes()
    at = raw.index(b"message 3.1 ")
    path.write_bytes(b"x" * 100 + raw[100:at] + b"mess\xffge 3.1 " + raw[at + 12 :])
    second = Path(shutil.copytree(path.parent, path.parent / "second")) / "chats.db"
    shutil.copy(of_days(sound)[0], second.parent)
    found, _ = opened(path)
    garbled = [text for chat in found.values() for text in chat if "\ufffd" in text]
    assert [text[:12] for text in garbled] == ["mess\ufffdge 3.1 "]
    found, notice = opened(second)
    assert found == kept_of(sound) and ", 1 of them from a backup" in notice


def test_a_message_that_the_disk_garbled_can_be_read(path: Path) -> None:
    raw = path.read_bytes()
    at = raw.index(b"message 3.1 ")
    path.write_bytes(raw[:at] + b"mess\xffge" + raw[at + 7 :])
    with closing(ChatStore(path)) as store:
        assert any("mess\ufffdge 3.1" in text for texts in kept(store).values() for text in texts)
        newest = ChatReader(path).newest()
        assert sum(len(ChatReader(path).replies(chat, 0)) for chat in newest) == 16


def test_a_bad_place_of_the_disk_costs_what_stood_there(
    path: Path, sound: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Bad(io.BufferedReader):
        def read(self, size: int | None = -1, /) -> bytes:
            if self.tell() // PAGE % 5 == 3:
                raise OSError(5, "input/output error")
            return super().read(size)

    path.write_bytes(b"x" * 100 + path.read_bytes()[100:])
    real = Path.open

    def opens(file: Path, mode: str = "r", **options: Any) -> Any:
        return Bad(io.FileIO(file)) if file == path else real(file, mode, **options)

    monkeypatch.setattr(Path, "open", opens)
    with closing(ChatStore(path)) as store:
        found = {text for texts in kept(store).values() for text in texts}
        assert "were rescued" in store.notice
    texts = {text for texts in kept_of(sound).values() for text in texts}
    assert found < texts and len(found) > len(texts) // 4


def test_two_instances_leave_a_damaged_file_to_the_last(path: Path) -> None:
    with closing(ChatStore(path)):
        raw = path.read_bytes()
        path.write_bytes(b"x" * 100 + raw[100:])
        with pytest.raises(SlipstreamError, match="are damaged") as error:
            ChatStore(path)
        assert "Close every other slipstream" in error.value.hint
        path.write_bytes(raw)


def test_commands_say_what_was_rescued(
    path: Path, sound: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLIPSTREAM_HOME", str(path.parent))
    path.write_bytes(b"x" * 100 + path.read_bytes()[100:])
    with pytest.raises(SystemExit) as ended:
        main(["chats", "list"])
    assert ended.value.code == 0
    out, error = capsys.readouterr()
    assert len(out.splitlines()) == len(kept_of(sound))
    assert "were rescued. The file as it was is kept for a month" in error


def test_what_was_set_aside_is_kept_for_a_month(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_bytes(b"x" * 100 + path.read_bytes()[100:])
    opened(path)
    assert list(path.parent.glob("chats-damaged-*.db"))
    now = path.stat().st_mtime + KEPT_ASIDE + 60
    monkeypatch.setattr("slipstream.app.chats.rescue.time.time", lambda: now)
    ChatStore(path).close()
    assert not list(path.parent.glob("*damaged*"))
