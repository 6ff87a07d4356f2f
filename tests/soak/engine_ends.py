"""The engine of the whole program killed or stopped, on a real terminal: how soon the screen says why.

A command: ``python -m tests.soak.engine_ends [ROUNDS]``; a round kills it by four signals while it loads, is idle and
writes, and lets it hang once, which takes half a minute. Prints what came late, then one line: what, how many, how many
failed, the 95 % bound, and how soon it was said.
"""

import random
import signal
import sys
import tempfile
from pathlib import Path

from tests.app.engine.disturbed import SIGNALS
from tests.app.kills import MOMENTS, Moment, end_engine

from slipstream.app.engine.process.watchdog import Limits

SAID = 1.0  # seconds after which the screen says why it ended
LOOKS = 3.0  # more seconds for one that hangs: its last beat, the judge's next look


def main(rounds: int = 15) -> int:
    chance, failed = random.Random(17), 0
    took: list[float] = []
    hung: list[float] = []
    kills: list[tuple[signal.Signals, Moment]] = [(number, moment) for number in SIGNALS for moment in MOMENTS]
    for number, moment in [*kills, (signal.SIGSTOP, "writing")] * rounds:
        hangs = number is signal.SIGSTOP
        words, most = ("no sign of life", Limits().silent + LOOKS) if hangs else (number.name, SAID)
        with tempfile.TemporaryDirectory() as folder:
            seconds = end_engine(Path(folder), number, moment, words, chance)
        (hung if hangs else took).append(seconds)
        if seconds > most:
            failed += 1
            print(f"{number.name} while {moment}: said after {seconds:.2f} s", flush=True)
    count = len(took) + len(hung)
    bound = f", 95 % bound {3 / count:.1%}" if not failed else ""
    print(
        f"engine ends: {len(took)} kills and {len(hung)} hangs under the whole program, {failed} said late{bound};"
        f" on the screen after {sorted(took)[len(took) // 2]:.2f} s, at most {max(took):.2f} s;"
        f" a hang after {max(hung):.0f} s"
    )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
