"""Part ``memory``: how much memory a process takes that loads a model and writes with it.

Run as a module it is that process: it prints one line of JSON and ends.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from slipstream.app.bench.report import table
from slipstream.app.platform.processes import peak_bytes
from slipstream.models.errors import SlipstreamError
from slipstream.models.llama.target import ContextOptions


@dataclass(frozen=True, slots=True)
class MemoryFigures:
    """One model in a process of its own; all sizes in MB of 1,000,000 bytes."""

    model: str  # its name
    file_mb: float  # size of its file
    context: int  # tokens of context
    before_mb: float  # peak of the process before the model was loaded: Python and the libraries
    peak_mb: float  # peak after loading and writing
    over_file_mb: float  # what the peak is above the file's size


def measure_memory(name: str, path: Path, options: ContextOptions, steps: int) -> MemoryFigures:
    """Loads a model in a child process and writes ``steps`` tokens.

    Raises:
        SlipstreamError: If the child fails.
    """
    asked = json.dumps({"path": str(path), "options": asdict(options), "steps": steps})
    child = subprocess.run(
        [sys.executable, "-m", "tests.bench.memory"], input=asked, capture_output=True, text=True, check=False
    )
    if child.returncode:
        lines = child.stderr.strip().splitlines() or [f"exit code {child.returncode}"]
        raise SlipstreamError(f"memory could not be measured: {lines[-1]}")
    found = json.loads(child.stdout)
    size = path.stat().st_size / 1e6
    before, peak = found["before"] / 1e6, found["peak"] / 1e6
    return MemoryFigures(name, size, found["context"], before, peak, peak - size)


def memory_text(rows: Sequence[MemoryFigures]) -> str:
    """Lays the figures out."""
    return table(
        "memory: peak of a process that loads a model and writes with it, in MB",
        ("model", "file", "context", "Python and libraries", "peak", "peak above the file"),
        [
            (
                row.model,
                f"{row.file_mb:.0f}",
                f"{row.context:,}",
                f"{row.before_mb:.0f}",
                f"{row.peak_mb:.0f}",
                f"{row.over_file_mb:.0f}",
            )
            for row in rows
        ],
    )


def _child() -> None:
    """Reads what to load from standard input and writes what it took to standard output."""
    from tests.bench.plain import opened, ordinary, run_loop

    from slipstream.drafters.base import Plain
    from slipstream.models.sampling.sampler import Sampler

    asked = json.load(sys.stdin)
    before = peak_bytes()
    with opened(Path(asked["path"]), ContextOptions(**asked["options"])) as target:
        run_loop(target, Plain(), Sampler(), ordinary(target, 64), asked["steps"])
        found = {"before": before, "peak": peak_bytes(), "context": target.abilities.n_ctx}
    print(json.dumps(found))


if __name__ == "__main__":
    _child()
