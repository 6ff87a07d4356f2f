"""Chats of an older version, and damaged ones, are opened while the disk fails: nothing of them is lost."""

import os
import shutil
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from tests.app.chats.damaged import filled, kept
from tests.app.chats.older import OLDER, older
from tests.faults.shim import Outcome

from slipstream.app.chats.store import ChatStore
from slipstream.models.errors import SlipstreamError


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
        wrong: list[str] = []
        told = False
        arm()
        try:
            ChatStore(folder / "chats.db").close()
        except SlipstreamError as error:
            told = True
            if not error.title or not error.hint:
                wrong.append(f"no help: {error.title!r}")
        except Exception as error:
            wrong.append(f"unworded: {error!r}")
        seen = disarm()
        return Outcome(seen, told, wrong + self.look(folder / "chats.db"))

    def killed(self, folder: Path, arm: Callable[[], None]) -> Outcome:
        """Goes through it in a process that is killed at the call; that call was seen if it was."""
        shutil.copytree(self.past, folder)
        child = os.fork()
        if child == 0:
            arm()
            ChatStore(folder / "chats.db").close()
            os._exit(0)
        reached = os.WIFSIGNALED(os.waitpid(child, 0)[1])
        return Outcome(sys.maxsize if reached else 0, False, self.look(folder / "chats.db"))

    def look(self, path: Path) -> list[str]:
        try:
            with closing(ChatStore(path)) as store:
                faults = store.database.execute("PRAGMA integrity_check").fetchall() != [("ok",)]
                lost = kept(store) != self.texts
        except Exception as error:
            return [f"afterwards: {error!r}"]
        return ["lost texts"] * lost + ["the file has faults"] * faults


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
