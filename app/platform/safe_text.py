"""Makes untrusted text safe for the screen.

A terminal obeys control characters, and invisible characters can reorder or hide text. Both are replaced one by one, so
that the text after them has no special meaning, and every part of a cleaned text is as safe as the whole.
CVE-2021-42574 and CWE-150 describe the attacks.
"""

import re
from types import MappingProxyType
from unicodedata import category

UNKNOWN = "\ufffd"
MOST_MARKS = 8
"""Maximum combining marks, joiners and variation selectors in a row: more would cover other lines or hide text."""
_REPLACED_RANGES = (
    (0x80, 0x9F),  # C1 controls: CSI, OSC and DCS in one character
    (0xAD, 0xAD),  # soft hyphen
    (0x034F, 0x034F),  # combining grapheme joiner
    (0x061C, 0x061C),  # Arabic letter mark
    (0x115F, 0x1160),  # Hangul fillers
    (0x17B4, 0x17B5),  # Khmer inherent vowels
    (0x180E, 0x180E),  # Mongolian vowel separator
    (0x200E, 0x200F),  # left-to-right and right-to-left marks
    (0x2028, 0x2029),  # line and paragraph separators
    (0x202A, 0x202E),  # embeddings and overrides
    (0x2060, 0x206F),  # word joiner, invisible operators, isolates, deprecated format characters
    (0x3164, 0x3164),  # Hangul filler
    (0xD800, 0xDFFF),  # lone surrogates
    (0xFEFF, 0xFEFF),  # byte order mark
    (0xFFA0, 0xFFA0),  # halfwidth Hangul filler
    (0xFFF0, 0xFFFB),  # unassigned ignorable characters, interlinear annotation
    (0x13430, 0x1343F),  # hieroglyph layout
    (0x1BCA0, 0x1BCA3),  # shorthand layout
    (0x1D173, 0x1D17A),  # musical layout
    (0xE0000, 0xE00FF),  # tags
    (0xE01F0, 0xE0FFF),  # unassigned ignorable characters
)
_RUN = re.compile(rf"[^\w\s\x00-\x7f]{{{MOST_MARKS + 1},}}")  # marks and joiners are neither letters nor spaces
_INERT = MappingProxyType(
    {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\t\n"}  # their visible symbols
    | {0x7F: "\u2421"}
    | {code: UNKNOWN for first, last in _REPLACED_RANGES for code in range(first, last + 1)}
)
_TYPED = MappingProxyType({code: None for code in _INERT if code not in (0x061C, 0x200E, 0x200F)})


def clean(text: str, before: str = "") -> str:
    """Makes text safe to show; replaces single characters by single ones, and a second call changes nothing.

    Tabs, newlines, joiners, variation selectors and right-to-left letters stay.

    Args:
        before: The text before it on the screen, if text arrives in pieces: marks are counted across the boundary.
    """
    tail = before[-MOST_MARKS:]
    return _RUN.sub(_few_marks, (tail + text).translate(_INERT))[len(tail) :]


def _few_marks(run: re.Match[str]) -> str:
    """Replaces every mark that follows ``MOST_MARKS`` others in a row."""
    shown, marks = [], 0
    for character in run[0]:
        marks = marks + 1 if category(character) in ("Mn", "Me", "Cf") else 0
        if marks > MOST_MARKS:
            character, marks = UNKNOWN, 0
        shown.append(character)
    return "".join(shown)


def typed(text: str) -> str:
    """Prepares pasted text for the prompt: one kind of line end, no control characters."""
    return text.replace("\r\n", "\n").replace("\r", "\n").translate(_TYPED)


def one_line(text: str) -> str:
    """Cleans text for a place with a single line, such as a title."""
    return " ".join(clean(text).split())


def sentence(words: str) -> str:
    words = clean(words)
    return words[:1].upper() + words[1:]


def plural(count: int, noun: str, several: str = "") -> str:
    """A count: "1 token", "2 tokens"; ``several`` is the plural if it is not the noun and an "s"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {several or f'{noun}s'}"


def shortened(words: str, width: int) -> str:
    """The words in at most so many characters, with "…" at the end if they are cut."""
    return words if len(words) <= width else f"{words[: width - 1]}…"
