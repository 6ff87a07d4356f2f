"""One setting: its type, its range, and its description."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Literal, TypeVar, cast

from slipstream.models.errors import UsageError
from slipstream.models.outside import decimal_number, quoted, whole_number

Value = bool | int | float | str  # what a setting may hold
When = Literal["at once", "in the next chat", "when a model is loaded next", "at the next start"]
"""The time from which a change takes effect."""
ABOUT: Final = "slipstream.setting"  # key of a field's metadata that holds its ``About``
_MOST_TEXT: Final = 20_000

V = TypeVar("V", bool, int, float, str)


@dataclass(frozen=True, slots=True)
class About:
    """The description of a setting, given where it is declared."""

    text: str  # what it does, in a line
    low: float = 0.0
    high: float = 0.0
    above: bool = False  # whether a number must be above ``low``
    choices: tuple[str, ...] = ()  # the allowed words; empty for any
    when: When = "at once"
    named: tuple[int, str] | None = None  # a number with a special meaning, and a word that may be typed instead
    check: Callable[[str], object] | None = None  # raises ``UsageError`` for an invalid text

    @property
    def effect(self) -> str:
        """``when`` as a sentence without its full stop."""
        return {"at once": "Takes effect now", "at the next start": "Takes effect after restart"}.get(
            self.when, f"Takes effect {self.when}"
        )

    @property
    def sentence(self) -> str:
        """``text`` as a sentence."""
        return f"{self.text[:1].upper()}{self.text[1:]}."


def setting(
    default: V,
    text: str,
    *,
    low: float = 0.0,
    high: float = 0.0,
    above: bool = False,
    choices: tuple[str, ...] = (),
    when: When = "at once",
    named: tuple[int, str] | None = None,
    check: Callable[[str], object] | None = None,
) -> V:
    """A dataclass field that is a setting; see ``About``."""
    about = About(text, low, high, above, choices, when, named, check)
    made: V = field(default=default, metadata={ABOUT: about})
    return made


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting by its name."""

    group: str  # its table in the file
    key: str  # its key in that table
    default: Value  # its type is the setting's type
    about: About

    @property
    def name(self) -> str:
        return f"{self.group}.{self.key}"

    @property
    def wanted(self) -> str:
        about = self.about
        if isinstance(self.default, bool):
            return "true or false"
        if isinstance(self.default, str):
            return f"one of {', '.join(about.choices)}" if about.choices else "a text"
        kind = "a whole number" if isinstance(self.default, int) else "a number"
        if about.above:
            return f"{kind} above {about.low:g} and at most {about.high:g}"
        return f"{kind} from {_plain(about.low)} to {_plain(about.high)}"

    def checked(self, value: object) -> Value:
        """Converts a value to this setting's type.

        Raises:
            UsageError: If it is of another type or out of range.
        """
        about = self.about
        good = False
        if isinstance(self.default, bool):
            good = isinstance(value, bool)
        elif isinstance(self.default, str):
            good = isinstance(value, str) and len(value) <= _MOST_TEXT and (not about.choices or value in about.choices)
            good = good and bool(str(value).strip() or not self.default)  # empty only where that is the default
            if good and about.check:
                about.check(str(value))
        elif isinstance(value, int | float) and not isinstance(value, bool):
            whole = isinstance(value, int) or not isinstance(self.default, int)
            low = value > about.low if about.above else value >= about.low
            good = whole and low and value <= about.high  # False for NaN
        if not good:
            raise UsageError(f"{self.name} is {_shown(value)}; it must be {self.wanted}.")
        return float(cast(float, value)) if isinstance(self.default, float) else cast(Value, value)

    def read(self, text: str) -> Value:
        """Reads a value as a person types it, without quotes; accepts a decimal comma, and words such as yes.

        Raises:
            UsageError: If it is invalid for this setting.
        """
        typed = text.strip()
        value: object = typed
        if isinstance(self.default, bool):
            value = _WORDS.get(typed.casefold(), typed)
        elif self.about.named and typed.casefold() == self.about.named[1]:
            value = self.about.named[0]
        elif not isinstance(self.default, str):
            value = _number(typed)
        return self.checked(value)


_WORDS: Final = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}


def _number(text: str) -> object:
    text = text.replace(",", ".")
    for read in (whole_number, decimal_number):
        with suppress(ValueError):
            return read(text)
    return text


def _plain(number: float) -> str:
    return f"{number:,.0f}" if number == int(number) else f"{number:g}"


def _shown(value: object) -> str:
    """A value as in the file, shortened."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, int):
        return str(value) if abs(value) < 1e15 else "too large"
    return quoted(value) if isinstance(value, str) else "a table or a list"
