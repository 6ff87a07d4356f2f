"""A new user's first minutes on a real terminal, in which no two figures may contradict each other.

A command: ``python -m tests.soak.first_minutes [idle|busy|both] [MODEL]``. Starts the chat in a new home, takes the
first example, which shows guesses, asks three questions, has a text copied, scrolls, opens every screen, races, runs
the smallest benchmark of two drafters, and ``slipstream run --json``, at three sizes of terminal; "busy" has two loops
compute beside it; MODEL is for ``-m``, else the bundled one. Parses every screen, and compares the result of the
benchmark with its kept file and with the drafters' screen. Prints what contradicts, figures that differ for a reason,
and one line.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from tests.app.terminal import ROOT, Terminal
from tests.bench.waiting import busy
from tests.soak import screen_figures as checks

from slipstream.app.bench.figures import ALL_KINDS
from slipstream.app.library.load_request import BUNDLED

PROGRAM: Final = (sys.executable, "-m", "slipstream.app.cli.main")
SIZES: Final = ((80, 24), (100, 30), (140, 40))
QUESTIONS: Final = ("What do you like about the sea?", "Why do leaves fall in autumn?", "Give me a tip for rainy days.")
COPY: Final = "Repeat these words: the old mill stands by the river, and the river runs past the old mill to the sea."
LAST: Final = "Name three birds that live near the water."
PATIENCE: Final = 900.0  # seconds; a benchmark takes minutes on a busy machine
ALT_S, CTRL_C, CTRL_END, F3 = "\x1bs", "\x03", "\x1b[1;5F", "\x1bOR"
F4, F8, F9 = "\x1bOS", "\x1b[19~", "\x1b[20~"
CTRL_D, CTRL_L, CTRL_O, CTRL_Q = "\x04", "\x0c", "\x0f", "\x11"
ESCAPE, HOME, DOWN, PAGE_DOWN = "\x1b", "\x1b[H", "\x1b[B", "\x1b[6~"
END, PAGE_UP = "\x1b[F", "\x1b[5~"
REPEATS: Final = "repeats itself · Esc stops"
BENCHED: Final = frozenset({"auto", "eagle3"})
LOOKED_AT: Final = 4  # recommended models whose details are opened
QUIET: Final = 0.4  # seconds without output after which a screen is whole


def answered(shown: str, question: str) -> bool:
    """Whether the footnote of a reply stands below a question, which may have left the screen above."""
    flat = checks.unfolded(re.sub(r"^.*▎| │.*", " ", shown, flags=re.MULTILINE))  # without lists and guesses beside it
    below = flat.partition(question)[2] if question in flat else flat
    return "first token" in below or "no words came" in below


class Life:
    def __init__(self, terminal: Terminal) -> None:
        self.terminal = terminal
        self.found: dict[str, None] = {}  # what contradicted
        self.notes: list[str] = []  # figures that may differ, for people
        self.screens = self.figures = 0
        """Screens that were drawn, and figures that were compared."""
        self._last = ""

    def compare(self, compared: Iterable[str]) -> None:
        for fault in compared:
            self.figures += 1
            if fault:
                self.found[fault] = None

    def look(self) -> None:
        while self.terminal.read(0.01):
            pass  # else half of a screen may be old
        if (shown := self.terminal.shown) != self._last:
            self._last = shown
            self.screens += 1
            self.compare(checks.faults(shown))

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
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.terminal.read(0.1)
            self.look()

    def press(self, keys: str, seconds: float = 0.8) -> None:
        self.terminal.type(keys)
        self.rest(seconds)

    def settled(self, keys: str = "") -> str:
        """Presses keys, and returns the screen once nothing more is drawn: until then, half of it may be old."""
        if keys:
            self.press(keys, QUIET)
        end = time.monotonic() + 10.0
        while self.terminal.read(QUIET) and time.monotonic() < end:
            pass
        self.look()
        return self.terminal.shown

    def ask(self, question: str) -> None:
        self.press(question)
        self.press("\r")
        self.until(lambda shown: answered(shown, question[:20]) or REPEATS in shown)
        if REPEATS in self.terminal.shown:  # a small model may go on until the context is full
            self.press(ESCAPE)
            self.until(lambda shown: answered(shown, question[:20]))
        self.rest(1.0)
        self.compare(checks.end_faults(self.terminal.shown))


def command(home: Path, *arguments: str) -> tuple[int, str]:
    environment = {**os.environ, "SLIPSTREAM_HOME": str(home)}
    done = subprocess.run([*PROGRAM, *arguments], capture_output=True, text=True, env=environment, cwd=ROOT)
    return done.returncode, done.stdout


def choose(life: Life, wanted: frozenset[str]) -> str:
    """Switches the other drafters of the benchmark's form off; returns the form."""
    shown, switched = life.settled(), set[str]()
    for _ in range(2 * len(checks.picks(shown))):
        before, shown = checks.picks(shown), life.settled(" ")
        now = {name for name, on in checks.picks(shown).items() if on != before.get(name)}
        if now & wanted:
            shown = life.settled(" ")
        switched |= now
        if switched >= before.keys():
            break
        shown = life.settled(DOWN)
    chosen = {name for name, on in checks.picks(shown).items() if on}
    life.compare(["" if chosen == wanted else f"form of the benchmark: {chosen} are chosen, not {wanted}"])
    return shown


