"""The settings and their file: one owner, who reads and writes both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from slipstream.app.paths import write_private
from slipstream.app.safe_text import one_line
from slipstream.app.settings.reading import Read, load, nearest, parsed, text_of
from slipstream.app.settings.setting import Setting, Value
from slipstream.app.settings.text import with_value
from slipstream.app.settings.values import KEYS, Settings, all_settings
from slipstream.models.errors import SlipstreamError, UsageError


class SettingsFile:
    """What the file says, what the command line said instead, and what could not be written."""

    def __init__(self, path: Path, given: Mapping[str, Value] | None = None) -> None:
        """Reads the file.

        Args:
            path: ``settings.toml``; need not exist.
            given: Settings by name that hold in place of the file's until slipstream ends.
        """
        self.path = path
        self._read: Read = load(path)
        self._over: dict[str, Value] = dict(given or {})
        self._given = frozenset(self._over)

    @property
    def settings(self) -> Settings:
        """The settings that hold now."""
        return self._read.settings.having(self._over)

    @property
    def kept(self) -> Settings:
        """The settings of the file alone."""
        return self._read.settings

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong with the file, a line each."""
        return self._read.problems

    @property
    def broken(self) -> str:
        """Why the file cannot be read, or empty."""
        return self._read.broken

    def where(self, name: str) -> str:
        """Where a setting's value comes from, in words; empty for its default."""
        if name in self._over:
            return "given at the start" if name in self._given else "until slipstream ends"
        return "settled" if name in self._read.values else ""

    def change(self, name: str, value: Value) -> None:
        """Settles a value.

        Raises:
            UsageError: If there is no such setting, it cannot be so, or the file is broken, which is left as it is.
            SlipstreamError: If it cannot be written. Unless it is a wrong value, it holds until slipstream ends.
        """
        checked = known(name).checked(value)
        self._write({name: checked})

    def reset(self, *names: str) -> None:
        """Takes settings back to their defaults.

        Raises:
            UsageError: See ``change``.
            SlipstreamError: See ``change``.
        """
        self._write({known(name).name: None for name in names})

    def restore(self, values: Mapping[str, Value | None]) -> None:
        """Settles several at once: values by name, None for the default; ``keys.`` and an action name a key.

        Raises:
            UsageError: See ``change``.
            SlipstreamError: See ``change``.
        """
        self._write({name: _checked(name, value) for name, value in values.items()})

    def settled(self, name: str) -> Value | None:
        """What the file sets, or what holds until slipstream ends; None where it is the default."""
        return self._over.get(name, self._read.values.get(name))

    def _write(self, values: Mapping[str, Value | None]) -> None:
        for name in values:
            self._over.pop(name, None)
        try:
            self._put({tuple(name.split(".", 1)): value for name, value in values.items()})  # type: ignore[misc]
        except SlipstreamError as error:
            usual = all_settings()
            held = {name: value for name, value in values.items() if name in usual}
            self._over |= {name: usual[name].default if value is None else value for name, value in held.items()}
            keys: dict[str, Value | None] = dict(self._read.settings.keys)
            keys |= {name.split(".", 1)[1]: value for name, value in values.items() if name not in held}
            own = {action: str(key) for action, key in keys.items() if key is not None}
            self._read = replace(self._read, settings=replace(self._read.settings, keys=own))
            raise SlipstreamError(error.title, f"{error.hint} Until slipstream ends the change holds.") from error

    def _put(self, values: Mapping[tuple[str, str], Value | None]) -> None:
        text = text_of(self.path)
        parsed(self.path, text)
        for (group, key), value in values.items():
            text = with_value(text, group, key, value)
        write_private(self.path, text)
        self._read = load(self.path)


def _checked(name: str, value: Value | None) -> Value | None:
    if value is None or name.startswith(f"{KEYS}."):
        return value
    return known(name).checked(value)


def known(name: str) -> Setting:
    """The setting of a name.

    Raises:
        UsageError: If there is none; it names the nearest.
    """
    every = all_settings()
    if name not in every:
        like = nearest(name, every) or next(
            (f" Did you mean {full}?" for full in every if full.endswith(f".{name}")), ""
        )
        raise UsageError(f"there is no setting {one_line(name)}.{like}", "slipstream settings lists all.")
    return every[name]
