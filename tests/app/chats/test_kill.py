"""Kills, failing disks, several writers, other people: no corruption, a clear message, the text still there."""

import os
import random
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from tests.app.bundled_program import replies_of_run
from tests.app.kills import QUESTION, kill_played, kill_real
from tests.faults.shim import build, compiler
from tests.faults.sweep import sweep

from slipstream.app.chats.exporting import write_export
from slipstream.app.chats.locking import Writers, is_remote
from slipstream.app.chats.store import ChatStore
from slipstream.app.platform.paths import Paths
from slipstream.models.errors import SlipstreamError

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
MANY = """
import sys
from pathlib import Path
from slipstream.app.chats.store import ChatStore

store = ChatStore(Path(sys.argv[1]))
print("open", flush=True)
for number in range(30):
    chat = store.create().id
    store.add_user(chat, f"message {number}")
    if number % 3 == 0:
        store.delete(chat)
        store.erase_deleted(0)
store.close()
"""
MOUNTS = (
    ("/", "ext4", "rw,relatime"),
    ("/mnt/share", "nfs4", "rw"),
    ("/mnt/share/own", "btrfs", "rw"),
    ("/mnt/two words", "cifs", "rw"),
    ("/mnt/over", "ext4", "rw"),
    ("/mnt/over", "fuse.sshfs", "rw"),
    ("/mnt/near", "fuse.portal", "rw"),
    ("/mnt/drive", "NTFS", "rw,remote"),
)


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
@pytest.mark.parametrize("seed", range(4))  # more of them: tests.soak.kills
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


@pytest.fixture(params=[0o022, 0o000], ids=["umask 022", "umask 000"])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.mark.skipif(os.name != "posix", reason="modes of POSIX")
@pytest.mark.usefixtures("umask")
def test_only_the_owner_may_read(tmp_path: Path) -> None:
    path = tmp_path / "new" / "home" / "chats.db"
    paths = Paths.default({"SLIPSTREAM_HOME": str(path.parent)})
    store = ChatStore(path, paths.states, paths.heads, paths.index)
    store.add_user(store.create().id, "x")
    growing = {file.name for file in path.parent.iterdir()}
    assert {"chats.db", "chats.db-wal", "chats.db-shm"} <= growing
    found = {file: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.rglob("*")}
    write_export(tmp_path / "new" / "export.md", "x")
    store.close()
    path.write_bytes(b"x" * 100 + path.read_bytes()[100:])
    ChatStore(path).close()
    found |= {file: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.rglob("*")}
    assert {file.name for file in found} >= growing | {"export.md"}
    assert any("-day-" in file.name for file in found) and any("-damaged-" in file.name for file in found)
    for file, mode in found.items():
        assert mode == (0o700 if file.is_dir() else 0o600) or not file.exists(), f"{file}: {mode:o}"


@pytest.mark.skipif(os.name != "posix", reason="paths of POSIX")
def test_network_file_systems_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = [SimpleNamespace(mountpoint=point, fstype=kind, opts=opts) for point, kind, opts in MOUNTS]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: mounts)
    for folder, remote in (
        ("/home/me", False),
        ("/mnt/share/me", True),
        ("/mnt/share", True),
        ("/mnt/share/own/me", False),
        ("/mnt/shared", False),
        ("/mnt/two words", True),
        ("/mnt/over/me", True),
        ("/mnt/near", False),
        ("/mnt/drive/me", True),
    ):
        assert is_remote(Path(folder)) == remote, folder
    monkeypatch.setattr(os, "major", lambda device: 0)  # as for every network file system on Linux
    mounts.append(SimpleNamespace(mountpoint="/", fstype="nfs4", opts=""))
    assert is_remote(Path("/"))
    mounts.clear()
    assert not is_remote(Path("/"))


def test_no_write_ahead_log_on_a_network_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "chats.db"
    with closing(ChatStore(path)) as store:
        old = store.create("old").id
    monkeypatch.setattr("slipstream.app.chats.database.is_remote", lambda folder: True)
    with closing(ChatStore(path)) as store:
        assert store.database.execute("PRAGMA journal_mode").fetchone() == ("truncate",)
        chat = store.create().id
        store.add_user(chat, "the plover nests")
        assert store.database.execute("PRAGMA synchronous").fetchone() == (2,), (
            "without a log a power cut could do harm"
        )
        reply = store.begin_reply(chat, model="m", fingerprint="f", drafter="d", seed=1)
        store.append_reply(reply.id, "avocet", [1])
        assert store.database.execute("PRAGMA synchronous").fetchone() == (2,)
        assert not path.with_name("chats.db-wal").exists() and not path.with_name("chats.db-shm").exists()
        store.delete(chat)
        store.erase_deleted(0)
        files = b"".join(file.read_bytes() for file in tmp_path.iterdir())
        assert b"plover" not in files and b"avocet" not in files
    monkeypatch.undo()
    with closing(ChatStore(path)) as store:
        assert store.database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert [chat.id for chat in store.list_chats()] == [old]


def test_instances_at_once_wait_for_each_other(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    command = [sys.executable, "-c", MANY, str(path)]
    with closing(ChatStore(path)) as store:
        children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        for child in children:
            assert child.stdout and child.stdout.readline() == "open\n"
        chat = store.create().id
        for number in range(30):
            store.add_user(chat, f"own {number}")
            with store.database.exclusive():
                store.database.execute("PRAGMA wal_checkpoint").fetchall()
        for child in children:
            child.communicate()
            assert child.returncode == 0
        assert len(store.messages(chat)) == 30 and len(store.list_chats(1000)) == 1 + 2 * 20
        assert store.database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.skipif(sys.platform == "win32", reason="no such lock there")
def test_whoever_waits_too_long_is_told(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    with closing(ChatStore(path)) as store:
        other = Writers(path, patience=0.0)
        with (
            store.database.exclusive(),
            pytest.raises(SlipstreamError, match="in use by another") as error,
            other.alone(),
        ):
            pass
        assert error.value.hint
        goes_on = threading.Event()
        with other.alone():

            def create() -> None:
                store.create()
                goes_on.set()

            waiting = threading.Thread(target=create)
            waiting.start()
            assert not goes_on.is_set()
        waiting.join()
        assert goes_on.is_set() and len(store.list_chats()) == 1
        other.close()
