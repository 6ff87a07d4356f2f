"""The disk fails at the n-th call, for n = 1, 2, 3 and so on until all succeed; and the process is killed there.

A command: ``python -m tests.soak.write_faults [SCENARIO…]``: chats, migrations, rescues, downloads; wants a C compiler.
Prints one line for each: what, how many, how many failed, the 95 % bound.
"""

import sys
import tempfile
from pathlib import Path

from tests.faults.shim import CALLS, build
from tests.faults.sweep import SCENARIOS, sweep

ERRORS = ("EIO", "ENOSPC", "EACCES")
KILLED = ("migrations", "rescues")
MOST = 5000


def main(*chosen: str) -> int:
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        library = build(Path(folder))
        for scenario in chosen or tuple(SCENARIOS):
            errors = (*ERRORS, "KILL") if scenario.partition("-")[0] in KILLED else ERRORS
            swept = list(sweep(library, scenario, MOST, [f"{call}:{error}" for call in CALLS for error in errors]))
            runs, wrong = sum(kind.runs for kind in swept), [what for kind in swept for what in kind.wrong]
            for what in (*wrong, *(f"no end of {kind.call}" for kind in swept if not kind.whole)):
                print(what)
            lost = len(wrong) + sum(not kind.whole for kind in swept)
            failed += lost
            bound = f", 95 % bound {3 / runs:.2%}" if not lost else ""
            told = sum(kind.told for kind in swept)
            print(
                f"write faults, {scenario}: the n-th call of {len(CALLS)} kinds failed in {len(errors)} ways,"
                f" {runs:,} runs, {lost} failed{bound}; the user was told {told:,} times",
                flush=True,
            )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
