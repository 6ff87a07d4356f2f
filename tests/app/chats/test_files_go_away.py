"""Files of chats that another program deletes, replaces or empties while they are open: noticed, said, rewritten."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest
from tests.app.chats.damaged import filled, talk

from slipstream.app.chats.backups import of_days
from slipstream.app.chats.store import ChatStore
from slipstream.models.errors import SlipstreamError

pytestmark = pytest.mark.skipif(os.name != "posix", reason="elsewhere, open files cannot be deleted")
OTHERS: Final = 3  # chats that are kept beside the open one


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with chats and a backup of them."""
    home = tmp_path / "home"
    filled(home / "chats.db", OTHERS)
    return home


class OpenChat:
    """A store with an open chat of two branches, and what it says."""

    def __init__(self, home: Path) -> None:
        self.path = home / "chats.db"
        self.store = ChatStore(self.path)
        self.said: list[str] = []
        self.store.listen(self.said.append)
        self.chat = self.store.create().id
        first = self.say("one")
        self.say("one, in other words", beside=first)
        self.say("two")

    def say(self, text: str, beside: int | None = None) -> int:
        asked = self.store.add_user(self.chat, text, beside)
        reply = self.store.begin_reply(self.chat, model="m", fingerprint="f", drafter="d", seed=1)
        self.store.append_reply(reply.id, "re", [1])
        self.store.finish_reply(reply.id, text=f"reply to {text}", tokens=[1, 2], reason="stop")
        return asked.id

    def texts(self) -> list[str]:
        return texts_of(self.store, self.chat)


def texts_of(store: ChatStore, chat: str) -> list[str]:
    return [message.content for message, _ in store.all_messages(chat)]


WHOLE: Final = [f"{way}{text}" for text in ("one", "one, in other words", "two", "three") for way in ("", "reply to ")]


def delete_home(home: Path) -> None:
    shutil.rmtree(home)


def delete_chats(home: Path) -> None:
    for path in home.glob("chats.db*"):
        path.unlink()


def delete(*ends: str) -> Callable[[Path], None]:
    def harm(home: Path) -> None:
        for end in ends:
            (home / f"chats.db{end}").unlink()

    return harm


def empty(*ends: str) -> Callable[[Path], None]:
    def harm(home: Path) -> None:
        for end in ends:
            os.truncate(home / f"chats.db{end}", 0)

    return harm


def cut(home: Path) -> None:
    os.truncate(home / "chats.db", 3 * 4096)


def overwrite(home: Path) -> None:
    with (home / "chats.db").open("r+b") as file:
        file.write(b"x" * 20_000)


def move_home(home: Path) -> None:
    home.rename(home.with_name("moved"))


def move_database(home: Path) -> None:
    (home / "chats.db").rename(home / "moved.db")


def replace(content: bytes) -> Callable[[Path], None]:
    def harm(home: Path) -> None:
        (home / "new").write_bytes(content)
        (home / "new").replace(home / "chats.db")

    return harm


def replace_by_folder(home: Path) -> None:
    delete_chats(home)
    (home / "chats.db").mkdir()


def replace_by_dangling_link(home: Path) -> None:
    (home / "chats.db").unlink()
    (home / "chats.db").symlink_to(home / "nothing" / "chats.db")


def replace_by_older(home: Path) -> None:
    shutil.copy(of_days(home / "chats.db")[-1], home / "older")
    (home / "older").replace(home / "chats.db")


def overwrite_by_older(home: Path) -> None:
    shutil.copyfile(of_days(home / "chats.db")[-1], home / "chats.db")


def open_again_after_deleting(home: Path) -> None:
    """A second slipstream begins new chats where the first one's were deleted."""
    delete("")(home)
    ChatStore(home / "chats.db").close()


HARMS: Final[dict[str, tuple[Callable[[Path], None], str]]] = {
    "the folder deleted": (delete_home, "was deleted or moved"),
    "all files deleted": (delete_chats, "was deleted or moved"),
    "the database deleted": (delete(""), "was deleted or moved"),
    "the log deleted": (delete("-wal"), "chats.db-wal was deleted"),
    "the log's index deleted": (delete("-shm"), "chats.db-wal was deleted"),
    "log and index deleted": (delete("-wal", "-shm"), "chats.db-wal was deleted"),
    "the locks deleted": (delete(".lock", ".writer"), ""),
    "the database emptied": (empty(""), "was overwritten"),
    "the log emptied": (empty("-wal"), "was overwritten"),
    "all files emptied": (empty("", "-wal", "-shm", ".lock", ".writer"), "was overwritten"),
    "the database cut short": (cut, "was overwritten"),
    "the database overwritten": (overwrite, "was overwritten"),
    "the folder moved": (move_home, "was deleted or moved"),
    "the database moved": (move_database, "was deleted or moved"),
    "replaced by a text": (replace(b"no database\n" * 500), "was replaced"),
    "replaced by an empty file": (replace(b""), "was replaced"),
    "replaced by a folder": (replace_by_folder, "was replaced"),
    "replaced by a dangling link": (replace_by_dangling_link, "was deleted or moved"),
    "replaced by an older copy": (replace_by_older, "was replaced: the chats of the new file are used"),
    "overwritten by an older copy": (overwrite_by_older, ""),
    "begun anew by another process": (open_again_after_deleting, "was replaced"),
}


