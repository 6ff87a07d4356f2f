"""The journal of a download: the ranges of a file that are on the disk, with a checksum of each.

It consists of lines of JSON and is only appended to: first a line about the file, then one about the writing process,
then a line for each range, written after the range was synced. An incomplete last line, after a kill or a power
failure, is dropped. The checksums detect damaged ranges; the sha256 of the whole file decides whether it is correct.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from slipstream.models.errors import DownloadError
from slipstream.models.files import HeldError, close_removed, is_at, open_locked
from slipstream.models.hub.address import is_repo, safe_name
from slipstream.models.hub.types import RemoteFile
from slipstream.models.outside import count_of, parse_json, shown_path

ENDING: Final = ".journal"
_VERSION: Final = 1
_CLOSED: Final = -1
_LARGEST: Final = 64 << 20


@dataclass
class JournalContent:
    files: tuple[RemoteFile, ...]  # all files of the job, in order
    index: int  # the file that the journal describes
    # (start, end, CRC-32) of each synced range, in the order of writing
    ranges: list[tuple[int, int, int]] = field(default_factory=list)
    etag: str | None = None  # the hub's ETag when the download began; for a large file, this is its sha256
    owner: str = "another process"  # the writing process, for messages

    @property
    def file(self) -> RemoteFile:
        return self.files[self.index]


class Journal:
    """An open, locked journal."""

    def __init__(self, path: Path, files: Sequence[RemoteFile], index: int) -> None:
        """Opens, locks and reads the journal; empties it if it describes other content."""
        self.path = path
        try:
            self._handle = open_locked(path)
        except HeldError:
            there = read(path)
            raise _held(files[index], there.owner if there else "another process") from None
        try:
            there, good = _parsed(_content(self._handle))
            self.written = JournalContent(tuple(files), index)
            if there and _same_content(there, self.written):
                os.ftruncate(self._handle, good)
                self._length = good
                self.written.ranges, self.written.etag = there.ranges, there.etag
                self._append({"owner": _me()})
            else:
                self.restart()
        except BaseException:
            os.close(self._handle)
            raise

    def restart(self) -> None:
        os.ftruncate(self._handle, 0)
        self.written.ranges, self.written.etag = [], None
        self._length = 0
        self._append(*self._all())

    def note(self, start: int, end: int, crc: int) -> None:
        self._append({"from": start, "to": end, "crc": crc})
        self.written.ranges.append((start, end, crc))

    def expect(self, etag: str) -> None:
        self._append({"etag": etag})
        self.written.etag = etag

    def close(self, remove: bool = False) -> None:
        """Releases the lock; with ``remove``, deletes the journal. Further calls do nothing."""
        handle, self._handle = self._handle, _CLOSED
        if handle != _CLOSED and remove:
            close_removed(handle, self.path)
        elif handle != _CLOSED:
            os.close(handle)

    def _append(self, *rows: dict[str, Any]) -> None:
        """Appends lines; writes the whole journal again if another program removed or truncated it."""
        if not is_at(self._handle, self.path):
            try:
                handle = open_locked(self.path)
            except HeldError:
                raise _held(self.written.file, "another process") from None
            os.close(self._handle)
            self._handle = handle
        if os.fstat(self._handle).st_size != self._length:
            os.ftruncate(self._handle, 0)
            rows = (*self._all(), *rows)
        raw = "".join(json.dumps(row) + "\n" for row in rows).encode()
        os.lseek(self._handle, 0, os.SEEK_END)
        while raw:
            raw = raw[os.write(self._handle, raw) :]
        os.fsync(self._handle)
        self._length = os.fstat(self._handle).st_size

    def _all(self) -> Iterator[dict[str, Any]]:
        about, rows = self.written, [[file.name, file.size, file.sha256] for file in self.written.files]
        yield {
            "version": _VERSION,
            "repo": about.file.repo,
            "revision": about.file.revision,
            "files": rows,
            "index": about.index,
        }
        yield {"owner": _me()}
        if about.etag:
            yield {"etag": about.etag}
        for start, end, crc in about.ranges:
            yield {"from": start, "to": end, "crc": crc}


def _held(file: RemoteFile, holder: str) -> DownloadError:
    name = shown_path(file.name)
    return DownloadError(f"{name} is being downloaded by {holder}.", "Wait until that is done, or stop it there.")


def read(path: Path) -> JournalContent | None:
    """Reads a journal without locking it; None if its first line is damaged."""
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0))
        try:
            return _parsed(_content(handle))[0]
        finally:
            os.close(handle)
    return None


def _content(handle: int) -> bytes:
    os.lseek(handle, 0, os.SEEK_SET)
    found = bytearray()
    while len(found) < _LARGEST and (raw := os.read(handle, 1 << 20)):
        found += raw
    return bytes(found)


def _parsed(raw: bytes) -> tuple[JournalContent | None, int]:
    good, written = 0, None
    try:
        for line in raw.splitlines(keepends=True):
            if not line.endswith(b"\n"):
                break
            row = parse_json(line)
            if written is None:
                written = _about(row)
            elif "owner" in row:
                written.owner = str(row["owner"])
            elif "etag" in row:
                written.etag = str(row["etag"])
            else:
                start, end, crc = (count_of(row[key]) for key in ("from", "to", "crc"))
                if start is None or end is None or crc is None or not start < end <= written.file.size:
                    break
                written.ranges.append((start, end, crc))
            good += len(line)
    except (ValueError, LookupError, TypeError, AttributeError):
        pass  # damaged from here on; the lines before are still used, since every range is checked again
    return written, good


def _about(row: dict[str, Any]) -> JournalContent:
    repo, revision = str(row["repo"]), str(row["revision"])
    files = tuple(RemoteFile(repo, revision, name, size, sha256) for name, size, sha256 in row["files"])
    index = count_of(row["index"], len(files) - 1)
    if row["version"] != _VERSION or not is_repo(repo) or index is None:
        raise ValueError
    for file in files:
        if not safe_name(file.name) or count_of(file.size) is None or not isinstance(file.sha256, str | None):
            raise ValueError
    return JournalContent(files, index)


def _same_content(there: JournalContent, here: JournalContent) -> bool:
    """Whether bytes of one download are valid for the other: the same hash, or the same file of the same commit."""
    one, other = there.file, here.file
    if other.sha256:
        return one.size == other.size and other.sha256 in (one.sha256, there.etag)
    return (one.repo, one.revision, one.name, one.size) == (other.repo, other.revision, other.name, other.size)


def _me() -> str:
    return f"process {os.getpid()} on {platform.node() or 'this machine'}"


class Ranges:
    """A set of bytes of a file, kept as disjoint half-open ranges in order; there are few of them."""

    def __init__(self, ranges: Sequence[tuple[int, int]] = ()) -> None:
        self._ranges = list(ranges)

    @property
    def total(self) -> int:
        return sum(end - start for start, end in self._ranges)

    def add(self, start: int, end: int) -> None:
        if start < end:
            near = [each for each in self._ranges if each[0] <= end and start <= each[1]]  # they touch or overlap it
            whole = min([start, *(first for first, _ in near)]), max([end, *(last for _, last in near)])
            self._ranges = sorted([*(each for each in self._ranges if each not in near), whole])

    def missing(self, start: int, end: int) -> list[tuple[int, int]]:
        gaps: list[tuple[int, int]] = []
        for first, last in self._ranges:
            if start < min(first, end):
                gaps.append((start, min(first, end)))
            start = max(start, last)
        return [*gaps, (start, end)] if start < end else gaps

    def contiguous(self) -> int:
        """Length of the range that begins at the first byte."""
        return self._ranges[0][1] if self._ranges and self._ranges[0][0] == 0 else 0

    @property
    def end(self) -> int:
        return self._ranges[-1][1] if self._ranges else 0

    def copy(self) -> Ranges:
        return Ranges(self._ranges)
