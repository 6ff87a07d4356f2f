"""Parses and quotes untrusted input: options, the hub's answers, files that other programs may change.

Python converts at most 4,300 digits, accepts ``²`` as a digit, nests JSON until the stack is full, and accepts lone
surrogates in texts. Here each of these is an error.
"""

from __future__ import annotations

import errno
import math
import os
import re
import stat
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Never, TypeGuard

if TYPE_CHECKING:
    from pathlib import Path

LARGEST: Final = (1 << 31) - 1  # largest whole number that every C interface accepts
MOST: Final = 1 << 50  # largest size or count that is accepted
MOST_BYTES: Final = 1 << 20  # default limit for the size of a small file
LONGEST_REASON: Final = 400  # characters of a foreign reason that an error passes on
_DIGITS: Final = 20
_MOST_CHARACTERS: Final = 400
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_WHOLE: Final = re.compile(r"[+-]?[0-9]+")
# keys with more parts than any file has: tomllib takes quadratic time for them. Possessive, so that it stays linear.
_DEEP: Final = re.compile(r"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){32}""")
_DECIMAL: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")


def quoted(text: str | bytes, limit: int = 40) -> str:
    """Quotes a string from a file: one line, control characters escaped, at most ``limit`` characters of it."""
    shown = repr(text[:limit])
    return shown + "…" if len(text) > limit else shown


def shown_path(path: str | Path) -> str:
    """Returns a printable path unchanged; quotes and escapes any other path."""
    text = str(path)
    return text if text.isprintable() and text else repr(text)


def whole_number(text: str, low: int = -LARGEST, high: int = LARGEST) -> int:
    """Parses a whole number that the user typed; a ``ValueError`` says what it must be."""
    text = text.strip()
    if len(text) > _MOST_CHARACTERS or not _WHOLE.fullmatch(text):
        raise ValueError(f"it must be a whole number, not {quoted(text)}")
    if not low <= (number := int(text)) <= high:
        raise ValueError(f"it must be a whole number from {low:,} to {high:,}, not {quoted(text)}")
    return number


def decimal_number(text: str) -> float:
    """Parses a finite decimal number that the user typed; a ``ValueError`` says what it must be."""
    text = text.strip()
    plain = len(text) <= _MOST_CHARACTERS and _DECIMAL.fullmatch(text)
    if not plain or not math.isfinite(number := float(text)):
        raise ValueError(f"it must be a number, not {quoted(text)}")
    return number


def is_sha256(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and bool(_SHA256.fullmatch(value))


def count_of(value: object, most: int = MOST) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most else None


def number_in(text: str, most: int = MOST) -> int | None:
    """Parses a whole number from 0 to ``most`` that is written in ASCII digits; None for any other text."""
    digits = text.isascii() and text.isdecimal() and len(text) <= _DIGITS
    return count_of(int(text), most) if digits else None


def parsed(text: str, parse: Callable[[str], Any]) -> Any:
    """Parses text, as JSON or TOML; raises ``ValueError`` if it is invalid or nested too deeply."""
    try:
        return parse(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def parse_json(raw: bytes) -> Any:
    """Parses JSON; a ``ValueError`` also refuses NaN, infinities, lone surrogates and deep nesting."""
    import json  # imported late: some commands never need it

    found = parsed(raw.decode(), lambda text: json.loads(text, parse_constant=_refuse))
    if b"\\ud" in raw or b"\\uD" in raw:
        json.dumps(found, ensure_ascii=False).encode()  # fails on a lone surrogate
    return found


def parse_toml(raw: bytes) -> dict[str, Any]:
    """Parses TOML in time that is linear in its length; raises ``ValueError`` if it is none, or nested too deeply."""
    import tomllib  # imported late: some commands never need it

    text = raw.decode()
    if _DEEP.search(text):
        raise ValueError("it is nested too deeply")
    found: dict[str, Any] = parsed(text, tomllib.loads)
    return found


def read_json(path: Path, most: int) -> Any:
    """Parses a small file; raises what :func:`read_limited` and :func:`parse_json` do."""
    return parse_json(read_limited(path, most))


def read_object(path: Path, most: int) -> dict[str, Any]:
    """The JSON object in a small file; empty if it is missing, damaged or something else."""
    try:
        found = read_json(path, most)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def check_regular(path: Path) -> None:
    """Raises ``OSError`` for a pipe or a device, whose reading may never end; opening a folder fails by itself."""
    kind = stat.S_IFMT(os.stat(path).st_mode)
    if kind not in (stat.S_IFREG, stat.S_IFDIR):
        raise OSError(errno.EINVAL, "it is no regular file", str(path))


def read_limited(path: Path, most: int = MOST_BYTES, opener: Callable[..., Any] = open) -> bytes:
    """Reads a small file of at most ``most`` bytes, unpacked by an opener such as ``gzip.open``, or not at all."""
    check_regular(path)
    with opener(path, "rb") as file:
        raw: bytes = file.read(most + 1)
    if len(raw) > most:
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", str(path))
    return raw


def _refuse(name: str) -> Never:
    raise ValueError(f"{name} is no number of JSON")