@pytest.mark.parametrize("harm", HARMS)
def test_the_open_chat_and_the_others_survive(home: Path, harm: str) -> None:
    harmed, words = HARMS[harm]
    chat = OpenChat(home)
    harmed(home)
    chat.say("three")
    assert [words in said for said in chat.said] == ([True] if words else [])
    assert chat.texts() == WHOLE
    chat.store.close()
    with closing(ChatStore(chat.path)) as store:
        assert store.notice == ""
        assert texts_of(store, chat.chat) == WHOLE
        assert len(store.forks(chat.chat)) == 1, "the branches are as they were"
        assert sorted(len(texts_of(store, other.id)) for other in store.list_chats()) == [4] * OTHERS + [len(WHOLE)]
        assert {hit.chat for hit in store.search("three")} == {chat.chat}


@pytest.mark.parametrize("harm", HARMS)
def test_they_survive_a_kill_after_that(home: Path, harm: str) -> None:
    harmed, _ = HARMS[harm]
    child = os.fork()
    if not child:
        chat = OpenChat(home)
        harmed(home)
        chat.say("three")
        os._exit(0)  # nothing is closed, as by a kill
    assert os.waitpid(child, 0)[1] == 0
    with closing(ChatStore(home / "chats.db")) as store:
        found = [texts_of(store, chat.id) for chat in store.list_chats()]
        assert WHOLE in found and len(found) == OTHERS + 1


def test_a_file_of_other_chats_is_used_and_nothing_of_the_old_is_lost(home: Path, tmp_path: Path) -> None:
    with closing(ChatStore(tmp_path / "other" / "chats.db")) as store:
        talk(store, OTHERS + 4)
        foreign = {chat.id: texts_of(store, chat.id) for chat in store.list_chats()}
    chat = OpenChat(home)
    others = {kept.id: texts_of(chat.store, kept.id) for kept in chat.store.list_chats() if kept.id != chat.chat}
    reply = chat.store.begin_reply(chat.chat, model="m", fingerprint="f", drafter="d", seed=1)
    (tmp_path / "other" / "chats.db").replace(chat.path)
    chat.store.append_reply(reply.id, "half", [1])  # a reply goes on, though its number is another message's now
    chat.store.finish_reply(reply.id, text="half of it", tokens=[1], reason="stop")
    chat.say("three")
    (said,) = chat.said
    assert "What it does not have is kept for a month: " in said
    aside = home / said.split(": ")[-1].rstrip(".")
    chat.store.close()
    with closing(ChatStore(chat.path)) as store:
        assert texts_of(store, chat.chat) == [*WHOLE[:6], "half of it", *WHOLE[6:]]
        assert {kept.id: texts_of(store, kept.id) for kept in store.list_chats() if kept.id != chat.chat} == foreign
    with closing(sqlite3.connect(aside)) as db:
        assert {str(name) for (name,) in db.execute("SELECT id FROM chats")} >= set(others)


def test_two_instances_go_on_in_one_new_file(home: Path) -> None:
    one, other = OpenChat(home), OpenChat(home)
    delete_chats(home)
    one.say("three")
    other.say("three")
    assert "was deleted or moved" in one.said[0] and len(one.said) == 1
    assert other.said == [], "the other one had it written already"
    for chat in (one, other):
        assert chat.texts() == WHOLE
        chat.store.close()


def test_a_chat_that_another_instance_deletes_does_not_come_back(home: Path) -> None:
    one, other = OpenChat(home), OpenChat(home)
    other.store.delete(one.chat)
    other.store.erase_deleted(0)
    one.store.check_files()
    with pytest.raises(SlipstreamError, match="there is no chat"):
        one.say("three")
    assert one.said == []
    one.store.close()
    other.store.close()