def pages(life: Life) -> list[str]:
    found = [life.settled()]
    while (shown := life.settled(PAGE_DOWN)) != found[-1]:
        found.append(shown)
    return found


def bench(life: Life, home: Path, busy: bool) -> dict[str, checks.Gain]:
    """Runs the smallest benchmark of two drafters and compares its figures; returns the speed-ups over all texts."""
    life.press(F8)
    life.press("n")
    form = choose(life, BENCHED)
    began = time.monotonic()
    life.press("\r")
    life.until(lambda shown: "Measuring" in shown)
    life.until(lambda shown: "Measuring" not in shown)
    took = time.monotonic() - began
    read = pages(life)
    rows: dict[tuple[str, str], checks.Row] = {}
    for row in (row for page in read for row in checks.table_rows(checks.lines_of(page))):
        known = rows.setdefault((row.kind, row.drafter), row)
        life.compare(["" if known == row else f"table: {known}, then {row}"])
    text = "\n".join(read)
    for page in read:
        life.compare(checks.bench_faults(checks.lines_of(page), rows))
    busy = busy or "The machine was busy" in text
    above, beside = checks.panes(life.settled(ESCAPE))
    life.compare(checks.listed_faults(above, rows, ALL_KINDS))
    life.compare(checks.bench_faults(beside, rows))
    for path in (home / "benches").glob("*.json"):
        life.compare(checks.kept_faults(rows, json.loads(path.read_text("utf-8"))))
    life.compare([] if busy else [checks.estimate_fault(form, took)])
    machine = " on a busy machine" if busy else ""
    life.notes.append(f"the benchmark took {took:.0f} s{machine}, estimated about {checks.estimated(form)[0]}")
    life.press(ESCAPE)
    return {row.drafter: row.gain for row in rows.values() if row.kind == ALL_KINDS and row.gain}


def drafters(life: Life, benched: Mapping[str, checks.Gain]) -> None:
    """Opens the drafters' screen and compares the speed-ups, also of the last benchmark."""
    life.press(CTRL_D)
    life.until(lambda shown: "Drafters for" in shown and "Looking …" not in shown)
    shown = life.settled(HOME)
    names = [row.drafter for row in checks.gained(checks.panes(shown)[0])]
    life.compare("" if name in names else f"drafters: no speed-up of {name}, which was measured" for name in benched)
    for _ in names:
        life.compare(checks.drafters_faults(shown, benched))
        shown = life.settled(DOWN)
    if "▸ Not for this model" in life.settled(END):
        unfolded = life.settled("\r")
        life.compare(
            ["drafters: no reason why one is not usable" if "▸" in unfolded or "it needs" not in unfolded else ""]
        )
    life.press(ESCAPE)


