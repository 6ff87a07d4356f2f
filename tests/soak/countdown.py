"""The benchmark's estimate of its own time against the time that it took.

A command: ``python -m tests.soak.countdown [options of slipstream bench]``. It reads the progress of one benchmark and
prints elapsed and estimated time together over the true time, when a tenth, a quarter and a half of that had passed,
and how much of the run the estimate was within a factor of 1.5. Fails below nine tenths.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from time import monotonic
from typing import Final

from slipstream.app.bench.figures import decoded

FACTOR: Final = 1.5
LEAST: Final = 0.9
SHARES: Final = (0.1, 0.25, 0.5)


def estimates(options: Sequence[str]) -> tuple[list[tuple[float, float]], float]:
    """Runs a benchmark; returns (seconds so far, estimated total) for each update, and the true total."""
    command = [sys.executable, "-m", "slipstream.app.cli.main", "bench", "--progress", *options]
    found: list[tuple[float, float]] = []
    began = last = 0.0
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout
        for line in process.stdout:
            if not line.startswith('{"measuring"'):
                continue
            left = decoded(json.loads(line)).left
            if left is not None:
                began = began or monotonic()
                found.append((monotonic() - began, monotonic() - began + left))
                last = monotonic() - began
    if process.returncode or not found:
        raise SystemExit(f"the benchmark ended with {process.returncode} after {len(found)} estimates")
    return found, last


def main(options: Sequence[str]) -> int:
    found, total = estimates(options)
    ratios = [(at / total, guess / total) for at, guess in found]
    held = sum(1 / FACTOR <= ratio <= FACTOR for _, ratio in ratios) / len(ratios)
    early = ", ".join(f"{next(ratio for at, ratio in ratios if at >= share):.2f} at {share:.0%}" for share in SHARES)
    print(f"countdown: {total:.0f} s; estimated over true time {early}; within {FACTOR}x in {held:.0%} of the run")
    return int(held < LEAST)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
