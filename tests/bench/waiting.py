"""Part ``waiting``: how long a pass takes by how its threads wait for each other, alone and beside busy programs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Final

from tests.bench.clocks import Spread

from slipstream.app.bench.report import table
from slipstream.models import SPIN_COUNT
from slipstream.models.errors import SlipstreamError

WAYS: Final = {"spin": "300000", "slipstream": SPIN_COUNT}
"""Values of GOMP_SPINCOUNT: libgomp's own default, and slipstream's."""
BUSY: Final = (0, 1, 2)
_LOOP: Final = "while True: pass"
_PASSES: Final = """
import sys
from contextlib import closing
from pathlib import Path
from time import perf_counter
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.placement import Placement
from slipstream.models.llama.target import ContextOptions
from slipstream.models.types import EMPTY_TREE

path, threads, passes = sys.argv[1:]
options = ContextOptions(n_ctx=512, threads=int(threads))
with closing(LlamaModel(Path(path), placement=Placement(0))) as model, closing(LlamaTarget(model, options)) as target:
    target.request(frozenset())
    target.prefill([1] * 8)
    for _ in range(int(passes)):
        start = perf_counter()
        target.evaluate(5, EMPTY_TREE)
        target.keep(())
        print(perf_counter() - start)
"""


@dataclass(frozen=True, slots=True)
class WaitingFigures:
    """Mean milliseconds of a pass over one row, over rounds."""

    model: str
    threads: int
    passes: int  # a round
    means: dict[str, dict[int, Spread]]  # by the way of waiting, and by how many busy loops ran beside it


def measure_waiting(model: Path, threads: int, passes: int, rounds: int, tell: Callable[[str], None]) -> WaitingFigures:
    """Runs passes in processes of their own, since the library reads the setting once, both ways in turns.

    Raises:
        SlipstreamError: If a process fails.
    """
    found: dict[str, dict[int, list[float]]] = {way: {loops: [] for loops in BUSY} for way in WAYS}
    for loops in BUSY:
        for at in range(rounds):
            for way, spins in WAYS.items():
                tell(f"waiting: {loops} busy loops, round {at + 1} of {rounds}, {way}")
                with busy(loops):
                    found[way][loops].append(1e3 * mean(_passes(model, threads, passes, spins)))
    means = {way: {loops: Spread.of(times) for loops, times in kinds.items()} for way, kinds in found.items()}
    return WaitingFigures(model.name, threads, passes, means)


@contextmanager
def busy(loops: int) -> Iterator[None]:
    """Keeps so many cores busy."""
    running = [subprocess.Popen([sys.executable, "-c", _LOOP]) for _ in range(loops)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def _passes(model: Path, threads: int, passes: int, spins: str) -> Sequence[float]:
    command = [sys.executable, "-c", _PASSES, str(model), str(threads), str(passes)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "GOMP_SPINCOUNT": spins})
    if done.returncode:
        raise SlipstreamError(f"a process of part waiting failed: {done.stderr[-300:]}")
    return [float(line) for line in done.stdout.split()]


def waiting_text(figures: WaitingFigures) -> str:
    """A row for every number of busy loops."""
    rows = [(str(loops), *(kinds[loops].text(1) for kinds in figures.means.values())) for loops in BUSY]
    names = [f"{way}: {spins} turns" for way, spins in WAYS.items()]
    what = f"mean ms of {figures.passes} plain passes, median of rounds (range)"
    title = f"waiting: {figures.model}, {figures.threads} threads; {what}"
    return table(title, ("busy loops", *names), rows, [])
