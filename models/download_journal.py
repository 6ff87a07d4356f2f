"""The journal of a download: which ranges of a file are on the disk, and a checksum of each.

Lines of JSON, only ever appended: the file that it is about, who writes, then one line for each range that was
synced to the disk before. A line that was cut off by a kill or a power failure is dropped. The checksum tells what a
crash or the disk did to a range; whether the file is the right one, its sha256 tells.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from slipstream.models.download_lock import HeldError, close_removed, open_locked
from slipstream.models.download_words import held
from slipstream.models.hub_address import is_repo, safe_name
from slipstream.models.hub_types import RemoteFile

ENDING: Final = ".journal"
_VERSION: Final = 1
_CLOSED: Final = -1
_LARGEST: Final = 64 << 20


@dataclass
class Written:
    """What a journal says.

    Attributes:
        files: All files of the job, in order.
        index: Which of them the journal is about.
        ranges: (start, end, CRC-32) of what was synced, in the order of writing.
        etag: What the hub called the content when the download began; of a large file its sha256.
        owner: Who writes, in words.
    """

    files: tuple[RemoteFile, ...]
    index: int
    ranges: list[tuple[int, int, int]] = field(default_factory=list)
    etag: str | None = None
    owner: str = "another process"

    @property
    def file(self) -> RemoteFile:
        """The file that it is about."""
        return self.files[self.index]


class Journal:
    """An open, locked journal."""

    def __init__(self, path: Path, files: Sequence[RemoteFile], index: int) -> None:
        """Opens it and reads what it holds; a journal about other content is begun anew.

        Args:
            path: Of the journal.
            files: All files of the job.
            index: Which of them it is about.

        Raises:
            DownloadError: If someone else has it; names them.
            OSError: If it cannot be opened or written.
        """
        self.path = path
        try:
            self._handle = open_locked(path)
        except HeldError:
            there = read(path)
            raise held(files[index], there.owner if there else "another process") from None
        try:
            there, good = _parsed(_content(self._handle))
            self.written = Written(tuple(files), index)
            if there and _same_content(there, self.written):
                os.ftruncate(self._handle, good)
                self.written.ranges, self.written.etag = there.ranges, there.etag
                self._append({"owner": _me()})
            else:
                self.restart()
        except BaseException:
            os.close(self._handle)
            raise

    def restart(self) -> None:
        """Forgets all ranges."""
        os.ftruncate(self._handle, 0)
        self.written.ranges, self.written.etag = [], None
        head = self.written
        rows = [[file.name, file.size, file.sha256] for file in head.files]
        about = {"version": _VERSION, "repo": head.file.repo, "revision": head.file.revision}
        self._append({**about, "files": rows, "index": head.index}, {"owner": _me()})

    def note(self, start: int, end: int, crc: int) -> None:
        """Writes down a range that has been synced."""
        self._append({"from": start, "to": end, "crc": crc})
        self.written.ranges.append((start, end, crc))

    def expect(self, etag: str) -> None:
        """Writes down what the hub calls the content."""
        self._append({"etag": etag})
        self.written.etag = etag

    def close(self, remove: bool = False) -> None:
        """Gives up the lock, and removes the journal if the download is over; the first call counts."""
        handle, self._handle = self._handle, _CLOSED
        if handle != _CLOSED and remove:
            close_removed(handle, self.path)
        elif handle != _CLOSED:
            os.close(handle)

    def _append(self, *rows: dict[str, Any]) -> None:
        raw = "".join(json.dumps(row) + "\n" for row in rows).encode()
        os.lseek(self._handle, 0, os.SEEK_END)
        while raw:
            raw = raw[os.write(self._handle, raw) :]
        os.fsync(self._handle)


def read(path: Path) -> Written | None:
    """What a journal says, read without its lock; None if it says nothing that makes sense."""
    with contextlib.suppress(OSError):
        return _parsed(path.read_bytes()[:_LARGEST])[0]
    return None


def _content(handle: int) -> bytes:
    os.lseek(handle, 0, os.SEEK_SET)
    found = bytearray()
    while len(found) < _LARGEST and (raw := os.read(handle, 1 << 20)):
        found += raw
    return bytes(found)


def _parsed(raw: bytes) -> tuple[Written | None, int]:
    """Returns what stands there and how many bytes of it are whole lines."""
    good, written = 0, None
    try:
        for line in raw.splitlines(keepends=True):
            if not line.endswith(b"\n"):
                break
            row = json.loads(line)
            if written is None:
                written = _about(row)
            elif "owner" in row:
                written.owner = str(row["owner"])
            elif "etag" in row:
                written.etag = str(row["etag"])
            else:
                start, end, crc = int(row["from"]), int(row["to"]), int(row["crc"])
                if not 0 <= start < end <= written.file.size:
                    break
                written.ranges.append((start, end, crc))
            good += len(line)
    except (ValueError, LookupError, TypeError, AttributeError):
        pass  # from here on it is damaged: what stands before still counts, and every range is read again anyway
    return written, good


def _about(row: dict[str, Any]) -> Written:
    repo, revision = str(row["repo"]), str(row["revision"])
    files = tuple(RemoteFile(repo, revision, str(name), int(size), sha256) for name, size, sha256 in row["files"])
    if row["version"] != _VERSION or not is_repo(repo) or not all(safe_name(file.name) for file in files):
        raise ValueError
    written = Written(files, int(row["index"]))
    assert written.file.size >= 0
    return written


def _same_content(there: Written, here: Written) -> bool:
    """Whether bytes fetched for one are good for the other; the same hash will do, whatever the commit."""
    one, other = there.file, here.file
    if other.sha256:
        return one.size == other.size and other.sha256 in (one.sha256, there.etag)
    return (one.repo, one.revision, one.name, one.size) == (other.repo, other.revision, other.name, other.size)


def _me() -> str:
    return f"process {os.getpid()} on {platform.node() or 'this machine'}"
