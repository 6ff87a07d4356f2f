"""Drafters that the autopilot leaves out of a model, because its owner switched them off."""

from __future__ import annotations

import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from slipstream.app.paths import write_private
from slipstream.app.safe_text import one_line
from slipstream.models.errors import UsageError

_OFF: Final = "off"
_ABOUT: Final = "Drafters that the autopilot leaves out, by the fingerprint of the model."


def left_out(file: Path, fingerprint: str) -> frozenset[str]:
    """The names that are switched off for a model.

    Args:
        file: Where the choices are kept; need not exist.
        fingerprint: Of the model.

    Raises:
        UsageError: If the file is broken, or cannot be read.
    """
    names = _table(file).get(fingerprint, [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise _broken(file, f"{_OFF}.{fingerprint} is no list of names")
    return frozenset(map(str, names))


def known_left_out(file: Path, fingerprint: str) -> frozenset[str]:
    """The same for whoever cannot ask the owner: a broken file leaves nobody out."""
    with suppress(UsageError):
        return left_out(file, fingerprint)
    return frozenset()


def leave_out(file: Path, fingerprint: str, name: str, off: bool) -> None:
    """Switches a drafter of a model off or on; the next reply goes by it.

    Args:
        file: Where the choices are kept.
        fingerprint: Of the model.
        name: Of the drafter.
        off: Whether it is left out.

    Raises:
        UsageError: If the file is broken; it is left as it is.
        SlipstreamError: If it cannot be written.
    """
    import tomlkit  # seldom needed

    names = set(left_out(file, fingerprint)) - {name} | ({name} if off else set())
    document = tomlkit.parse(_text(file))
    if not document:
        document.add(tomlkit.comment(_ABOUT))
    if _OFF not in document:
        document[_OFF] = tomlkit.table()
    if names:
        document[_OFF][fingerprint] = sorted(names)
    else:
        document[_OFF].pop(fingerprint, None)
    write_private(file, tomlkit.dumps(document))


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror.lower() if isinstance(error, OSError) and error.strerror else "it is not UTF-8"
        raise UsageError(f"cannot read {file}: {why}.", "It was left as it is; mend it in an editor.") from error


def _table(file: Path) -> dict[str, Any]:
    try:
        table = tomllib.loads(_text(file)).get(_OFF, {})
    except tomllib.TOMLDecodeError as error:
        raise _broken(file, str(error)) from error
    if not isinstance(table, dict):
        raise _broken(file, f"{_OFF} is no table")
    return table


def _broken(file: Path, why: str) -> UsageError:
    return UsageError(f"{file} is broken: {one_line(why)}.", "It was left as it is; mend it in an editor.")
