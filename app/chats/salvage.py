"""Reads rows out of a damaged SQLite file, page by page, as the shell's ``.recover`` does.

No page is asked for another: every page that looks like a leaf of a table is read for itself, so that a lost header, a
lost root or a hole in the middle costs no other page. A row counts only if its lengths agree to the byte. Sources:
https://sqlite.org/fileformat2.html and, for what the log holds, https://sqlite.org/walformat.html.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, Final

from slipstream.app.chats.write_ahead import frames, is_page_size, page_size

Value = int | float | str | bytes | None
_LEAF: Final = 13
"""First byte of a page that holds rows."""
_USUAL: Final = 4096
"""Bytes of a page where nothing names them."""
_INTEGERS: Final = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}
_MOST_BYTES: Final = 1 << 30


class _Pages:
    """The pages of a database, some of them as its log has them."""

    def __init__(self, main: BinaryIO | None, log: BinaryIO | None, trusted: bool) -> None:
        """Looks where every page is.

        Args:
            main: The database.
            log: Its log.
            trusted: Whether to leave out what stands behind a damaged frame of the log.
        """
        self._main, self._log = main, log
        header = main.read(100) if main and not main.seek(0) else b""
        named = struct.unpack(">H", header[16:18])[0] if header[:15] == b"SQLite format 3" and len(header) == 100 else 0
        named = 65536 if named == 1 else named
        self.size = named if is_page_size(named) else (page_size(log) if log else 0) or _USUAL
        length = main.seek(0, os.SEEK_END) if main else 0
        self._inside = -(-length // self.size)
        found = frames(log, self.size) if log else iter(())
        self._moved = {frame.page: frame.offset for frame in found if frame.sound or not trusted}

    def numbers(self) -> Iterator[int]:
        """All pages that there are."""
        yield from range(1, self._inside + 1)
        yield from sorted(number for number in self._moved if number > self._inside)

    def read(self, number: int) -> bytes:
        """A page; empty if there is none, cut short where the file ends."""
        file, offset = self._main, (number - 1) * self.size
        if number in self._moved:
            file, offset = self._log, self._moved[number]
        elif not 1 <= number <= self._inside:
            file = None
        if file is None:
            return b""
        try:
            file.seek(offset)
            return file.read(self.size)
        except OSError:  # a bad place of the disk costs what stood there
            return b""


def rows(path: Path, trusted: bool) -> Iterator[tuple[int, list[Value]]]:
    """The rows of all tables with their numbers, in no order; a table is to be told by what its rows look like.

    Args:
        path: The database; its log stands beside it. What cannot be read gives no rows.
        trusted: Whether to leave out what stands behind a damaged frame of the log.

    Raises:
        OSError: If a file that is there cannot be opened: that may pass, and its rows are not to be missed.
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
            places = page[start + 8 : start + 8 + 2 * count]
            for at in range(0, len(places) - 1, 2):
                try:
                    yield _row(pages, page, int.from_bytes(places[at : at + 2], "big"))
                except (ValueError, IndexError, struct.error):
                    continue  # its neighbours may be whole


def _opened(files: ExitStack, path: Path) -> BinaryIO | None:
    try:
        return files.enter_context(path.open("rb"))
    except (FileNotFoundError, IsADirectoryError):
        return None


def _row(pages: _Pages, page: bytes, at: int) -> tuple[int, list[Value]]:
    """Reads the row that begins at a place of a page.

    Raises:
        ValueError: If there is none, as for ``IndexError`` and ``struct.error``.
    """
    length, at = _varint(page, at)
    number, at = _varint(page, at)
    if not 0 < length <= _MOST_BYTES:
        raise ValueError
    return _signed(number), _record(_payload(pages, page, at, length))


def _payload(pages: _Pages, page: bytes, at: int, length: int) -> bytes:
    """Reads a row's bytes, following the chain of pages that a long one spills to."""
    usable = pages.size
    if length <= usable - 35:
        return page[at : at + length]
    least = (usable - 12) * 32 // 255 - 23
    here = least + (length - least) % (usable - 4)
    here = here if here <= usable - 35 else least
    payload = bytearray(page[at : at + here])
    following = int.from_bytes(page[at + here : at + here + 4], "big")
    while len(payload) < length:
        spilled = pages.read(following)
        if len(spilled) < 5:
            raise ValueError
        payload += spilled[4 : 4 + length - len(payload)]
        following = int.from_bytes(spilled[:4], "big")
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


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number
