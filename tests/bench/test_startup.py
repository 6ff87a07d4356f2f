"""Part ``startup``: what counts as the moment that a user waited for, and programs that fail."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest
from tests.bench.clocks import Spread
from tests.bench.startup import SIZE, StartupFigures, first_line, first_paint, startup_text, whole

from slipstream.models.errors import SlipstreamError

LINES, _ = SIZE
SCREEN = f"import sys; sys.stdout.write('\\x1b[1;1Htop\\x1b[{LINES};1Hbottom'); sys.stdout.flush(); "


def script(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_the_table_has_every_wait_and_says_what_slowed_them() -> None:
    spread = Spread(50, 40, 60)
    figures = StartupFigures(7, spread, spread, spread, spread, spread, compiled=True)
    text = startup_text(figures)
    assert "| slipstream --help " in text and "first screen" in text and "first token" in text
    assert "50 (40..60)" in text and "PYTHONDONTWRITEBYTECODE" not in text
    elsewhere = startup_text(replace(figures, first_paint_ms=None, compiled=False))
    assert "first screen" not in elsewhere and "PYTHONDONTWRITEBYTECODE" in elsewhere


def test_the_first_line_is_waited_for_and_no_longer() -> None:
    slow_end = script("import sys\nprint('one', flush=True)\nsys.stdin.read()\nprint('two')")
    assert first_line(slow_end, os.environ) > 0


def test_a_screen_ends_with_its_last_line_and_the_program_is_told_to_quit() -> None:
    quits = script("import tty; tty.setraw(0); " + SCREEN + "assert sys.stdin.read(1) == '\\x11'")
    assert first_paint(quits, os.environ) > 0


def test_a_program_that_does_not_quit_is_ended() -> None:
    stays = script("import os; " + SCREEN + "os.close(0); os.close(1); os.close(2); import time; time.sleep(600)")
    assert first_paint(stays, os.environ) > 0


@pytest.mark.parametrize("clock", [whole, first_line, first_paint])
def test_a_program_that_fails_is_one_line_with_its_own_last_words(
    clock: Callable[[Sequence[str], Mapping[str, str]], float],
) -> None:
    with pytest.raises(SlipstreamError, match="failed: no luck today"):
        clock(script("import sys; sys.exit('first\\nno luck today.')"), os.environ)


@pytest.mark.parametrize("clock", [first_line, first_paint])
def test_a_program_that_shows_nothing_has_failed(clock: Callable[[Sequence[str], Mapping[str, str]], float]) -> None:
    with pytest.raises(SlipstreamError, match="failed: it said nothing"):
        clock(script("pass"), os.environ)
