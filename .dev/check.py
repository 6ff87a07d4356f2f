"""Runs every check: style, types, directions of imports, tests. Stops at the first that fails."""

import subprocess
import sys
from pathlib import Path

CHECKS = (
    ("style", ["ruff", "check", "."]),
    ("format", ["ruff", "format", "--check", "."]),
    ("types", ["mypy"]),
    ("types on macOS", ["mypy", "--platform", "darwin", "--cache-dir", ".mypy_cache/darwin"]),
    ("types on Windows", ["mypy", "--platform", "win32", "--cache-dir", ".mypy_cache/win32", ".dev/slipstream"]),
    ("imports", ["lint-imports"]),
    ("tests", ["pytest"]),
)


def main() -> int:
    """Runs them in order; returns the exit code of the first that fails, or 0."""
    programs = Path(sys.executable).parent
    for name, (program, *arguments) in CHECKS:
        print(f"--- {name}: {program} {' '.join(arguments)}".rstrip(), flush=True)
        code = subprocess.run([programs / program, *arguments], cwd=Path(__file__).parents[1]).returncode
        if code:
            print(f"--- {name} failed", file=sys.stderr)
            return code
    print("--- all checks passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
