"""Chats of an older version, and damaged ones, are opened while the disk fails: nothing of them is lost."""

import os
import shutil
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from tests.app.chats.damaged import OLDER, filled, kept, older
from tests.faults.shim import Outcome

from slipstream.app.chats.store import ChatStore


class Opening:
    """A scenario: a file is opened, and opened again when the disk is well."""

    def __init__(self, folder: Path) -> None:
        self.past = folder / "past"
        self.past.mkdir(parents=True)
        self.prepare(self.past / "chats.db")
        whole = Path(shutil.copytree(self.past, folder / "whole")) / "chats.db"
        with closing(ChatStore(whole)) as store:
            self.texts = kept(store)
        assert any(self.texts.values())

    def prepare(self, path: Path) -> None:
        raise NotImplementedError

    def run(self, folder: Path, arm: Callable[[], None], disarm: Callable[[], int]) -> Outcome:
        shutil.copytree(self.past, folder)
        found = Outcome()
        arm()
        with found.armed():
            ChatStore(folder / "chats.db").close()
        found.seen = disarm()
        return self.look(found, folder)

    def killed(self, folder: Path, arm: Callable[[], None]) -> Outcome:
        """Goes through it in a process that is killed at the call; that call was seen if it was."""
        shutil.copytree(self.past, folder)
        child = os.fork()
        if child == 0:
            arm()
            ChatStore(folder / "chats.db").close()
            os._exit(0)
        reached = os.WIFSIGNALED(os.waitpid(child, 0)[1])
        return self.look(Outcome(sys.maxsize if reached else 0), folder)

    def look(self, found: Outcome, folder: Path) -> Outcome:
        with found.afterwards(), closing(ChatStore(folder / "chats.db")) as store:
            faults = store.database.execute("PRAGMA integrity_check").fetchall() != [("ok",)]
            lost = kept(store) != self.texts
            found.wrong += ["lost texts"] * lost + ["the file has faults"] * faults
        return found


class Rescues(Opening):
    def prepare(self, path: Path) -> None:
        filled(path, 3)
        path.write_bytes(b"x" * 100 + path.read_bytes()[100:])
        for backup in path.parent.glob("chats-*"):
            backup.unlink()


class Migrations(Opening):
    version = OLDER[0]

    def prepare(self, path: Path) -> None:
        older(path, self.version)


class LastMigration(Migrations):
    version = OLDER[-1]
