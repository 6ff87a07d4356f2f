"""A new user's first minutes on a real terminal, in which no two figures may contradict each other.

A command: ``python -m tests.soak.first_minutes [idle|busy|both]``. Starts the chat in a new home, asks three questions,
has a text copied, opens every screen, races, runs the benchmark and ``slipstream run --json``, at three sizes of
terminal; "busy" has two loops compute beside it. Parses every screen. Prints what contradicts, and one line.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from tests.app.terminal import ROOT, Terminal
from tests.bench.waiting import busy

from slipstream.app.speed import LEAST_TOKENS

PROGRAM: Final = (sys.executable, "-m", "slipstream.app.cli.main")
SIZES: Final = ((80, 24), (100, 30), (140, 40))
QUESTIONS: Final = (
    "What do you like about the sea?",
    "Why do leaves fall in autumn?",
    "Give me a tip for rainy days.",
)
COPY: Final = "Repeat these words: the old mill stands by the river, and the river runs past the old mill to the sea."
LAST: Final = "Name three birds that live near the water."
PATIENCE: Final = 180.0
F4, F8, F9 = "\x1bOS", "\x1b[19~", "\x1b[20~"
CTRL_D, CTRL_L, CTRL_O, CTRL_Q = "\x04", "\x0c", "\x0f", "\x11"
ESCAPE: Final = "\x1b"

_NUMBER = r"([\d,]+(?:\.\d+)?)"
_RATIO = re.compile(rf"{_NUMBER}x (faster|slower|same speed)")
_WITH = re.compile(rf"^ *with drafter +█* +{_NUMBER} tok/s  (.*)$", re.MULTILINE)
_WITHOUT = re.compile(rf"^ *without +█* +{_NUMBER} tok/s", re.MULTILINE)
_FOOTNOTE = re.compile(
    rf"(\w+) {_NUMBER}x (faster|slower|same speed) · {_NUMBER} tok/s instead of {_NUMBER}((?: · [^·]*){{0,3}})"
)
_TOKENS = re.compile(rf"{_NUMBER} tokens?\b")
_RACED = re.compile(rf"{_NUMBER}x (faster|slower|same speed): {_NUMBER} (s|tok/s) instead of {_NUMBER}")


def number(text: str) -> float:
    """A figure as it is shown."""
    return float(text.replace(",", ""))


def step_of(shown: str) -> float:
    """Half of the last digit that is shown, which rounding may hide."""
    return 0.5 * 10.0 ** -len(shown.partition(".")[2])


def ratio_fault(where: str, ratio: str, word: str, over: str, under: str) -> str:
    """How a ratio or its word contradicts the two figures that it is made of; empty where they agree.

    Args:
        where: For people.
        ratio: As it is shown.
        word: "faster", "slower" or "same speed".
        over: The figure that is divided.
        under: The one that it is divided by.
    """
    shown, top, bottom = number(ratio), number(over), number(under)
    low = (top - step_of(over)) / (bottom + step_of(under)) - step_of(ratio)
    high = (top + step_of(over)) / max(bottom - step_of(under), 1e-9) + step_of(ratio)
    if not low <= shown <= high:
        return f"{where}: {ratio}x, but {over} against {under}"
    fits = {"faster": shown >= 1.0, "slower": shown <= 1.0, "same speed": 0.9 <= shown <= 1.1}
    return "" if fits[word] else f"{where}: {ratio}x is called {word}"


def unfolded(shown: str) -> str:
    """A screen as one line, so that what is broken into lines stands together."""
    return " ".join(shown.split())


def faults(shown: str) -> Iterator[str]:
    """Compares the figures of one screen: what contradicts, or an empty text, for each comparison."""
    flat = unfolded(shown)
    ours, plain = _WITH.search(shown), _WITHOUT.search(shown)
    if ours and plain and (ratio := _RATIO.search(ours[2])):
        yield ratio_fault("status bar", ratio[1], ratio[2], ours[1], plain[1])
    for drafter, ratio, word, over, under, rest in _FOOTNOTE.findall(flat):
        yield ratio_fault(f"footnote of {drafter}", ratio, word, over, under)
        tokens = _TOKENS.search(rest)
        few = tokens and number(tokens[1]) < LEAST_TOKENS
        yield f"footnote of {drafter}: {ratio}x of {rest}" if few else ""
    for ratio, word, drafted, unit, undrafted in _RACED.findall(flat):
        figures = (drafted, undrafted) if unit == "tok/s" else (undrafted, drafted)
        yield ratio_fault("race", ratio, word, *figures)


def end_faults(shown: str) -> Iterator[str]:
    """Compares the status bar with the footnote of the reply that has just ended, as ``faults`` does."""
    notes, ours, plain = _FOOTNOTE.findall(unfolded(shown)), _WITH.search(shown), _WITHOUT.search(shown)
    if notes and ours and plain:
        _, ratio, word, over, under, _ = notes[-1]
        bar = _RATIO.search(ours[2])
        figures = (ratio, word, over, under)
        if bar and (bar[1], bar[2], ours[1], plain[1]) == figures:
            yield ""
        else:
            yield f"status bar: {ours[0].strip()}, {plain[0].strip()}; footnote: {' '.join(figures)}"


def json_faults(lines: list[str]) -> Iterator[str]:
    """What contradicts in the output of ``run --json``."""
    *steps, done = [json.loads(line) for line in lines]
    if sum(len(step["tokens"]) for step in steps) != done["tokens"]:
        yield f"--json: the steps have other tokens than the summary's {done['tokens']}"
    drafted, accepted = (sum(step[key] for step in steps) for key in ("drafted", "accepted"))
    if drafted and abs(done["acceptance"] - accepted / drafted) > 1e-3:
        yield f"--json: acceptance {done['acceptance']}, but {accepted} of {drafted}"
    speedup, plain = done["speedup"], done["plain_tok_per_s"]
    if speedup is not None and done["tokens"] < LEAST_TOKENS:
        yield f"--json: {speedup}x of {done['tokens']} tokens"
    if speedup is not None and abs(speedup - done["tok_per_s"] / plain) > 0.01 * speedup:
        yield f"--json: {speedup}x, but {done['tok_per_s']} against {plain}"


def answered(shown: str, question: str) -> bool:
    """Whether the footnote of a reply stands below a question, which may have left the screen above."""
    flat = unfolded(shown)
    below = flat.partition(question)[2] if question in flat else flat
    return "first token" in below or "no words came" in below


class Life:
    """The program on a terminal, with every screen that it draws parsed."""

    def __init__(self, terminal: Terminal) -> None:
        """Starts with the first screen."""
        self.terminal = terminal
        self.found: dict[str, None] = {}
        """What contradicted."""
        self.screens = self.figures = 0
        """Screens that were drawn, and figures that were compared."""
        self._last = ""

    def compare(self, compared: Iterator[str]) -> None:
        """Counts comparisons, and keeps what contradicts."""
        for fault in compared:
            self.figures += 1
            if fault:
                self.found[fault] = None

    def look(self) -> None:
        """Parses the screen where it has changed."""
        if (shown := self.terminal.shown) != self._last:
            self._last = shown
            self.screens += 1
            self.compare(faults(shown))

    def until(self, done: Callable[[str], bool], seconds: float = PATIENCE) -> None:
        """Looks on until a screen has something; that it never comes is a fault, too."""
        end = time.monotonic() + seconds
        while not done(self.terminal.shown):
            self.terminal.read(0.1)
            self.look()
            if (time.monotonic() > end or self.terminal.code is not None) and not done(self.terminal.shown):
                self.found[f"waited in vain on:\n{self.terminal.shown}"] = None
                return
        self.look()

    def rest(self, seconds: float) -> None:
        """Looks on for a while."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.terminal.read(0.1)
            self.look()

    def press(self, keys: str, seconds: float = 0.8) -> None:
        """Presses keys and looks on."""
        self.terminal.type(keys)
        self.rest(seconds)

    def ask(self, question: str) -> None:
        """Asks, and waits for the whole reply."""
        self.press(question)
        self.press("\r")
        self.until(lambda shown: answered(shown, question[:20]))
        self.rest(1.0)
        self.compare(end_faults(self.terminal.shown))


