"""Reads rows from a damaged SQLite file and its write-ahead log, page by page, like the shell's ``.recover``.

Every page that looks like a leaf of a table is read by itself, so a lost header, root or page loses no other page. A
row counts only if its lengths agree to the byte. File formats: https://sqlite.org/fileformat2.html and
https://sqlite.org/walformat.html.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

Value = int | float | str | bytes | None
_LEAF: Final = 13  # first byte of a page that holds rows
_USUAL_PAGE: Final = 4096
_INTEGERS: Final = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}
_MOST_BYTES: Final = 1 << 30
_LOG_HEADER: Final = 32
_FRAME_HEADER: Final = 24
_LOG_MAGIC: Final = (0x377F0682, 0x377F0683)
_WORD: Final = 0xFFFFFFFF


def rows(path: Path, trusted: bool) -> Iterator[tuple[int, list[Value]]]:
    """The rows of all tables with their numbers, unordered; the caller separates the tables by their columns.

    Args:
        path: The database; its log is in the same folder. Unreadable pages give no rows.
        trusted: Whether to leave out the log's frames after a damaged one.

    Raises:
        OSError: If an existing file cannot be opened: that may be temporary, and a rescue without it would lose rows.
    """
    with ExitStack() as files:
        main, log = (_opened(files, name) for name in (path, path.with_name(path.name + "-wal")))
        pages = _Pages(main, log, trusted)
        for number in pages.numbers():
            page = pages.read(number)
            start = 100 if number == 1 else 0
            if len(page) < start + 8 or page[start] != _LEAF:
                continue
            count = int.from_bytes(page[start + 3 : start + 5], "big")
            cells = page[start + 8 : start + 8 + 2 * count]
            for at in range(0, len(cells) - 1, 2):
                try:
                    yield _row(pages, page, int.from_bytes(cells[at : at + 2], "big"))
                except (ValueError, IndexError, struct.error):
                    continue  # other rows of the page may be sound


def is_log_damaged(path: Path) -> bool:
    """Whether a log has complete transactions after a damaged frame.

    SQLite stops reading at the first wrong checksum without an error, since a power cut leaves such a log.

    Args:
        path: The log; a missing one is sound.
    """
    try:
        with path.open("rb") as log:
            size = _log_page_size(log)
            if not size:  # damaged if there is more than a half-written header
                return len(log.read(_FRAME_HEADER + 512)) == _FRAME_HEADER + 512
            return any(frame.commits and not frame.sound for frame in _frames(log, size))
    except OSError:
        return False


# --- pages of the file and of the log -----------------------------------------------------------------------------


class _Frame(NamedTuple):
    """A page in the log; ``sound`` if it and all frames before it have correct checksums."""

    page: int
    commits: bool
    offset: int
    sound: bool


class _Pages:
    """The pages of a database; a page in the log replaces the one in the file."""

    def __init__(self, main: BinaryIO | None, log: BinaryIO | None, trusted: bool) -> None:
        self._main, self._log = main, log
        header = main.read(100) if main and not main.seek(0) else b""
        named = struct.unpack(">H", header[16:18])[0] if header[:15] == b"SQLite format 3" and len(header) == 100 else 0
        named = 65536 if named == 1 else named
        self.size = named if _is_page_size(named) else (_log_page_size(log) if log else 0) or _USUAL_PAGE
        length = main.seek(0, os.SEEK_END) if main else 0
        self._count = -(-length // self.size)
        frames = _frames(log, self.size) if log else iter(())
        self._logged = {frame.page: frame.offset for frame in frames if frame.sound or not trusted}

    def numbers(self) -> Iterator[int]:
        yield from range(1, self._count + 1)
        yield from sorted(number for number in self._logged if number > self._count)

    def read(self, number: int) -> bytes:
        """Reads a page; empty if it does not exist, shorter if the file ends inside it."""
        if number in self._logged:
            file, offset = self._log, self._logged[number]
        else:
            file, offset = (self._main if 1 <= number <= self._count else None), (number - 1) * self.size
        if file is None:
            return b""
        try:
            file.seek(offset)
            return file.read(self.size)
        except OSError:  # an unreadable block of the disk loses only its page
            return b""


def _opened(files: ExitStack, path: Path) -> BinaryIO | None:
    try:
        return files.enter_context(path.open("rb"))
    except (FileNotFoundError, IsADirectoryError):
        return None


def _is_page_size(size: int) -> bool:
    return 512 <= size <= 65536 and size & (size - 1) == 0


def _log_page_size(log: BinaryIO) -> int:
    """The page size in the log's header; 0 if it has none."""
    log.seek(0)
    header = log.read(_LOG_HEADER)
    size = int.from_bytes(header[8:12], "big")
    return size if _is_page_size(size) and int.from_bytes(header[:4], "big") in _LOG_MAGIC else 0


