"""A chat from its beginning to its deletion, while the disk fails: what was said to be kept is kept."""

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.faults.shim import Outcome

from slipstream.app.chats.recording import Event, recorded
from slipstream.app.chats.store import ChatStore
from slipstream.app.protocol.events import Done, Piece, Stepped
from slipstream.app.speed import Speed

WORDS = tuple(f"word{number} " * 40 for number in range(6))
SECRET = "the plover nests at dawn"


class Chats:
    def __init__(self, folder: Path) -> None:
        self.past = folder / "past"
        with closing(ChatStore(self.past / "chats.db")) as store:
            store.open_or_create("old")
            store.add_user("old", "said before")
            store.open_or_create("secret")
            store.add_user("secret", SECRET)
        for backup in self.past.glob("chats-*"):
            backup.unlink()  # the scenario makes its own

    def run(self, folder: Path, arm: Callable[[], None], disarm: Callable[[], int]) -> Outcome:
        shutil.copytree(self.past, folder)
        self.found = Outcome()
        self.kept: list[tuple[str, str]] = [("old", "said before")]
        self.deleted = self.erased = False
        arm()
        with self.found.armed(), closing(ChatStore(folder / "chats.db")) as store:
            self._talk(store)
        self.found.seen = disarm()
        with self.found.afterwards():
            self._look(folder)
        return self.found

    def _talk(self, store: ChatStore) -> None:
        """Each step for itself: after an error the next one is tried."""
        if self._step(lambda: store.open_or_create("new")) and self._step(lambda: store.add_user("new", "question")):
            self.kept.append(("new", "question"))
        reply: list[Any] = []
        if self._step(lambda: reply.append(store.begin_reply("old", model="m", fingerprint="f", drafter="d", seed=1))):
            shown: list[str] = []
            if self._step(lambda: self._stream(store, reply[0].id, shown)):
                self.kept.append(("old", "".join(WORDS)))
            if shown != list(WORDS):
                self.found.wrong.append("the reply did not stay on the screen")
        self._step(lambda: store.rename("old", "A title"))
        self.deleted = self._step(lambda: store.delete("secret"))
        self.erased = self._step(lambda: store.erase_deleted(0.0)) and self.deleted
        if self._step(lambda: store.add_user("old", "and more")):
            self.kept.append(("old", "and more"))

    def _stream(self, store: ChatStore, reply: int, shown: list[str]) -> None:
        def events() -> Iterator[Event]:
            for number, word in enumerate(WORDS):
                yield Stepped(1, [Piece(word, "plain")], [number], "none", 0, 0, 99.0, Speed(tokens=number))
            yield Done(1, "stop", "".join(WORDS), [*range(len(WORDS))], 9, 4, 0, 3.0, Speed(tokens=9), [], {})

        for event in recorded(events(), store, reply):
            if isinstance(event, Stepped):
                shown += [piece.text for piece in event.pieces]

    def _step(self, call: Callable[[], object]) -> bool:
        done = False
        with self.found.armed():
            call()
            done = True
        return done

    def _look(self, folder: Path) -> None:
        path = folder / "chats.db"
        with closing(ChatStore(path)) as store:
            if store.notice:
                self.found.wrong.append(f"damaged: {store.notice}")
            for chat, text in self.kept:
                if text not in [message.content for message in store.messages(chat)]:
                    self.found.wrong.append(f"lost: {text[:20]} of {chat}")
            store.add_user("old", "after it all")
            if self.erased and self._secret_in(folder):
                self.found.wrong.append("what was erased is still there")
        if self.deleted and self._secret_in(folder):
            self.found.wrong.append("what was deleted is still there after the next start")
        with closing(sqlite3.connect(path)) as db:
            if db.execute("PRAGMA integrity_check").fetchall() != [("ok",)]:
                self.found.wrong.append("the file has faults")
        if left := [file.name for file in folder.iterdir() if file.name.startswith(".")]:
            self.found.wrong.append(f"left behind: {left}")

    def _secret_in(self, folder: Path) -> bool:
        return any(SECRET.encode() in file.read_bytes() for file in folder.iterdir())
