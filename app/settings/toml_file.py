"""Reads and changes TOML files of the user; errors name the line, and changes keep what is not changed."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from slipstream.app.platform.paths import private_folder, worded, write_private
from slipstream.app.platform.safe_text import one_line
from slipstream.models.errors import UsageError, reason_of
from slipstream.models.files import locked
from slipstream.models.outside import parse_toml, read_limited, shown_path

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

MOST_BYTES: Final = 1 << 18  # larger files are rejected: a change takes a second with this many
_PLACE: Final = re.compile(
    r"^(?P<why>.*?)\s*\((?:at )?(?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)$"
)


def text_of(path: Path) -> str:
    """The text of a file, empty if it does not exist."""
    try:
        if path.exists() and not path.is_file():
            raise broken_file(path, "it is no file")
        raw = read_limited(path, MOST_BYTES) if path.exists() else b""
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise broken_file(path, f"it has over {MOST_BYTES:,} bytes, more than settings ever need") from error
        raise UsageError(f"cannot read {shown_path(path)}: {reason_of(error)}.", "Fix its rights.") from error
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line, column = raw.count(b"\n", 0, error.start) + 1, error.start - raw.rfind(b"\n", 0, error.start)
        raise broken_file(path, "it is not UTF-8", line, column) from error


def parsed(path: Path, text: str) -> dict[str, Any]:
    if not text.strip():
        return {}
    try:
        return parse_toml(text.encode())
    except ValueError as error:  # a TOMLDecodeError, nested too deeply, or a number of thousands of digits
        found = _PLACE.match(str(error))
        if not found:
            raise broken_file(path, str(error)) from error
        last = text.rstrip().count("\n") + 1
        line, column = found["line"] or last, found["column"] or len(text.rstrip().rsplit("\n", 1)[-1]) + 1
        raise broken_file(path, found["why"], int(line), int(column)) from error


def broken_file(path: Path, why: str, line: int = 0, column: int = 0) -> UsageError:
    """The error for a file of the user that cannot be parsed."""
    where = f" at line {line}, column {column}" if line else ""
    return UsageError(
        f"{shown_path(path)} is broken{where}: {one_line(why).rstrip('.')}.",
        "It was left as it is; mend it in an editor.",
    )


@contextmanager
def changing(path: Path, begin: str = "") -> Iterator[TOMLDocument]:
    """Reads a file, or ``begin`` for a blank one, lets the caller change it and writes it; others wait for the result.

    If the file is broken, it raises ``UsageError`` and leaves it as it is.
    """
    import tomlkit  # seldom needed
    from tomlkit.exceptions import TOMLKitError

    private_folder(path.parent)
    with worded(path), locked(path.with_name(f"{path.name}.lock")):
        text = text_of(path)
        parsed(path, text)
        try:
            document = tomlkit.parse(text if text.strip() else begin)
        except TOMLKitError as error:  # nested more deeply than it can change
            raise broken_file(path, str(error)) from error
        yield document
        write_private(path, tomlkit.dumps(document))