def test_what_cannot_be_written_beside_the_files_is_written_elsewhere(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    chat = OpenChat(home)
    shutil.rmtree(home)
    home.write_text("a file has its name now")
    assert len(chat.texts()) == 6, "what is open can be read still"
    with pytest.raises(SlipstreamError, match="cannot write to"):
        chat.say("three")
    assert len(chat.said) == 1
    chat.store.close()
    (place,) = tmp_path.glob("slipstream-chats-*.db")
    assert f"The chats are in {place}: move it to {chat.path}." in chat.said[-1]
    home.unlink()
    home.mkdir()
    place.replace(chat.path)
    with closing(ChatStore(chat.path)) as store:
        assert texts_of(store, chat.chat) == WHOLE[:6] and len(store.list_chats()) == OTHERS + 1


def test_a_folder_that_takes_nothing_more_is_tried_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chat = OpenChat(home)
    delete_chats(home)
    real = os.open

    def full(path: Path, *arguments: int) -> int:
        if str(path).startswith(str(home)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", full)
        with pytest.raises(SlipstreamError, match="no space left"):
            chat.say("three")
    chat.say("three")
    assert chat.texts() == WHOLE
    chat.store.close()


def test_an_older_copy_over_a_file_without_a_log_gets_the_open_chat_back(home: Path) -> None:
    chat = OpenChat(home)
    with chat.store.database.exclusive():
        chat.store.database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    overwrite_by_older(home)
    chat.say("three")
    assert chat.said == ["chats.db was overwritten: the chats of the new file are used, and this one with them."]
    assert chat.texts() == WHOLE
    chat.store.close()
    with closing(ChatStore(chat.path)) as store:
        assert texts_of(store, chat.chat) == WHOLE and len(store.list_chats()) == OTHERS + 1


def test_a_log_that_goes_away_while_another_program_reads_it(home: Path) -> None:
    chat = OpenChat(home)
    with closing(sqlite3.connect(chat.path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM messages").fetchall()
        chat.say("three")  # the reader keeps this in the log
        chat.store.database.execute("PRAGMA busy_timeout = 0")
        delete("-wal")(home)
        assert chat.texts() == WHOLE
    assert "chats.db lost its log: 20 messages in 4 chats were written to a new file." in chat.said[0]
    chat.store.close()
    with closing(ChatStore(chat.path)) as store:
        assert texts_of(store, chat.chat) == WHOLE and len(store.list_chats()) == OTHERS + 1


def test_a_new_file_that_cannot_be_opened_at_once_is_opened_later(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise SlipstreamError("the disk is asleep.", "Wake it.")

    chat = OpenChat(home)
    delete_chats(home)
    with monkeypatch.context() as patch:
        patch.setattr("slipstream.app.chats.database.open_database", refused)
        for _ in range(2):
            with pytest.raises(SlipstreamError, match="asleep"):
                chat.say("three")
    chat.say("three")
    assert chat.texts() == WHOLE
    chat.store.close()


def test_chats_that_can_be_written_nowhere_are_said(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chat = OpenChat(home)
    shutil.rmtree(home)
    home.write_text("a file has its name now")
    monkeypatch.setattr(tempfile, "tempdir", str(home / "nothing"))
    chat.store.close()
    assert "could not be written elsewhere either" in chat.said[-1]
    home.unlink()


# --- at the start -------------------------------------------------------------------------------------------------


def test_chats_that_were_deleted_come_from_the_backup(home: Path) -> None:
    delete_chats(home)
    with closing(ChatStore(home / "chats.db")) as store:
        assert "chats.db was missing: 12 messages in 3 chats were rescued, 12 of them from a backup" in store.notice
        assert "kept for a month" not in store.notice, "there was no file to keep"
        assert len(store.list_chats()) == OTHERS


def test_a_log_without_its_database_is_rescued(tmp_path: Path) -> None:
    child = os.fork()
    if not child:
        OpenChat(tmp_path)
        os._exit(0)
    os.waitpid(child, 0)
    (tmp_path / "chats.db").unlink()
    with closing(ChatStore(tmp_path / "chats.db")) as store:
        (chat,) = store.list_chats()
        assert "was missing" in store.notice and texts_of(store, chat.id) == WHOLE[:6]


def test_a_new_database_does_not_rotate_away_what_was_lost(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A week of backups of new chats leaves the last one that has the old chats."""
    path = home / "chats.db"
    first = of_days(path)[0].rename(path.with_name("chats-day-2020-01-01.db"))
    shutil.copy(first, path.with_name("chats-day-2020-01-02.db"))
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA foreign_keys = ON")
        db.execute("DELETE FROM chats")  # not as their owner deletes them
        db.commit()
    for day in range(10):
        for backup in of_days(path):
            os.utime(backup, (1.0, 1.0))
        monkeypatch.setattr("slipstream.app.chats.backups.time.strftime", lambda *_, day=day: f"2020-02-{day:02}")
        with closing(ChatStore(path)) as store:
            store.add_user(store.create().id, "new")
    days = ["2020-01-02", *(f"2020-02-{day:02}" for day in range(3, 10))]
    assert [backup.name[10:20] for backup in of_days(path)] == days


def test_a_backup_of_no_file_is_not_made(home: Path) -> None:
    chat = OpenChat(home)
    delete_home(home)
    chat.store.close()
    for backup in of_days(chat.path):
        with closing(sqlite3.connect(backup)) as db:
            assert db.execute("SELECT count(*) FROM messages").fetchone() == (6 + 4 * OTHERS,)
