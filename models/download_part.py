"""One file of a download on its way to the disk: what came, what of it is good, and its place when it is whole."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from slipstream.models.download_journal import ENDING, Journal
from slipstream.models.download_ranges import Ranges
from slipstream.models.download_types import Tuning
from slipstream.models.download_words import damaged, disk_error, disk_full
from slipstream.models.hub_types import RemoteFile

PART: Final = ".part"
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_STEP: Final = 8 << 20  # bytes hashed at a time, so that a stop is heard


class PartFile:
    """``<file>.part`` and its journal, locked while this is open."""

    def __init__(self, files: Sequence[RemoteFile], index: int, folder: Path, tuning: Tuning) -> None:
        """Opens both, makes them if need be.

        Args:
            files: All files of the job.
            index: Which of them this is.
            folder: The folder of all models.
            tuning: How often to note what came.

        Raises:
            DownloadError: If they cannot be written, or someone else downloads the file.
        """
        self.file = files[index]
        self.path = self.file.path_in(folder)
        self.part = self.path.with_name(self.path.name + PART)
        self.ranges = Ranges()
        self.placed = False
        self._tuning = tuning
        self._whole = hashlib.sha256()
        self._hashed = 0
        with self._worded():
            _make_private(self.path.parent)
            self.journal = Journal(self.path.with_name(self.path.name + ENDING), files, index)
            try:
                handle = os.open(self.part, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o600)
                self._disk: BinaryIO = os.fdopen(handle, "r+b", buffering=0)
                if not self.journal.written.ranges:
                    self._disk.truncate(0)  # nobody knows what lies there
            except OSError:
                self.journal.close()
                raise

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        return self.file.size

    @property
    def expected(self) -> str | None:
        """The sha256 that it must have, as far as the hub has told it."""
        etag = self.journal.written.etag or ""
        return self.file.sha256 or (etag if is_sha256(etag) else None)

    @property
    def done(self) -> int:
        """Bytes that are there."""
        return self.size if self.placed else self.ranges.total

    @property
    def whole(self) -> bool:
        """Whether nothing is missing; not yet whether it is right."""
        return self.placed or self.ranges.total == self.size

    def check(self) -> Iterator[None]:
        """Reads what an earlier run left and keeps what is as it was noted; stops between steps.

        A file that is in its place already and has the right sha256 counts as done.
        """
        with self._worded():
            if self.expected and self.path.is_file() and self.path.stat().st_size == self.size:
                with self.path.open("rb") as there:
                    digest = hashlib.sha256()
                    while raw := there.read(_STEP):
                        digest.update(raw)
                        yield
                self.placed = digest.hexdigest() == self.expected
            for start, end, noted in [] if self.placed else list(self.journal.written.ranges):
                found = 0
                for place in range(start, end, _STEP):
                    found = zlib.crc32(self._read(place, min(_STEP, end - place)), found)
                    yield
                if found == noted:
                    self.ranges.add(start, end)
                while not self.hash_on():
                    yield

    def writer(self) -> Writer:
        """A new place to write to; each connection has its own."""
        return Writer(self, self._tuning)

    def restart(self) -> None:
        """Throws away all that came: it is not of the file that is there now."""
        with self._worded():
            self._disk.truncate(0)
            self.journal.restart()
        self.ranges = Ranges()
        self._whole, self._hashed = hashlib.sha256(), 0

    def hash_on(self) -> bool:
        """Hashes a step further into what is there from the start on; returns whether it got to the end of that."""
        end = self.ranges.contiguous()
        with self._worded():
            raw = self._read(self._hashed, min(_STEP, end - self._hashed))
        self._whole.update(raw)
        self._hashed += len(raw)
        return self._hashed == end

    def verify(self) -> None:
        """Compares the hash of the whole file; a damaged one is thrown away.

        Raises:
            DownloadError: If it is not what the hub promised.
        """
        got = self._whole.hexdigest()
        if self.expected and got != self.expected:
            wanted = self.expected
            self.discard()
            raise damaged(self.file, wanted, got)
        with self._worded():
            self._disk.truncate(self.size)
        self.sync()

    def place(self) -> None:
        """Gives a whole, verified file its name; then it is over with the journal."""
        with self._worded():
            self._disk.close()
            if self.placed:
                self.part.unlink(missing_ok=True)
            else:
                os.replace(self.part, self.path)
                self.placed = True
            _sync_folder(self.path.parent)
            self.journal.close(remove=True)

    def discard(self) -> int:
        """Removes what came; returns how many bytes that frees."""
        with self._worded():
            there = os.fstat(self._disk.fileno())
            freed = min(there.st_size, getattr(there, "st_blocks", 1 << 60) * 512)  # it has holes
            self._disk.close()
            self.part.unlink(missing_ok=True)
            self.journal.close(remove=True)
        return freed

    def close(self) -> None:
        """Lets go of both files and keeps what is left of them."""
        self._disk.close()
        self.journal.close()

    def expect(self, etag: str) -> None:
        """Writes down what the hub calls the content."""
        with self._worded():
            self.journal.expect(etag)

    def sync(self) -> None:
        """Waits until all that was written is on the disk."""
        with self._worded():
            os.fsync(self._disk.fileno())

    def note(self, start: int, end: int, crc: int) -> None:
        """Writes down that a range is good, once it is on the disk."""
        self.sync()
        with self._worded():
            self.journal.note(start, end, crc)
            self.hash_on()
            if end < self.size and shutil.disk_usage(self.path.parent).free < self._tuning.reserve // 4:
                raise disk_full(self.path)

    def put(self, offset: int, data: bytes) -> None:
        """Writes bytes to their place."""
        with self._worded():
            write_all(self._disk, offset, data)
        self.ranges.add(offset, offset + len(data))

    def _read(self, offset: int, count: int) -> bytes:
        self._disk.seek(offset)
        return self._disk.read(count) if count else b""

    @contextmanager
    def _worded(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise disk_error(self.path, error) from error


class Writer:
    """Writes what one connection brings, and notes it every so many bytes or seconds."""

    def __init__(self, part: PartFile, tuning: Tuning) -> None:
        """Has written nothing yet."""
        self._part = part
        self._step = max(1, tuning.interval // tuning.connections)
        self._seconds = tuning.interval_s
        self._start = self._position = 0
        self._crc = 0
        self._noted_at = time.monotonic()

    def write(self, offset: int, data: bytes) -> None:
        """Writes bytes to their place, and syncs and notes them when it is time.

        Raises:
            DownloadError: If the disk refuses them.
        """
        if offset != self._position:
            self.note()
            self._start = self._position = offset
        while data:
            piece = data[: self._step - (self._position - self._start)]
            self._part.put(self._position, piece)
            self._crc = zlib.crc32(piece, self._crc)
            self._position += len(piece)
            data = data[len(piece) :]
            late = time.monotonic() - self._noted_at > self._seconds
            if late or self._position - self._start >= self._step:
                self.note()

    def note(self) -> None:
        """Syncs and notes what was written since the last time."""
        if self._position > self._start:
            self._part.note(self._start, self._position, self._crc)
        self._start = self._position
        self._crc = 0
        self._noted_at = time.monotonic()


def is_sha256(text: str) -> bool:
    """Whether a text is a sha256 in hex."""
    return bool(_SHA256.fullmatch(text))


def write_all(disk: BinaryIO, offset: int, data: bytes) -> None:
    """Writes bytes to a place of an unbuffered file, which may take them in several goes."""
    disk.seek(offset)
    view = memoryview(data)
    while view:
        view = view[disk.write(view) :]


def _make_private(folder: Path) -> None:
    """Makes a folder and its parents; those that are new are their owner's alone."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    for place in reversed(missing):
        place.mkdir(mode=0o700, exist_ok=True)


def _sync_folder(folder: Path) -> None:
    if os.name == "posix":  # elsewhere folders cannot be opened
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
