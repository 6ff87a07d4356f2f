"""Locks between processes, and a check for network file systems, where no write-ahead log works."""

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
    r"|fuse\.(sshfs|rclone|s3fs|glusterfs|ceph.*|davfs.*|gvfsd.*|smbnetfs)|(mac|osx)fuse.*"
)
LOCKS: Final = (".lock", ".writer")
_AGAIN: Final = 0.005  # seconds between two tries


def is_remote(path: Path) -> bool:
    """Whether a folder is on a network file system, as far as the operating system reports it."""
    path = path.resolve()
    if sys.platform == "linux" and path.exists() and os.major(path.stat().st_dev):
        return False  # on a disk: a network file system has no device
    import psutil  # slow, and the chat's process needs it for this alone

    deepest, remote = 0, path.anchor.startswith("\\\\")  # Windows knows a share by its name, too
    with suppress(OSError):
        for mount in psutil.disk_partitions(all=True):
            point = Path(mount.mountpoint)
            if path.is_relative_to(point) and len(point.parts) >= deepest:  # the last of equal mounts counts
                deepest = len(point.parts)
                remote = "remote" in mount.opts.split(",") or _REMOTE.fullmatch(mount.fstype) is not None
    return remote


def hold(path: Path) -> tuple[IO[bytes], bool]:
    """Locks a file next to the database as one of its users; returns it, to be kept open, and whether it is alone."""
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
