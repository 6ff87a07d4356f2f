"""The unfinished file of a download: writes and verifies its bytes, then moves it into place."""

import errno
import hashlib
import os
import shutil
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from slipstream.models.errors import DownloadError
from slipstream.models.files import is_at, make_folder, open_own, sync_folder
from slipstream.models.hub.journal import ENDING, Journal, Ranges
from slipstream.models.hub.types import RemoteFile, Tuning
from slipstream.models.hub.words import disk_error, disk_full, interfered
from slipstream.models.outside import is_sha256, shown_path

PART: Final = ".part"
_STEP: Final = 8 << 20  # bytes hashed between two polls of ``cancelled``


class PartFile:
    """``<file>.part`` and its journal, locked while open."""

    def __init__(self, files: Sequence[RemoteFile], index: int, folder: Path, tuning: Tuning) -> None:
        self.file, self.size = files[index], files[index].size
        self.path = self.file.path_in(folder)
        self.part = self.path.with_name(self.path.name + PART)
        self.ranges = Ranges()
        self.placed = False
        self._tuning = tuning
        self._sha256 = hashlib.sha256()
        self._hashed = 0
        with self._explain_errors():
            make_folder(self.path.parent)
            if self.path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            self.journal = Journal(self.path.with_name(self.path.name + ENDING), files, index)
            try:
                self._disk: BinaryIO = os.fdopen(open_own(self.part), "r+b", buffering=0)
                if not self.journal.written.ranges:
                    self._disk.truncate(0)  # without a journal its bytes are unknown
            except OSError:
                self.journal.close()
                raise

    @property
    def expected(self) -> str | None:
        """The expected sha256; None if the hub has not stated it."""
        etag = self.journal.written.etag or ""
        return self.file.sha256 or (etag if is_sha256(etag) else None)

    @property
    def done(self) -> int:
        return self.size if self.placed else self.ranges.total

    @property
    def whole(self) -> bool:
        """Whether all bytes are on the disk; they are not verified yet."""
        return self.placed or self.ranges.total == self.size

    def check(self) -> Iterator[None]:
        """Checks an earlier run's ranges against their checksums, yielding between; a whole final file is done."""
        with self._explain_errors():
            if self.expected and self.path.is_file() and self.path.stat().st_size == self.size:
                with self.path.open("rb") as file:
                    digest = hashlib.sha256()
                    while raw := file.read(_STEP):
                        digest.update(raw)
                        yield
                self.placed = digest.hexdigest() == self.expected
            for start, end, recorded in [] if self.placed else list(self.journal.written.ranges):
                found = 0
                for offset in range(start, end, _STEP):
                    found = zlib.crc32(self._read(offset, min(_STEP, end - offset)), found)
                    yield
                if found == recorded:
                    self.ranges.add(start, end)
                while not self.hash_more():
                    yield

    def restart(self) -> None:
        with self._explain_errors():
            self._disk.truncate(0)
            self.journal.restart()
        self.ranges = Ranges()
        self._sha256, self._hashed = hashlib.sha256(), 0

    def hash_more(self) -> bool:
        """Hashes the next bytes of the contiguous start of the file; returns whether all of it is hashed."""
        end = self.ranges.contiguous()
        with self._explain_errors():
            raw = self._read(self._hashed, min(_STEP, end - self._hashed))
            if not raw and self._hashed < end:
                raise interfered(self.part)
        self._sha256.update(raw)
        self._hashed += len(raw)
        return self._hashed == end

    def verify(self) -> None:
        """Checks the sha256 of the complete file; removes it if it is damaged."""
        got = self._sha256.hexdigest()
        if self.expected and got != self.expected:
            wanted = self.expected
            self.discard()
            raise DownloadError(
                f"{shown_path(self.file.name)} arrived damaged: its sha256 is {got[:12]}…, not {wanted[:12]}….",
                "It was removed. Download it again; if it happens again, a proxy or the connection alters it.",
            )
        self._check_untouched()
        with self._explain_errors():
            self._disk.truncate(self.size)
        self.sync()

    def place(self) -> None:
        """Renames the verified file into place and removes the journal."""
        with self._explain_errors():
            self._disk.close()
            if self.placed:
                self.part.unlink(missing_ok=True)
            else:
                os.replace(self.part, self.path)
                self.placed = True
            sync_folder(self.path.parent)
            self.journal.close(remove=True)

    def discard(self) -> int:
        """Removes both files; returns the number of bytes that this frees."""
        with self._explain_errors():
            stat = os.fstat(self._disk.fileno())
            freed = min(stat.st_size, getattr(stat, "st_blocks", 1 << 60) * 512)  # the file is sparse
            self._disk.close()
            self.part.unlink(missing_ok=True)
            self.journal.close(remove=True)
        return freed

    def close(self) -> None:
        self._disk.close()
        self.journal.close()

    def expect(self, etag: str) -> None:
        with self._explain_errors():
            self.journal.expect(etag)

    def sync(self) -> None:
        with self._explain_errors():
            os.fsync(self._disk.fileno())

    def note(self, start: int, end: int, crc: int) -> None:
        """Syncs a range, then records it in the journal."""
        self._check_untouched()
        self.sync()
        with self._explain_errors():
            self.journal.note(start, end, crc)
            self.hash_more()
            if end < self.size and shutil.disk_usage(self.path.parent).free < self._tuning.reserve // 4:
                raise disk_full(self.path)

    def put(self, offset: int, data: bytes) -> None:
        self._check_untouched()  # a write past the end of a truncated file would hide the loss
        with self._explain_errors():
            write_all(self._disk, offset, data)
        self.ranges.add(offset, offset + len(data))

    def _check_untouched(self) -> None:
        with self._explain_errors():
            if not is_at(self._disk.fileno(), self.part) or os.fstat(self._disk.fileno()).st_size < self.ranges.end:
                raise interfered(self.part)

    def _read(self, offset: int, count: int) -> bytes:
        self._disk.seek(offset)
        return self._disk.read(count) if count else b""

    @contextmanager
    def _explain_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise disk_error(self.path, error) from error


class Writer:
    """Writes the bytes of one connection; syncs and records them after some bytes or seconds."""

    def __init__(self, part: PartFile, tuning: Tuning) -> None:
        self._part = part
        self._interval = max(1, tuning.interval // tuning.connections)
        self._interval_s = tuning.interval_s
        self._start = self._position = 0
        self._crc = 0
        self._noted_at = time.monotonic()
        self.received = 0

    def write(self, offset: int, data: bytes) -> None:
        """Writes bytes at an offset, and syncs and records them when due."""
        if offset != self._position:
            self.note()
            self._start = self._position = offset
        while data:
            piece = data[: self._interval - (self._position - self._start)]
            self._part.put(self._position, piece)
            self._crc = zlib.crc32(piece, self._crc)
            self._position += len(piece)
            self.received += len(piece)
            data = data[len(piece) :]
            late = time.monotonic() - self._noted_at > self._interval_s
            if late or self._position - self._start >= self._interval:
                self.note()

    def note(self) -> None:
        if self._position > self._start:
            self._part.note(self._start, self._position, self._crc)
        self._start = self._position
        self._crc = 0
        self._noted_at = time.monotonic()


def write_all(disk: BinaryIO, offset: int, data: bytes) -> None:
    """Writes all bytes at an offset; one ``write`` of an unbuffered file may write only some of them."""
    disk.seek(offset)
    view = memoryview(data)
    while view:
        view = view[disk.write(view) :]
