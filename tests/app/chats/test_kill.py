"""Kills, and disks that fail at the n-th call: no corruption, a clear message, the text still there."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from tests.app.bundled_program import replies_of_run
from tests.app.kills import QUESTION, kill_played, kill_real
from tests.faults.shim import build, compiler
from tests.faults.sweep import sweep

from slipstream.app.chats.store import ChatStore

WRITER = """
import sys
from pathlib import Path
from slipstream.app.chats.store import ChatStore

store = ChatStore(Path(sys.argv[1]))
while True:
    chat = store.create().id
    asked = store.add_user(chat, "question " * 50)
    print(asked.id, len(asked.content), flush=True)
    reply = store.begin_reply(chat, model="m", fingerprint="f", drafter="draft", seed=1)
    for length in range(10, 200, 10):
        store.append_reply(reply.id, "0123456789", list(range(10)))
        print(reply.id, length, flush=True)
    store.finish_reply(reply.id)
"""


@pytest.mark.program
@pytest.mark.slow
def test_kill_loses_nothing_that_was_written(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    chance = random.Random(5)
    written: dict[int, int] = {}
    for _ in range(5):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        for _ in range(chance.randrange(3, 120)):
            number, length = map(int, writer.stdout.readline().split())
            written[number] = length
        os.kill(writer.pid, signal.SIGKILL)
        for line in writer.stdout.read().splitlines(keepends=True):
            if line.endswith("\n"):
                number, length = map(int, line.split())
                written[number] = length
        assert writer.wait() == -signal.SIGKILL
        writer.stdout.close()
        store = ChatStore(path)
        assert store.notice == ""
        with sqlite3.connect(path) as db:
            assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            kept = dict(db.execute("SELECT id, length(content) FROM messages"))
            assert all(kept[number] >= length for number, length in written.items())
            assert all(
                length == 4 * 10 * (kept[number] // 10)
                for number, length in db.execute("SELECT id, length(tokens) FROM messages WHERE role = 'assistant'")
            )
            assert db.execute("SELECT count(*) FROM messages WHERE status = 'streaming'").fetchone() == (0,)
        store.close()
    assert len(written) > 5


@pytest.mark.program
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_a_kill_of_the_interface_loses_next_to_nothing(seed: int, tmp_path: Path) -> None:
    assert kill_played(tmp_path, random.Random(seed)) == []


@pytest.mark.program
@pytest.mark.slow
def test_the_engine_of_a_killed_interface_ends_and_what_is_kept_is_the_models_text(tmp_path: Path) -> None:
    (reply,) = replies_of_run(tmp_path / "other", QUESTION)
    assert kill_real(tmp_path / "home", random.Random(1), reply).faults == []


FAULTS = ("open:EACCES", "open:EIO", "write:EIO", "write:ENOSPC", "fsync:EIO", "ftruncate:EIO", "rename:EACCES")
MOST = 2000  # far more places than there are: a scenario that never ends is no sweep


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("shim"))


@pytest.mark.skipif(not compiler(), reason="no C compiler: calls cannot be made to fail")
@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("scenario", ["chats", "migrations", "rescues"])
def test_nothing_is_lost_at_any_place(library: Path, scenario: str, fault: str) -> None:
    (swept,) = sweep(library, scenario, MOST, [fault])
    assert swept.wrong == []
    assert swept.whole, "there are later places"
    assert swept.runs and (swept.told or swept.call in ("ftruncate", "rename")), "nothing failed"
