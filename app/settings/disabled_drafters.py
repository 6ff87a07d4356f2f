"""Drafters that the user disabled for a model; the autopilot does not use them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from slipstream.app.platform.paths import write_private
from slipstream.app.settings.toml_file import broken_file, parsed, text_of
from slipstream.models.errors import UsageError

_OFF: Final = "off"
_ABOUT: Final = "Drafters that the autopilot leaves out, by the fingerprint of the model."


def left_out(file: Path, fingerprint: str) -> frozenset[str]:
    """The names of a model's disabled drafters.

    Args:
        file: ``drafters.toml``; need not exist.

    Raises:
        UsageError: If the file is broken, or cannot be read.
    """
    names = _table(file).get(fingerprint, [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise broken_file(file, f"{_OFF}.{fingerprint} is no list of names")
    return frozenset(map(str, names))


def known_left_out(file: Path, fingerprint: str) -> frozenset[str]:
    """Like ``left_out``, but an unreadable file disables no drafter."""
    with suppress(UsageError):
        return left_out(file, fingerprint)
    return frozenset()


def leave_out(file: Path, fingerprint: str, name: str, off: bool) -> None:
    """Disables or enables a drafter of a model, from the next reply on.

    Args:
        file: ``drafters.toml``.

    Raises:
        UsageError: If the file is broken; it is left as it is.
        SlipstreamError: If it cannot be written.
    """
    import tomlkit  # seldom needed

    names = set(left_out(file, fingerprint)) - {name} | ({name} if off else set())
    document = tomlkit.parse(text_of(file))
    if not document:
        document.add(tomlkit.comment(_ABOUT))
    if _OFF not in document:
        document[_OFF] = tomlkit.table()
    if names:
        document[_OFF][fingerprint] = sorted(names)
    else:
        document[_OFF].pop(fingerprint, None)
    write_private(file, tomlkit.dumps(document))


def _table(file: Path) -> dict[str, Any]:
    table = parsed(file, text_of(file)).get(_OFF, {})
    if not isinstance(table, dict):
        raise broken_file(file, f"{_OFF} is no table")
    return table
