"""Runs every check: style, types, directions of imports, tests. Stops at the first that fails."""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from branches import measured, others

STYLE = (
    ("style", ["ruff", "check", "."]),
    ("format", ["ruff", "format", "--check", "."]),
    ("imports", ["lint-imports"]),
)
TYPES = (
    ("types", ["mypy"]),
    ("types on macOS", ["mypy", "--platform", "darwin", "--cache-dir", ".mypy_cache/darwin"]),
    ("types on Windows", ["mypy", "--platform", "win32", "--cache-dir", ".mypy_cache/win32", ".dev/slipstream"]),
)
WORKERS = (os.cpu_count() or 1) + 1  # tests of the interface wait for a quarter of their time
PARALLEL = ["pytest", f"--numprocesses={WORKERS}", "--dist=worksteal"]
Check = tuple[str, list[str]]


def main() -> int:
    """Runs them in order; returns the exit code of the first that fails, or 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    marks = parser.add_mutually_exclusive_group()
    marks.add_argument("--quick", action="store_true", help="types of this system, and the tests that take least")
    marks.add_argument("--slow", action="store_true", help="only the tests marked slow, and no other check")
    arguments = parser.parse_args()
    tests, types = "not slow", TYPES
    if arguments.quick:
        tests, types = "not slow and not program and not long", TYPES[:1]
    if arguments.slow:
        tests = "slow"
    commands = [[*PARALLEL, "-m", tests]]
    if "MEASURE_BRANCHES" in os.environ:
        commands = [*measured(PARALLEL), others(PARALLEL)]
    groups: list[tuple[Check, ...]] = [] if arguments.slow else [*((check,) for check in STYLE), types]
    groups += [(("tests", command),) for command in commands]
    for checks in groups:
        if code := side_by_side(checks):
            return code
    print("--- all checks passed")
    return 0


def side_by_side(checks: tuple[Check, ...]) -> int:
    """Runs checks at the same time; returns the exit code of one that fails, or 0."""
    programs = Path(sys.executable).parent
    running = []
    for name, (program, *options) in checks:
        print(f"--- {name}: {program} {' '.join(options)}".rstrip(), flush=True)
        running.append((name, subprocess.Popen([programs / program, *options], cwd=Path(__file__).parents[1])))
    failed = 0
    for name, process in running:
        if code := process.wait():
            print(f"--- {name} failed", file=sys.stderr)
            failed = failed or code
    return failed


if __name__ == "__main__":
    sys.exit(main())