def _frames(log: BinaryIO, size: int) -> Iterator[_Frame]:
    """The frames since the last reset of the log, including those after a damaged one."""
    log.seek(0)
    header = log.read(_LOG_HEADER)
    order = ">" if header[3:4] == b"\x83" else "<"
    sums = _checksum(header[:24], (0, 0), order) if len(header) == _LOG_HEADER else (0, 0)
    sound = _log_page_size(log) == size and sums == struct.unpack(">II", header[24:32])
    salts = header[16:24] if sound else b""
    log.seek(_LOG_HEADER)
    offset = _LOG_HEADER + _FRAME_HEADER
    while len(raw := log.read(_FRAME_HEADER + size)) == _FRAME_HEADER + size:
        page, pages_at_commit = struct.unpack(">II", raw[:8])
        salts = salts or raw[8:16]  # the first frame is never older than the reset
        if sound:
            sums = _checksum(raw[:8] + raw[_FRAME_HEADER:], sums, order)
            sound = raw[8:16] == salts and page > 0 and sums == struct.unpack(">II", raw[16:24])
        if raw[8:16] == salts and page > 0:
            yield _Frame(page, pages_at_commit > 0, offset, sound)
        offset += _FRAME_HEADER + size


def _checksum(data: bytes, sums: tuple[int, int], order: str) -> tuple[int, int]:
    first, second = sums
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for one, other in zip(words[::2], words[1::2], strict=True):
        first = (first + one + second) & _WORD
        second = (second + other + first) & _WORD
    return first, second


# --- rows of a page -----------------------------------------------------------------------------------------------


def _row(pages: _Pages, page: bytes, at: int) -> tuple[int, list[Value]]:
    """Reads the row at an offset; ``ValueError``, ``IndexError`` or ``struct.error`` if there is none."""
    length, at = _varint(page, at)
    number, at = _varint(page, at)
    if not 0 < length <= _MOST_BYTES:
        raise ValueError
    return number - (1 << 64) if number >> 63 else number, _record(_payload(pages, page, at, length))


def _payload(pages: _Pages, page: bytes, at: int, length: int) -> bytes:
    """Reads a row's bytes; a long one continues in a chain of overflow pages."""
    usable = pages.size
    if length <= usable - 35:
        return page[at : at + length]
    least = (usable - 12) * 32 // 255 - 23
    local = least + (length - least) % (usable - 4)
    local = local if local <= usable - 35 else least
    payload = bytearray(page[at : at + local])
    following = int.from_bytes(page[at + local : at + local + 4], "big")
    while len(payload) < length:
        overflow = pages.read(following)
        if len(overflow) < 5:
            raise ValueError
        payload += overflow[4 : 4 + length - len(payload)]
        following = int.from_bytes(overflow[:4], "big")
    return bytes(payload)


def _record(payload: bytes) -> list[Value]:
    end, at = _varint(payload, 0)
    kinds = []
    while at < end:
        kind, at = _varint(payload, at)
        kinds.append(kind)
    if at != end or end + sum(map(_width, kinds)) != len(payload):
        raise ValueError
    values: list[Value] = []
    for kind in kinds:
        raw = payload[at : at + _width(kind)]
        at += len(raw)
        values.append(_value(kind, raw))
    return values


def _width(kind: int) -> int:
    if kind >= 12:
        return (kind - 12) // 2
    return 8 if kind == 7 else _INTEGERS.get(kind, 0)


def _value(kind: int, raw: bytes) -> Value:
    if kind >= 12:
        return raw.decode("utf-8", "replace") if kind % 2 else raw
    if kind in (10, 11):
        raise ValueError
    if kind == 7:
        return float(struct.unpack(">d", raw)[0])
    if kind in (8, 9):
        return kind - 8
    return int.from_bytes(raw, "big", signed=True) if kind else None


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place in range(8):
        byte = raw[at + place]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + place + 1
    return value << 8 | raw[at + 8], at + 9
