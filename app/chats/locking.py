"""Locks between processes, and a check for network file systems, where no write-ahead log works."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final

from slipstream.app.platform.paths import private_folder, worded
from slipstream.models.errors import SlipstreamError

# file systems shared between machines; a write-ahead log needs memory that all its users share
_REMOTE: Final = re.compile(
    r"nfs4?|cifs|smb[23]?|smbfs|9p|virtiofs|afs|afpfs|ceph|glusterfs|lustre|gpfs|beegfs|ncpfs|davfs|webdav"
    r"|fuse\.(sshfs|rclone|s3fs|glusterfs|ceph.*|davfs.*|gvfsd.*|smbnetfs)"
)
_MACOS_FLAGS, _MACOS_LOCAL = 64, 0x1000  # offset of the flags in ``struct statfs``, and the flag of a local disk
_WINDOWS_REMOTE = 4
LOCKS: Final = (".lock", ".writer")
_AGAIN: Final = 0.005  # seconds between two tries


def is_remote(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> bool:
    """Whether a folder is on a network file system, as far as the operating system, or its ``mounts``, reports it."""
    path = path.resolve()
    with suppress(OSError, AttributeError, ValueError):
        if sys.platform == "win32":
            import ctypes  # no other system needs it

            return bool(ctypes.windll.kernel32.GetDriveTypeW(path.anchor) == _WINDOWS_REMOTE)
        if sys.platform == "darwin":
            import ctypes

            facts = ctypes.create_string_buffer(4096)
            if ctypes.CDLL(None, use_errno=True).statfs(os.fsencode(path), facts):
                return False
            return not int.from_bytes(facts.raw[_MACOS_FLAGS : _MACOS_FLAGS + 4], "little") & _MACOS_LOCAL
        best, kind = -1, ""
        for line in mounts.read_text("utf-8", "surrogateescape").splitlines():
            fields, _, system = line.partition(" - ")
            point = Path(re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), fields.split(" ")[4]))
            if (path == point or point in path.parents) and len(point.parts) >= best:  # the last of equal mounts counts
                best, kind = len(point.parts), system.split(" ")[0]
        return _REMOTE.fullmatch(kind) is not None
    return False


def free_names(path: Path) -> str:
    """Renames folders that have the names of the lock files; returns a line for the user, empty if there are none."""
    found = [name for end in LOCKS if (name := path.with_name(path.name + end)).is_dir()]
    for name in found:
        with worded(name):
            name.rename(name.with_name(f"{name.name}-{time.strftime('%Y-%m-%d-%H%M%S')}"))
    return f"{' and '.join(name.name for name in found)} was a folder, which has another name now." if found else ""


def hold(path: Path) -> tuple[IO[bytes], bool]:
    """Registers this process as a user of the database, by a shared lock on a file next to it.

    Returns the lock file, to be kept open, and whether no other process had the database open.
    """
    private_folder(path.parent)
    name = path.with_name(path.name + LOCKS[0])
    with worded(name):
        lock = os.fdopen(os.open(name, os.O_CREAT | os.O_RDWR, 0o600), "r+b")
    if sys.platform == "win32":  # no shared locks: every process counts as the only one
        return lock, True
    import fcntl

    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        alone = True
    except BlockingIOError:
        alone = False
    except OSError:  # a file system without locks: as on Windows
        return lock, True
    with suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_SH)
    return lock, alone


class ChatsInUseError(SlipstreamError):
    """Another program holds the file of chats."""


class Writers:
    """A lock for writing to a database.

    SQLite has its own, but before 3.51.3 it may damage a file when one connection resets the log while another writes
    ("WAL-reset bug"); this lock prevents that.
    """

    def __init__(self, path: Path, patience: float = 5.0) -> None:
        self._path, self._patience = path, patience
        name = path.with_name(path.name + LOCKS[1])
        with worded(name):
            self._file: IO[bytes] = os.fdopen(os.open(name, os.O_CREAT | os.O_RDWR, 0o600), "r+b", buffering=0)

    def close(self) -> None:
        self._file.close()

    @property
    def written(self) -> tuple[int, int] | None:
        """The device and inode of the database that a slipstream wrote anew; None if none did."""
        self._file.seek(0)
        found = self._file.read(100).split()
        return (int(found[0]), int(found[1])) if len(found) == 2 and all(map(bytes.isdigit, found)) else None

    @written.setter
    def written(self, file: tuple[int, int] | None) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._file.write(b"%d %d" % (file or (0, 0)))

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Holds the lock; raises ``ChatsInUseError`` if another process does for too long."""
        if sys.platform == "win32":  # relies on SQLite's own lock
            yield
            return
        import fcntl

        until = time.monotonic() + self._patience
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise ChatsInUseError(
                        f"{self._path} is in use by another slipstream.", "Wait until it is done, or close it."
                    ) from None
                time.sleep(_AGAIN)
            except OSError:  # a file system without locks
                break
        try:
            yield
        finally:
            with suppress(OSError):
                fcntl.flock(self._file, fcntl.LOCK_UN)
