"""The one filter between text from elsewhere and a screen.

A terminal obeys control characters, and a reader is misled by invisible ones that reorder a line. The characters that
introduce either are replaced, so that what follows them is only text; text cut anywhere stays as safe as the whole.
CVE-2021-42574 and CWE-150 are what it guards against.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

UNKNOWN = "\ufffd"
MOST_MARKS = 8
"""Combining marks that a letter may carry; more of them paint over other lines."""

_REPLACED_RANGES = (
    (0x80, 0x9F),  # C1 controls: CSI, OSC and DCS in one character
    (0x061C, 0x061C),  # Arabic letter mark
    (0x200E, 0x200F),  # left-to-right and right-to-left marks
    (0x2028, 0x2029),  # line and paragraph separators
    (0x202A, 0x202E),  # embeddings and overrides
    (0x2066, 0x2069),  # isolates
    (0xD800, 0xDFFF),  # lone surrogates
    (0xFEFF, 0xFEFF),  # byte order mark
    (0xFFF9, 0xFFFB),  # interlinear annotation
    (0xE0000, 0xE007F),  # tags
)


def _inert() -> Mapping[int, str]:
    table = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\t\n"}  # their pictures
    table[0x7F] = "\u2421"
    for first, last in _REPLACED_RANGES:
        table |= dict.fromkeys(range(first, last + 1), UNKNOWN)
    return MappingProxyType(table)


_INERT = _inert()
_TYPED = MappingProxyType({code: None for code in _INERT if code not in (0x061C, 0x200E, 0x200F)})
_MARK = "[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]"
_TOO_MANY_MARKS = re.compile(f"({_MARK}{{{MOST_MARKS}}}){_MARK}")


def clean(text: str, before: str = "") -> str:
    """Makes text safe to show: one character for one character; cleaning twice changes nothing more.

    Tabs, newlines, joiners, variation selectors and right-to-left letters stay.

    Args:
        text: The text.
        before: What stands before it on the screen, where text comes in pieces: combining marks are counted over both.
    """
    tail = before[-MOST_MARKS:]
    return _TOO_MANY_MARKS.sub(rf"\1{UNKNOWN}", (tail + text).translate(_INERT))[len(tail) :]


def typed(text: str) -> str:
    """Prepares pasted text for the prompt: one kind of line end, nothing that a terminal obeys."""
    return text.replace("\r\n", "\n").replace("\r", "\n").translate(_TYPED)


def one_line(text: str) -> str:
    """Cleans text for a place with a single line, such as a title."""
    return " ".join(clean(text).split())


def sentence(words: str) -> str:
    """Cleans words that begin a line: the first letter is a capital."""
    words = clean(words)
    return words[:1].upper() + words[1:]
