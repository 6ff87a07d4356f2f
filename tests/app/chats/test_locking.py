"""Where chats are kept, who may read them, and who writes when several want to."""

import os
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

from slipstream.app.chats.exporting import write_export
from slipstream.app.chats.locking import Writers, is_remote
from slipstream.app.chats.store import ChatStore
from slipstream.app.platform.paths import Paths
from slipstream.models.errors import SlipstreamError

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


WRITER = """
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


def test_instances_at_once_wait_for_each_other(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    command = [sys.executable, "-c", WRITER, str(path)]
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
