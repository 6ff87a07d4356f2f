"""SQLite's write-ahead log, as far as telling its damage takes: https://sqlite.org/walformat.html.

SQLite stops at the first frame whose checksum is wrong and says nothing, for after a power cut that is the end of the
log. Where whole transactions stand behind such a frame, it was no power cut.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

HEADER: Final = 32
FRAME: Final = 24
"""Bytes before the page of a frame."""
_MAGIC: Final = (0x377F0682, 0x377F0683)
_WORD: Final = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Frame:
    """A page in the log.

    Attributes:
        page: Its number in the database, from 1.
        ends: Whether a transaction ends with it.
        offset: Where its bytes begin in the log.
        sound: Whether it and all before it have the right checksums.
    """

    page: int
    ends: bool
    offset: int
    sound: bool


def page_size(log: BinaryIO) -> int:
    """The page size that the log's header names; 0 if it has none."""
    log.seek(0)
    header = log.read(HEADER)
    size = int.from_bytes(header[8:12], "big")
    return size if is_page_size(size) and int.from_bytes(header[:4], "big") in _MAGIC else 0


def is_page_size(size: int) -> bool:
    """Whether SQLite has pages of so many bytes."""
    return 512 <= size <= 65536 and size & (size - 1) == 0


def frames(log: BinaryIO, size: int) -> Iterator[Frame]:
    """The frames since the log was begun anew, those behind a damaged one included.

    Args:
        log: The log.
        size: Bytes of a page.
    """
    log.seek(0)
    header = log.read(HEADER)
    order = ">" if header[3:4] == b"\x83" else "<"
    sums = _checksum(header[:24], (0, 0), order) if len(header) == HEADER else (0, 0)
    sound = page_size(log) == size and sums == struct.unpack(">II", header[24:32])
    salts = header[16:24] if sound else b""
    log.seek(HEADER)
    offset = HEADER + FRAME
    while len(raw := log.read(FRAME + size)) == FRAME + size:
        page, pages = struct.unpack(">II", raw[:8])
        salts = salts or raw[8:16]  # the first frame is never an older log's
        if sound:
            sums = _checksum(raw[:8] + raw[FRAME:], sums, order)
            sound = raw[8:16] == salts and page > 0 and sums == struct.unpack(">II", raw[16:24])
        if raw[8:16] == salts and page > 0:
            yield Frame(page, pages > 0, offset, sound)
        offset += FRAME + size


def is_damaged(path: Path) -> bool:
    """Whether a log has whole transactions that SQLite will not read.

    Args:
        path: The log; a missing one is sound.
    """
    try:
        with path.open("rb") as log:
            size = page_size(log)
            if not size:  # more than a header that a power cut left half written
                return len(log.read(FRAME + 512)) == FRAME + 512
            return any(frame.ends and not frame.sound for frame in frames(log, size))
    except OSError:
        return False


def _checksum(data: bytes, sums: tuple[int, int], order: str) -> tuple[int, int]:
    first, second = sums
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for one, other in zip(words[::2], words[1::2], strict=True):
        first = (first + one + second) & _WORD
        second = (second + other + first) & _WORD
    return first, second
