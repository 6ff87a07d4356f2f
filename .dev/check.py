"""Runs every check: style, types, directions of imports, tests. Stops at the first that fails."""

import argparse
import subprocess
import sys
from pathlib import Path

CHECKS = (
    ("style", ["ruff", "check", "."]),
    ("format", ["ruff", "format", "--check", "."]),
    ("imports", ["lint-imports"]),
    ("types", ["mypy"]),
)
OTHER_SYSTEMS = (
    ("types on macOS", ["mypy", "--platform", "darwin", "--cache-dir", ".mypy_cache/darwin"]),
    ("types on Windows", ["mypy", "--platform", "win32", "--cache-dir", ".mypy_cache/win32", ".dev/slipstream"]),
)
PARALLEL = ["pytest", "--numprocesses=auto", "--dist=worksteal"]


def main() -> int:
    """Runs them in order; returns the exit code of the first that fails, or 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    marks = parser.add_mutually_exclusive_group()
    marks.add_argument("--quick", action="store_true", help="types of this system, and the tests that take least")
    marks.add_argument("--slow", action="store_true", help="only the tests marked slow, and no other check")
    arguments = parser.parse_args()
    tests, checks = "not slow", [*CHECKS, *OTHER_SYSTEMS]
    if arguments.slow:
        tests, checks = "slow", []
    elif arguments.quick:
        tests, checks = "not slow and not program and not long", [*CHECKS]
    programs = Path(sys.executable).parent
    for name, (program, *options) in [*checks, ("tests", [*PARALLEL, "-m", tests])]:
        print(f"--- {name}: {program} {' '.join(options)}".rstrip(), flush=True)
        code = subprocess.run([programs / program, *options], cwd=Path(__file__).parents[1]).returncode
        if code:
            print(f"--- {name} failed", file=sys.stderr)
            return code
    print("--- all checks passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
