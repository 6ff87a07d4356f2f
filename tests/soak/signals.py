"""Every ending of the chat in every state, on a real terminal.

A command: ``python -m tests.soak.signals [ROUNDS]``. Prints one line: what, how many, how many failed, the 95 % bound.
"""

import sys
import tempfile
from pathlib import Path

from tests.app.tui.endings import ENDINGS, STATES, faults


def main(rounds: int = 1) -> int:
    count = failed = 0
    for _ in range(rounds):
        for ending in ENDINGS:
            for state in STATES:
                with tempfile.TemporaryDirectory() as folder:
                    found = faults(ending, state, Path(folder), on_time=True)
                count += 1
                failed += bool(found)
                if found:
                    print(f"{ending.name}, {state}: {'; '.join(found)}", flush=True)
    bound = f", 95 % bound {3 / count:.1%}" if not failed else ""
    print(f"signals: {count} endings of the chat, idle, streaming and in a dialog, {failed} failed{bound}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
