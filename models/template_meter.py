"""What one rendering of a chat template may spend: a clock, and the sizes of results before they are made."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from jinja2.exceptions import SecurityError

from slipstream.models.quoting import quoted

MAX_TEXT: Final = 1 << 20
MAX_NUMBER: Final = 10_000
MAX_BITS: Final = 4_096
MAX_ENTRIES: Final = 200_000
TIME_LIMIT: Final = 2.0
_WIDE_FIELD: Final = re.compile(r"[0-9]{4,}|\*|\{[^}]*\{")
_SIZED: Final = frozenset(  # filters and methods whose numbers are sizes
    {"center", "ljust", "rjust", "zfill", "expandtabs", "to_bytes", "indent", "wordwrap", "round", "tojson"}
)
_HUNGRY: Final = frozenset({"translate", "wordwrap", "expandtabs"})


class TooMuchError(SecurityError):
    """A template that wants more time or memory than it may have."""


class Meter:
    """Measures one rendering at a time.

    Attributes:
        max_text: Longest text that may come about, in characters.
    """

    def __init__(self, time_limit: float = TIME_LIMIT) -> None:
        """Sets the limit of time in seconds; the clock stands still until ``start``."""
        self._time_limit = time_limit
        self._deadline = float("inf")
        self.max_text = MAX_TEXT

    def start(self, given: int) -> None:
        """Begins a rendering of messages with ``given`` characters."""
        self._deadline = time.monotonic() + self._time_limit
        self.max_text = MAX_TEXT + 4 * given

    def tick(self) -> str:
        """Ends the rendering when its time is over; returns an empty text, as it stands in templates."""
        if time.monotonic() > self._deadline:
            raise TooMuchError(f"it runs longer than {self._time_limit:g} s")
        return ""

    def joined(self, parts: Iterable[Any], separator: str = "") -> str:
        """Joins texts if the result is not too long."""
        texts, length = [], 0
        for part in parts:
            texts.append(part if isinstance(part, str) else str(self.countable(part)))
            length += len(texts[-1]) + len(separator)
            self.allow(length)
        return separator.join(texts)

    def allow(self, length: int) -> None:
        """Lets a text or list of this length pass, or raises."""
        if length > self.max_text:
            raise TooMuchError(f"it makes a text of more than {self.max_text:,} characters")

    def countable(self, value: Any) -> Any:
        """Returns ``value`` if it is no list of lists of lists … that would take for ever to print or sort."""
        entries, waiting = 0, [value]
        while waiting:
            entry = waiting.pop()
            if isinstance(entry, dict):
                entry = list(entry.values())
            if isinstance(entry, list | tuple):
                waiting += entry
                entries += len(entry)
                if entries > MAX_ENTRIES:
                    raise TooMuchError("it makes lists with too many entries")
        return value

    def check_operator(self, operator: str, left: Any, right: Any) -> None:
        """Measures ``+``, ``*``, ``**`` and ``%`` before they run."""
        if operator == "%" and isinstance(left, str | bytes):
            self.check_format(left)
        elif operator == "+" and _sized(left) and _sized(right):
            self.allow(len(left) + len(right))
        elif operator == "*" and _sized(left) and isinstance(right, int):
            self.allow(len(left) * right)
        elif operator == "*" and _sized(right) and isinstance(left, int):
            self.allow(len(right) * left)
        elif isinstance(left, int) and isinstance(right, int) and operator in ("*", "**"):
            bits = left.bit_length() * abs(right) if operator == "**" else left.bit_length() + right.bit_length()
            if bits > MAX_BITS:
                raise TooMuchError("it computes a very large number")

    def check_call(self, name: str, owner: Any, args: Sequence[Any], options: Mapping[str, Any]) -> None:
        """Looks at the clock, and measures a filter or built-in method before it runs.

        Args:
            name: Its name.
            owner: The filter's input, or the method's object.
            args: Further arguments by place.
            options: Further arguments by name.
        """
        self.tick()
        values = [*args, *options.values()]
        self.countable(owner)
        if name in _SIZED:
            lines = owner.count("\n") + 1 if isinstance(owner, str) else 1
            largest = max((abs(value) for value in values if isinstance(value, int)), default=0)
            if largest > MAX_NUMBER or largest * lines > self.max_text:
                raise TooMuchError(f"{quoted(name)} gets a number that is too large")
        if not isinstance(owner, str | bytes):
            return
        texts = [value for value in values if isinstance(value, type(owner))]
        if name == "replace" and len(texts) == 2:
            self.allow(len(owner) + owner.count(texts[0]) * len(texts[1]))  # type: ignore[arg-type]
        elif name == "indent":
            self.allow(len(owner) + (str(owner).count("\n") + 1) * sum(map(len, texts)))
        elif name == "format":
            self.check_format(owner)
        elif name in _HUNGRY and len(owner) + sum(map(len, texts)) > MAX_NUMBER:
            raise TooMuchError(f"{quoted(name)} gets a text that is too long")

    def check_format(self, pattern: str | bytes) -> None:
        """Refuses fields of 1,000 characters and more, and widths that are computed."""
        if _WIDE_FIELD.search(pattern if isinstance(pattern, str) else pattern.decode("latin-1")):
            raise TooMuchError("it formats a field that is too wide")


def _sized(value: Any) -> bool:
    return isinstance(value, str | bytes | list | tuple)