def models(life: Life, home: Path) -> None:
    """Opens the models' screen and compares the predicted speeds, also with those of a command."""
    plain = checks.plain_speed(life.terminal.shown)
    life.press(CTRL_L)
    life.until(lambda shown: "Installed" in shown)
    shown = life.settled()
    life.compare(checks.models_faults(shown, []))
    note = checks.measured_note(checks.expected_rows(checks.panes(shown)[0]), plain) if plain else ""
    life.notes += [note] if note else []
    life.press("2")
    life.until(lambda shown: bool(checks.expected_rows(checks.panes(shown)[0])))
    shown = life.settled()
    code, told = command(home, "models", "pairs", "--json")
    offers = [] if code else json.loads(told)
    life.compare([f"models pairs --json ended with {code}" if code else ""])
    for _ in range(LOOKED_AT):
        life.compare(checks.models_faults(shown, offers))
        shown = life.settled(DOWN)
    life.press(ESCAPE)


def first_example(life: Life) -> None:
    """Takes the first example, which shows guesses, and compares what it says of them with the status bar."""
    life.press("\t")
    life.press("\r")
    life.until(lambda shown: "were guessed" in shown)
    life.compare(checks.example_faults(life.settled()))


def asides(life: Life) -> None:
    """Compares what the chat shows beside its figures with what was done."""
    life.compare(["Tab tries the first example again" if "│ /guess" in life.settled("\t") else ""])
    life.press(CTRL_C)
    shown = life.settled(2 * PAGE_UP)
    life.compare(["" if "↓ newer text" in shown else "no mark for newer text"])
    life.compare(["a mark for newer text at the end" if "↓ newer text" in life.settled(CTRL_END) else ""])
    life.press(F3)
    life.compare(["" if "corrected by the model   extra" in life.settled() else "the colours are not explained"])
    life.press(F3)
    panel = checks.unfolded(life.settled(ALT_S))
    life.compare(["" if re.search(r"Drafter │? ?‹ auto ›", panel) else "the panel of the chat has another drafter"])
    life.press(ESCAPE)


def live(home: Path, size: tuple[int, int], busy: bool, model: str) -> Life:
    with Terminal(*PROGRAM, "-m", model, home=home, size=size) as terminal:
        life = Life(terminal)
        life.until(lambda shown: "Message" in shown)
        first_example(life)
        for question in (*QUESTIONS, COPY):
            life.ask(question)
        asides(life)
        for key in (F4, F4, CTRL_O, F9):
            life.press(key, 2.0)
            life.press(ESCAPE, 1.0)
        drafters(life, {})
        models(life, home)
        life.press("/race\r")
        life.until(lambda shown: checks.RACED.search(checks.unfolded(shown)) is not None)
        life.press(ESCAPE)
        benched = bench(life, home, busy)
        drafters(life, benched)
        life.ask(LAST)
        terminal.type(CTRL_Q)
        life.until(lambda _: terminal.code is not None, 30.0)
        life.compare(["" if terminal.code == 0 else f"exit code {terminal.code}"])
    code, told = command(home, "run", "-m", model, "--json", "-p", QUESTIONS[1])
    life.compare([f"run --json ended with {code}"] if code else checks.json_faults(told.splitlines()))
    return life


def main(how: str = "both", model: str = BUNDLED) -> int:
    lives = screens = figures = failed = 0
    for loops in {"idle": (0,), "busy": (2,), "both": (0, 2)}[how]:
        for size in SIZES:
            with tempfile.TemporaryDirectory() as home, busy(loops):
                life = live(Path(home), size, loops > 0, model)
            lives, screens, figures = lives + 1, screens + life.screens, figures + life.figures
            failed += bool(life.found)
            for line in (*life.found, *(f"note: {note}" for note in life.notes)):
                print(f"{size[0]}x{size[1]}, {'busy' if loops else 'idle'}: {line}", flush=True)
    told = f"{lives} lives, {screens:,} screens, {figures:,} comparisons"
    print(f"first minutes: {told}, {failed} lives with a contradiction")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