def live(home: Path, size: tuple[int, int]) -> tuple[list[str], int, int]:
    """Lives the first minutes; returns what contradicted, and how many screens and figures were compared."""
    with Terminal(*PROGRAM, home=home, size=size) as terminal:
        life = Life(terminal)
        life.until(lambda shown: "Message" in shown)
        for question in (*QUESTIONS, COPY):
            life.ask(question)
        for key in (F4, CTRL_L, CTRL_O, CTRL_D, F9):
            life.press(key, 2.0)
            life.press(ESCAPE, 1.0)
        life.press("/race\r")
        life.until(lambda shown: _RACED.search(unfolded(shown)) is not None or "too short for a ratio" in shown)
        life.press(ESCAPE)
        life.press(F8)
        life.rest(60.0)
        life.press(ESCAPE)
        life.press(ESCAPE)
        life.ask(LAST)
        terminal.type(CTRL_Q)
        life.until(lambda _: terminal.code is not None, 30.0)
        found = list(life.found)
        if terminal.code != 0:
            found.append(f"exit code {terminal.code}")
    command = [*PROGRAM, "run", "--json", "-p", QUESTIONS[1]]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "SLIPSTREAM_HOME": str(home)}, cwd=ROOT
    )
    found += [f"run --json ended with {done.returncode}"] if done.returncode else json_faults(done.stdout.splitlines())
    return found, life.screens, life.figures


def main(how: str = "both") -> int:
    """Lives at every size; returns 1 if figures contradict each other."""
    lives = screens = figures = failed = 0
    for loops in {"idle": (0,), "busy": (2,), "both": (0, 2)}[how]:
        for size in SIZES:
            with tempfile.TemporaryDirectory() as home, busy(loops):
                found, drawn, compared = live(Path(home), size)
            lives, screens, figures, failed = lives + 1, screens + drawn, figures + compared, failed + bool(found)
            for fault in found:
                print(f"{size[0]}x{size[1]}, {'busy' if loops else 'idle'}: {fault}", flush=True)
    told = f"{lives} lives, {screens:,} screens, {figures:,} comparisons"
    print(f"first minutes: {told}, {failed} lives with a contradiction")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
