"""A note that outlives a process: which drafter's call was running, and whether a GPU or other machines computed.

It is a mapped file: one byte for the number of the drafter whose call is running, the names of drafters 1 to 16, and
one byte for the devices. This module imports no numpy: the parent process reads the note.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from mmap import mmap
from pathlib import Path
from typing import Final

from slipstream.models.outside import read_limited

_NAME_BYTES: Final = 64
_DRAFTERS: Final = 16
_BYTES: Final = 1 + _DRAFTERS * _NAME_BYTES + 1
_GPU, _MACHINES = 1, 2  # values of the last byte


@dataclass(frozen=True, slots=True)
class CrashNote:
    """What an ended process was doing."""

    drafter: str = ""  # the drafter whose call was running; empty if none was
    gpu: bool = False  # whether a GPU computed
    machines: bool = False  # whether other machines computed

    @staticmethod
    def of(path: Path) -> CrashNote:
        """Reads the note of an ended process; empty if its file cannot be read."""
        with suppress(OSError):
            raw = read_limited(path, _BYTES)
            name = raw[1 + (raw[0] - 1) * _NAME_BYTES :][:_NAME_BYTES] if raw[:1].strip(b"\0") else b""
            last = raw[_BYTES - 1 :]
            return CrashNote(name.rstrip(b"\0").decode("utf-8", "replace"), last == b"\1", last == b"\2")
        return CrashNote()


NO_NOTE: Final = CrashNote()


def begin_note(path: Path) -> None:
    """Writes an empty note before a process starts."""
    with suppress(OSError):
        path.unlink(missing_ok=True)  # it may be a pipe, or a link to another file
        with open(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600), "wb") as file:
            file.write(bytes(_BYTES))


def map_note(path: Path) -> memoryview:
    """Maps the note of this process; plain memory if that fails."""
    with suppress(OSError, ValueError), path.open("r+b") as file:
        return memoryview(mmap(file.fileno(), _BYTES))
    return unmapped_note()


def unmapped_note() -> memoryview:
    """A note that only this process reads."""
    return memoryview(bytearray(_BYTES))


def add_drafter(note: memoryview, number: int, name: str) -> bool:
    """Writes the name of a drafter, counted from 1; returns False if there is no room for it."""
    if number > _DRAFTERS:
        return False
    start = 1 + (number - 1) * _NAME_BYTES
    note[start : start + _NAME_BYTES] = name.encode()[:_NAME_BYTES].ljust(_NAME_BYTES, b"\0")
    return True


def set_devices(note: memoryview, gpu: bool, machines: bool) -> None:
    note[-1] = _MACHINES if machines else _GPU if gpu else 0


def elsewhere(note: memoryview) -> bool:
    return bool(note[-1])
