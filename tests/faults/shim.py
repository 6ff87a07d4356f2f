"""Calls of the C library that fail on demand, in a process that was started with ``shim.c`` in front of it."""

import ctypes
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from slipstream.models.errors import SlipstreamError

CALLS: Final[Mapping[str, int]] = MappingProxyType({"open": 0, "write": 1, "fsync": 2, "ftruncate": 3, "rename": 4})
KILL: Final = 0  # in place of an error: the process is killed at the call


@dataclass(slots=True)
class Outcome:
    seen: int = 0  # how many calls there were that could have failed
    told: bool = False  # whether an error was worded for the user
    wrong: list[str] = field(default_factory=list)  # what went wrong that must not

    @contextmanager
    def armed(self) -> Iterator[None]:
        """Notes whether an error of what is done here is worded, and offers help."""
        try:
            yield
        except SlipstreamError as error:
            self.told = True
            if not error.title or not error.hint:
                self.wrong.append(f"no help: {error.title!r}")
        except Exception as error:  # whatever it is, nobody worded it
            self.wrong.append(f"unworded: {error!r}")

    @contextmanager
    def afterwards(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.wrong.append(f"afterwards: {error!r}")


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
