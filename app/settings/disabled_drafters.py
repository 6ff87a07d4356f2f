"""Drafters that the user disabled for a model; the autopilot does not use them."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from slipstream.app.settings.toml_file import broken_file, changing, parsed, text_of
from slipstream.models.errors import UsageError

_OFF: Final = "off"
_ABOUT: Final = "Drafters that the autopilot leaves out, by the fingerprint of the model."


def left_out(file: Path, fingerprint: str) -> frozenset[str]:
    """The names of a model's disabled drafters."""
    return _names(file, parsed(file, text_of(file)), fingerprint)


def known_left_out(file: Path, fingerprint: str) -> frozenset[str]:
    """Like ``left_out``, but an unreadable file disables no drafter."""
    with suppress(UsageError):
        return left_out(file, fingerprint)
    return frozenset()


def leave_out(file: Path, fingerprint: str, name: str, off: bool) -> None:
    """Disables or enables a drafter of a model, from the next reply on."""
    with changing(file, f"# {_ABOUT}\n") as document:
        names = _names(file, document, fingerprint) - {name} | ({name} if off else set())
        table = document.setdefault(_OFF, {})
        if names:
            table[fingerprint] = sorted(names)
        else:
            table.pop(fingerprint, None)


def _names(file: Path, document: Mapping[str, Any], fingerprint: str) -> frozenset[str]:
    table = document.get(_OFF, {})
    if not isinstance(table, dict):
        raise broken_file(file, f"{_OFF} is no table")
    names = table.get(fingerprint, [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise broken_file(file, f"{_OFF}.{fingerprint} is no list of names")
    return frozenset(map(str, names))
