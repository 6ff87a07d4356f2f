import re
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.app.platform.safe_text import MOST_MARKS, clean, one_line, sentence, typed

HOSTILE = [
    "\x1b]52;c;ZXZpbA==\x07", "\x1b]8;;http://evil\x1b\\click\x1b]8;;\x1b\\", "\x1b[2J\x1b[10A\x1b[6n\x1b[?1049l",
    "\x1bP$qm\x1b\\\x1b_x\x1b\\\x1b^y\x1b\\\x1bXz\x1b\\\x1bc\x1bN\x1bO", "\x9b31m\x9d52;c;eA==\x9c\x90\x98\x9e\x9f",
    "safe\roverwritten\b\b\x7f\x00\x0b\x0c", "\u202eexe.txt\u2066a\u2069\u200f\u061c\u2028\u2029",
    "\U000e0041\ufeff\ufff9",
]  # fmt: skip
INVISIBLE = [
    *range(0x206A, 0x2070), *range(0x2060, 0x2066), 0x180E, 0xAD, 0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x3164,
    0xFFA0, 0xFFF0, 0x1BCA0, 0x1D173, 0xE0001, 0xE007F, 0xE0080, 0xE01F0, 0x13430,
]  # fmt: skip
ANYTHING = st.text(st.characters(exclude_categories=()) | st.sampled_from("\x1b\x9b\u0301\u0489\u202e\t\n\r"))


def is_inert(character: str) -> bool:
    if character in "\t\n":
        return True
    return (
        unicodedata.category(character) not in ("Cc", "Cs", "Zl", "Zp") and character not in "\u061c\u200e\u200f\ufeff"
    )


@pytest.mark.slow
@settings(max_examples=5000, deadline=None)
@given(ANYTHING)
def test_any_text_becomes_inert_and_keeps_its_length(text: str) -> None:
    shown = clean(text)
    assert all(map(is_inert, shown))
    assert not any(
        0x202A <= ord(c) <= 0x202E or 0x2066 <= ord(c) <= 0x2069 or 0xE0000 <= ord(c) <= 0xE007F for c in shown
    )
    assert len(shown) == len(text) and clean(shown) == shown


@settings(max_examples=200, deadline=None)
@given(st.text(), st.integers(0, 100))
def test_a_cut_lets_no_sequence_through(text: str, cut: int) -> None:
    text += HOSTILE[cut % len(HOSTILE)]
    assert all(map(is_inert, clean(text[:cut]) + clean(text[cut:])))


@pytest.mark.parametrize("payload", HOSTILE)
def test_introducers_are_replaced(payload: str) -> None:
    assert all(map(is_inert, clean(payload)))
    assert clean(payload) != payload


def test_readable_text_of_any_script_stays_as_it_is() -> None:
    for text in ("plain\n\ttext", "é è ñ", "日本語", "שלום مرحبا", "👩‍👩‍👧 ❤️", "می‌خواهم", "[/b] [@click=app.exit()]"):
        assert clean(text) == text
    for text in ("ที่นี่ น้ำ กู้", "مُحَمَّد", "שָׁלוֹם", "Việt Nam", "हिन्दी में", "កម្ពុជា", "ꦲꦏ꧀ꦱꦫꦗꦮ", "᠊ᠠ᠋", "葛󠄀城", "a…—─━│😀🏳️‍🌈"):
        assert clean(text) == text, text


@pytest.mark.parametrize(
    "mark", ["\u0301", "\u0e49", "\u064e", "\u0489", "\ufe0f", "\U000e0100", "\u200d", "\u302a", "\U0001e2ae"]
)
def test_a_letter_carries_few_marks(mark: str) -> None:
    shown = clean("e" + mark * 10_000)
    assert mark * MOST_MARKS in shown and mark * (MOST_MARKS + 1) not in shown
    assert len(shown) == 10_001


def test_marks_and_joiners_are_counted_together() -> None:
    shown = clean("e" + "\u0e49\u200d\u064e\u0301" * 20)
    assert max(map(len, shown.split("\ufffd"))) <= MOST_MARKS + 1


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(categories=["Mn", "Me"]), min_size=MOST_MARKS + 1, max_size=60))
def test_no_mark_of_any_script_is_left_out(marks: str) -> None:
    rows = [row for row in re.split("[\ufffd]", clean("e" + marks)) if row]
    assert max(map(len, rows)) <= MOST_MARKS + 1


@pytest.mark.parametrize("code", INVISIBLE, ids=hex)
def test_invisible_characters_show(code: int) -> None:
    assert clean(f"a{chr(code)}b") == "a\ufffdb"


@settings(max_examples=300, deadline=None)
@given(st.lists(st.text("e\u0301\u0489\x1b", max_size=6)))
def test_marks_are_counted_over_pieces(pieces: list[str]) -> None:
    before = shown = ""
    for piece in pieces:
        shown += clean(piece, before)
        before = (before + piece)[-MOST_MARKS:]
    assert clean(shown) == shown and len(shown) == len("".join(pieces))


def test_pictures_stand_for_controls_in_lines_pasted_text_and_sentences() -> None:
    assert clean("\x1b[31m") == "␛[31m"
    assert clean("\x7f\x00") == "␡␀"
    assert typed("a\r\nb\rc\nd") == "a\nb\nc\nd"
    assert typed("x\x1b[31m\x9b\u202ey\u200f") == "x[31my\u200f"
    assert one_line("a\n  b\t\x1bc ") == "a b ␛c"
    assert sentence("the disk is full.") == "The disk is full."
    assert sentence("\x1bé\x9b") == "␛é�" and sentence("") == ""
    for payload in HOSTILE:
        assert all(map(is_inert, sentence(payload)))
