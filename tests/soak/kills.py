"""The whole program killed while the bundled model writes, on a real terminal.

A command: ``python -m tests.soak.kills [COUNT]``. Prints one line: what, how many, how many failed, the 95 % bound.
"""

import random
import sys
import tempfile
from pathlib import Path

from tests.app.bundled_program import replies_of_run
from tests.app.kills import ENGINE_ENDS, QUESTION, kill_real


def main(count: int = 50) -> int:
    chance, failed, slowest = random.Random(8), 0, 0.0
    with tempfile.TemporaryDirectory() as folder:
        (reply,) = replies_of_run(Path(folder) / "other", QUESTION)
        for number in range(count):
            kill = kill_real(Path(folder) / str(number), chance, reply)
            slowest = max(slowest, kill.engine)
            found = list(kill.faults)
            if kill.engine > ENGINE_ENDS:
                found.append(f"its engine took {kill.engine:.2f} s to end")
            if kill.late:
                found.append(f"{kill.late} words were older than 250 ms")
            failed += bool(found)
            if found:
                print(f"kill {number}: {'; '.join(found)}", flush=True)
    bound = f", 95 % bound {3 / count:.1%}" if not failed else ""
    print(
        f"kills: the interface killed {count} times while a reply streamed, {failed} failed{bound};"
        f" the engine had ended after {slowest:.2f} s at most"
    )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
