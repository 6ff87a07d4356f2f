"""Numbers and JSON from outside: one error for everything that cannot be, and never another one."""

import math
import os
from pathlib import Path

import pytest

from slipstream.models import outside
from slipstream.models.outside import LARGEST, MOST, count_of, decimal_number, number_in, read_json, whole_number


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("007", 7), ("1048576", 1 << 20), (str(MOST), MOST)])
def test_a_number(text: str, number: int) -> None:
    assert number_in(text) == count_of(number) == number


@pytest.mark.parametrize(
    "value",
    [
        *("", " 1", "1 ", "-1", "+1", "1.0", "1e3", "0x10", "1_0", "²", "\u0663", "9" * 21, "9" * 5000, str(MOST + 1)),
        *(-1, MOST + 1, 10**4000, 1.0, float("inf"), True, None, [1], {"a": 1}, b"1"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_what_is_no_number(value: object) -> None:
    assert count_of(value) is None and (not isinstance(value, str) or number_in(value) is None)


def test_a_bound_of_its_own() -> None:
    assert number_in("60", 60) == count_of(60, 60) == 60
    assert number_in("61", 60) is count_of(61, 60) is None
    assert whole_number("3", 1, 3) == 3
    with pytest.raises(ValueError, match="from 1 to 3, not '4'"):
        whole_number("4", 1, 3)
    assert outside.parse_json(b'{"a": [1, "\\ud83d\\ude00"]}') == {"a": [1, "\U0001f600"]}


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"[", b"[" * 200_000, b'{"a":' * 5_000 + b"1" + b"}" * 5_000, b"9" * 5_000, b"[NaN]", b"[Infinity]"),
        *(b'["\\ud800"]', b'{"\\uDC00": 1}', b"\xff", b"\xef\xbb\xbf[]", '["a"]'.encode("utf-16"), b"[1] x"),
    ],
    ids=lambda body: repr(body[:12]),
)
def test_what_is_no_json(body: bytes) -> None:
    with pytest.raises(ValueError):
        outside.parse_json(body)


def test_a_small_file_of_json(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"[1]")
    assert read_json(path, 3) == [1]
    with pytest.raises(OSError, match="more than"):
        read_json(path, 2)
    os.truncate(path, 8 << 30)  # it is not read to find that out
    with pytest.raises(OSError, match="more than"):
        read_json(path, 1 << 20)
    for odd in (tmp_path, tmp_path / "none"):
        with pytest.raises(OSError):
            read_json(odd, 10)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes of POSIX")
def test_a_pipe_in_its_place_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.json")
    with pytest.raises(OSError):
        read_json(tmp_path / "a.json", 10)


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
