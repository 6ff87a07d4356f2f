"""Numbers that come from outside."""

from __future__ import annotations

import math

import pytest

from slipstream.models.outside import LARGEST, decimal_number, whole_number

NEITHER = [
    *("", " ", "many", "nan", "inf", "-inf", "1e", "0x10", "1_0", "1,5", "²", "١", "５", "--1", "1 2"),
    *("9" * 5000, "\udcff"),
]


@pytest.mark.parametrize("text", [*NEITHER, "1.0", "1e3", str(LARGEST + 1), str(-LARGEST - 1), "9" * 400])
def test_what_is_no_whole_number(text: str) -> None:
    with pytest.raises(ValueError, match=r"^it must be a whole number") as caught:
        whole_number(text)
    assert len(str(caught.value)) < 150 and str(caught.value).isprintable()


@pytest.mark.parametrize("text", [*NEITHER, "1e999", "-1e309", "1e99999", ".", "e5", "0." + "1" * 5000])
def test_what_is_no_decimal_number(text: str) -> None:
    with pytest.raises(ValueError, match=r"^it must be a number, not") as caught:
        decimal_number(text)
    assert len(str(caught.value)) < 150 and str(caught.value).isprintable()


def test_what_is_one() -> None:
    assert [whole_number(text) for text in ("0", "-7", "+5", " 12 ", "007", str(LARGEST))] == [0, -7, 5, 12, 7, LARGEST]
    assert [decimal_number(text) for text in ("0", "-.5", "1.", "5e-1", "-1e308")] == [0, -0.5, 1, 0.5, -1e308]
    assert math.copysign(1, decimal_number("-0")) == -1


def test_a_range_of_its_own() -> None:
    assert whole_number("3", 1, 3) == 3
    with pytest.raises(ValueError, match="from 1 to 3, not '4'"):
        whole_number("4", 1, 3)
