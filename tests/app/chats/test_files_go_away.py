"""Files of chats that another program deletes or replaces while they are open: noticed, said, written anew."""

import errno
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

import pytest
from tests.app.chats.damaged import filled

from slipstream.app.chats.backups import of_days
from slipstream.app.chats.store import ChatStore
from slipstream.models.errors import SlipstreamError

pytestmark = pytest.mark.skipif(os.name != "posix", reason="elsewhere, open files cannot be deleted")
OTHERS: Final = 3  # chats that are kept beside the open one


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    filled(home / "chats.db", OTHERS)
    return home


class OpenChat:
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


def delete_chats(home: Path) -> None:
    for path in home.glob("chats.db*"):
        path.unlink()


def delete_locks(home: Path) -> None:
    for end in (".lock", ".writer"):
        (home / f"chats.db{end}").unlink()


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


GONE, OTHER = "was deleted or moved", "was replaced"
HARMS: Final[dict[str, tuple[Callable[[Path], object], str]]] = {
    "the folder deleted": (shutil.rmtree, GONE),
    "all files deleted": (delete_chats, GONE),
    "the database deleted": (lambda home: (home / "chats.db").unlink(), GONE),
    "the locks deleted": (delete_locks, ""),
    "the folder moved": (lambda home: home.rename(home.with_name("moved")), GONE),
    "the database moved": (lambda home: (home / "chats.db").rename(home / "moved.db"), GONE),
    "replaced by a text": (replace(b"no database\n" * 500), OTHER),
    "replaced by an empty file": (replace(b""), OTHER),
    "replaced by a folder": (replace_by_folder, GONE),
    "replaced by a dangling link": (replace_by_dangling_link, GONE),
    "replaced by an older copy": (replace_by_older, OTHER),
}


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("harm", HARMS)
def test_all_chats_survive_and_it_is_said(home: Path, harm: str, killed: bool) -> None:
    harmed, words = HARMS[harm]
    if killed:
        child = os.fork()
        if not child:
            with suppress(BaseException):
                chat = OpenChat(home)
                harmed(home)
                chat.say("three")
                os._exit(0)  # nothing is closed
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
    else:
        chat = OpenChat(home)
        harmed(home)
        chat.say("three")
        assert [words in said for said in chat.said] == ([True] if words else [])
        assert chat.texts() == WHOLE
        chat.store.close()
    with closing(ChatStore(home / "chats.db")) as store:
        assert store.notice == ""
        found = {other.id: texts_of(store, other.id) for other in store.list_chats()}
        (name,) = (name for name, texts in found.items() if texts == WHOLE)
        assert sorted(map(len, found.values())) == [4] * OTHERS + [len(WHOLE)]
        assert len(store.forks(name)) == 1, "the branches are as they were"
        assert {hit.chat for hit in store.search("three")} == {name}


def test_the_file_that_replaced_it_is_kept_for_a_month(home: Path) -> None:
    chat = OpenChat(home)
    replace(b"of another program")(home)
    chat.say("three")
    aside = home / chat.said[0].split(": ")[-1].rstrip(".")
    assert "The other file is kept for a month" in chat.said[0] and aside.read_bytes() == b"of another program"
    chat.store.close()


def test_two_instances_go_on_in_one_new_file(home: Path) -> None:
    one, other = OpenChat(home), OpenChat(home)
    reply = other.store.begin_reply(other.chat, model="m", fingerprint="f", drafter="d", seed=1)
    delete_chats(home)
    one.say("three")
    other.store.append_reply(reply.id, "half", [1])  # a reply goes on
    other.store.finish_reply(reply.id, text="half of it", tokens=[1], reason="stop")
    other.say("three")
    assert GONE in one.said[0] and len(one.said) == 1
    assert other.said == [], "the other one had it written already"
    assert one.texts() == WHOLE and other.texts() == [*WHOLE[:6], "half of it", *WHOLE[6:]]
    for chat in (one, other):
        chat.store.close()


def test_a_start_while_the_file_is_gone_begins_no_second_one(home: Path) -> None:
    chat = OpenChat(home)
    chat.path.unlink()
    with pytest.raises(SlipstreamError, match="was deleted, but another slipstream still has it open"):
        ChatStore(chat.path)
    chat.say("three")
    with closing(ChatStore(chat.path)) as store:
        assert texts_of(store, chat.chat) == WHOLE
    chat.store.close()


def test_a_chat_that_another_instance_deletes_does_not_come_back(home: Path) -> None:
    one, other = OpenChat(home), OpenChat(home)
    other.store.delete(one.chat)
    other.store.erase_deleted(0)
    with pytest.raises(SlipstreamError, match="there is no chat"):
        one.say("three")
    assert one.said == []
    one.store.close()
    other.store.close()


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
        assert len(chat.texts()) == 6, "what is open can be read still"
        with pytest.raises(SlipstreamError, match="no space left"):
            chat.say("three")
    chat.say("three")
    assert chat.texts() == WHOLE and len(chat.said) == 1
    chat.store.close()


def test_a_file_deleted_after_the_last_message_is_written_at_the_end(home: Path) -> None:
    chat = OpenChat(home)
    shutil.rmtree(home)
    chat.store.close()
    assert GONE in chat.said[0]
    for path in (chat.path, *of_days(chat.path)):
        with closing(sqlite3.connect(path)) as db:
            assert db.execute("SELECT count(*) FROM messages").fetchone() == (6 + 4 * OTHERS,)


def test_chats_that_can_be_written_nowhere_are_said(home: Path) -> None:
    chat = OpenChat(home)
    shutil.rmtree(home)
    home.write_text("a file has its name now")
    chat.store.close()
    assert "cannot write to" in chat.said[-1]
    home.unlink()


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
        monkeypatch.setattr("slipstream.app.chats.backups.time.strftime", lambda *_, day=day: f"2020-02-{day:02}")
        with closing(ChatStore(path)) as store:
            store.add_user(store.create().id, "new")
    days = ["2020-01-02", *(f"2020-02-{day:02}" for day in range(3, 10))]
    assert [backup.name[10:20] for backup in of_days(path)] == days
