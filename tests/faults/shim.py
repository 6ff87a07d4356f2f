"""Calls of the C library that fail on demand, in a process that was started with ``shim.c`` in front of it."""

import ctypes
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

CALLS: Final[Mapping[str, int]] = MappingProxyType({"open": 0, "write": 1, "fsync": 2, "ftruncate": 3, "rename": 4})
KILL: Final = 0  # in place of an error: the process is killed at the call


@dataclass(frozen=True, slots=True)
class Outcome:
    seen: int  # how many calls there were that could have failed
    told: bool  # whether an error was worded for the user
    wrong: list[str]  # what went wrong that must not


def compiler() -> str | None:
    return next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)


def build(folder: Path) -> Path:
    library = folder / "shim.so"
    command = [compiler() or "cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library)]
    subprocess.run([*command, str(Path(__file__).with_name("shim.c")), "-ldl"], check=True)
    return library


class Shim:
    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)

    def arm(self, folder: Path, call: str, number: int, error: int, stays: bool) -> None:
        """Has the n-th call below a folder fail; the later ones, too, if it stays."""
        self._library.fault_arm(str(folder).encode(), CALLS[call], number, error, int(stays))

    def disarm(self) -> int:
        return int(self._library.fault_disarm())
