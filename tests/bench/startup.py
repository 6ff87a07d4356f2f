"""Part ``startup``: how long a user waits for the help, for the chat's screen and for the first token."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter
from typing import Final

from tests.bench.clocks import Spread

from slipstream.app.bench.report import table
from slipstream.app.platform.paths import HOME_VARIABLE
from slipstream.models.errors import SlipstreamError

PROGRAM: Final = (sys.executable, "-m", "slipstream.app.cli.main")
TEXTUAL: Final = (sys.executable, "-c", "import textual.app, textual.widgets")
"""The least that a Textual program loads: of the chat's wait, the part that is not ours."""
SIZE: Final = (40, 120)  # lines and columns of the chat's terminal
_PATIENCE: Final = 60.0


@dataclass(frozen=True, slots=True)
class StartupFigures:
    """Milliseconds from the start of a fresh process."""

    rounds: int  # processes of each kind, one more not counted
    help_ms: Spread  # to the end of ``slipstream --help``
    textual_ms: Spread  # to the end of a program that only imports Textual
    # to the last line of the chat's first whole screen; None where there are no pseudo-terminals
    first_paint_ms: Spread | None
    # to the first token of ``slipstream run -p hi`` with the bundled model, where nothing was ever kept
    new_home_ms: Spread
    first_token_ms: Spread  # the same once more
    compiled: bool  # whether Python may keep the compiled modules; without them every start takes longer


def measure_startup(rounds: int, tell: Callable[[str], None]) -> StartupFigures:
    """Starts every program in turn, a warm-up round first.

    Args:
        rounds: Rounds that count.
        tell: Hears how far it is.

    Raises:
        SlipstreamError: If a program fails, or shows nothing for a minute.
    """
    waits: dict[str, list[float]] = {}
    for turn in range(rounds + 1):
        tell(f"startup: round {turn} of {rounds}")
        with tempfile.TemporaryDirectory(prefix="slipstream-bench-") as home:
            for name, took in _round({**os.environ, HOME_VARIABLE: home}).items():
                if turn:
                    waits.setdefault(name, []).append(1e3 * took)
    return StartupFigures(
        rounds=rounds,
        help_ms=Spread.of(waits["help"]),
        textual_ms=Spread.of(waits["textual"]),
        first_paint_ms=Spread.of(waits["paint"]) if "paint" in waits else None,
        new_home_ms=Spread.of(waits["new home"]),
        first_token_ms=Spread.of(waits["token"]),
        compiled=not sys.dont_write_bytecode,
    )


def _round(environment: Mapping[str, str]) -> dict[str, float]:
    """Seconds of each start, in a new home."""
    run = [*PROGRAM, "run", "-p", "hi", "--json", "--max-tokens", "8"]
    return {
        "help": whole([*PROGRAM, "--help"], environment),
        "textual": whole(TEXTUAL, environment),
        "new home": first_line(run, environment),
        "token": first_line(run, environment),
        **({"paint": first_paint(PROGRAM, environment)} if os.name == "posix" else {}),
    }


def whole(argv: Sequence[str], environment: Mapping[str, str]) -> float:
    """Seconds that a program takes.

    Raises:
        SlipstreamError: If it fails.
    """
    began = perf_counter()
    done = subprocess.run(argv, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    took = perf_counter() - began
    if done.returncode:
        raise _failed(argv, done.stderr)
    return took


def first_line(argv: Sequence[str], environment: Mapping[str, str]) -> float:
    """Seconds until a program has printed a line.

    Raises:
        SlipstreamError: If it ends before.
    """
    began = perf_counter()
    with tempfile.TemporaryFile("w+") as told:
        program = subprocess.Popen(argv, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=told)
        with program:
            assert program.stdout is not None
            line = program.stdout.readline()
            took = perf_counter() - began
            program.stdout.read()
        if program.returncode or not line:
            told.seek(0)
            raise _failed(argv, told.read())
    return took


def first_paint(argv: Sequence[str], environment: Mapping[str, str]) -> float:
    """Seconds until a program has drawn the last line of its terminal, which ends its first whole screen.

    Raises:
        SlipstreamError: If it ends before, or draws nothing for a minute.
    """
    import pty
    import termios

    lines, columns = SIZE
    ours, its = pty.openpty()
    termios.tcsetwinsize(its, (lines, columns))
    began = perf_counter()
    program = subprocess.Popen(
        argv, env={**environment, "TERM": "xterm-256color"}, stdin=its, stdout=its, stderr=its, start_new_session=True
    )
    os.close(its)
    try:
        shown = b""
        while b"\x1b[%d;1H" % lines not in shown:
            new = _read(ours)
            if not new:
                raise _failed(argv, shown.decode("utf-8", "replace"))
            shown += new
        took = perf_counter() - began
        program.terminate()  # a key pressed this early may be lost
        while _read(ours):
            pass
        return took
    finally:
        if program.poll() is None:
            program.terminate()
        program.wait()
        os.close(ours)


def _read(terminal: int) -> bytes:
    """What was drawn since; nothing once the last process has left the terminal, or a minute went by."""
    with suppress(OSError):
        if select.select([terminal], [], [], _PATIENCE)[0]:
            return os.read(terminal, 1 << 16)
    return b""


def _failed(argv: Sequence[str], told: str) -> SlipstreamError:
    words = next((line.strip() for line in reversed(told.splitlines()) if line.strip()), "it said nothing")
    return SlipstreamError(f"{' '.join(argv)} failed: {words.rstrip('.')}.", "Try the same command by itself.")


def startup_text(figures: StartupFigures) -> str:
    """The table of the part."""
    rows = [
        ("slipstream --help", figures.help_ms.text(0), "150"),
        *([("the chat's first screen", figures.first_paint_ms.text(0), "600")] if figures.first_paint_ms else []),
        ("slipstream run: first token", figures.first_token_ms.text(0), "2000"),
        ("the same, the first time ever", figures.new_home_ms.text(0), "2000"),
        ("import of Textual alone, for comparison", figures.textual_ms.text(0), "-"),
    ]
    return table(
        "startup: milliseconds from the start of a fresh process",
        ("until", "ms", "aim"),
        rows,
        [
            f"{figures.rounds} rounds, files in the system's cache, the bundled model."
            + ("" if figures.compiled else " Every start compiled modules anew: PYTHONDONTWRITEBYTECODE is set.")
        ],
    )
