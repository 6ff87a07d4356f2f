"""Fails the first call of a kind, then the second, and so on until all succeed, as SQLite's own tests do.

A process of its own does it, see ``sweep``: ``python -m tests.faults.sweep SCENARIO MOST CALL:ERROR…``. It prints a
JSON object for every kind of call and error.
"""

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Final

from tests.faults.chats import Chats
from tests.faults.downloads import Downloads
from tests.faults.openings import LastMigration, Migrations, Opening, Rescues
from tests.faults.shim import KILL, Shim

SCENARIOS: Final[dict[str, type[Chats] | type[Downloads] | type[Opening]]] = {
    "chats": Chats, "migrations": Migrations, "migrations-last": LastMigration, "rescues": Rescues,
    "downloads": Downloads,
}  # fmt: skip
FOR_GOOD: Final = ("ENOSPC",)  # errors that do not pass by themselves: every later call fails, too


@dataclass(frozen=True, slots=True)
class Swept:
    call: str  # the call
    error: str  # the error's name
    runs: int  # how often it failed, each time at another place
    told: int  # how often the user was told
    whole: bool  # whether the last run met no failure: there was no later place
    wrong: list[str]  # what went wrong, with the place


def sweep(library: Path, scenario: str, most: int, faults: list[str]) -> Iterator[Swept]:
    """Runs faults such as "write:EIO" at so many places at most, in a process that was started with the shim."""
    command = [sys.executable, "-m", "tests.faults.sweep", scenario, str(most), *faults]
    environment = {**os.environ, "LD_PRELOAD": str(library)}
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, cwd=root, env=environment, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout
        for line in child.stdout:
            yield Swept(**json.loads(line))
    if child.returncode:
        raise RuntimeError(f"the sweep of {scenario} ended with {child.returncode}")


def main() -> None:
    scenario, most, shim = SCENARIOS[sys.argv[1]], int(sys.argv[2]), Shim()
    memory = Path("/dev/shm")
    root = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
    try:
        (root / "scenario").mkdir()
        there = scenario(root / "scenario")
        for fault in sys.argv[3:]:
            call, name = fault.split(":")
            wrong: list[str] = []
            told = 0
            for number in range(1, most + 1):
                error = KILL if name == "KILL" else getattr(errno, name)
                arm = partial(shim.arm, root / "place", call, number, error, name in FOR_GOOD)
                if error == KILL and isinstance(there, Opening):
                    outcome = there.killed(root / "place", arm)
                else:
                    outcome = there.run(root / "place", arm, shim.disarm)
                wrong += [f"{call} {number} {name}: {what}" for what in outcome.wrong]
                told += outcome.told
                shutil.rmtree(root / "place", ignore_errors=True)
                if outcome.seen < number:
                    break
            whole = outcome.seen < number
            print(json.dumps(asdict(Swept(call, name, number - whole, told, whole, wrong))), flush=True)
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
