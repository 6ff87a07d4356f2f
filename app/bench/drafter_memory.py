"""Measures the memory of a process that loads a model with one drafter and writes with it.

Run as a module, this file is that process, and prints one line of JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path

from slipstream.app.engine.process.frames import built
from slipstream.app.protocol.requests import Load
from slipstream.models.errors import SlipstreamError, UsageError


def drafter_memory(
    request: Load, drafters: Sequence[str], steps: int, tell: Callable[[str], None]
) -> dict[str, float | None]:
    """Measures each drafter in a child process.

    Returns:
        The peak of resident memory in MB of 1,000,000 bytes, including Python and the model's file, without a GPU's
        memory; None if the child failed, which ``tell`` reports.
    """
    found: dict[str, float | None] = {}
    for name in drafters:
        tell(f"drafters: memory of {name}")
        asked = json.dumps({"load": asdict(replace(request, drafter=name, chats=None)), "steps": steps})
        command = [sys.executable, "-m", "slipstream.app.bench.drafter_memory"]
        child = subprocess.run(command, input=asked, capture_output=True, text=True, check=False)
        if child.returncode:
            lines = child.stderr.strip().splitlines() or [f"exit code {child.returncode}"]
            tell(f"drafters: memory of {name} could not be measured: {lines[-1]}")
        found[name] = None if child.returncode else json.loads(child.stdout)["peak"] / 1e6
    return found


def peak_bytes() -> int:
    """The peak of this process's resident memory, including mapped files."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would include the memory of a parent that forked this process
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    if sys.platform == "win32":
        raise SlipstreamError("memory cannot be measured on Windows.", "Leave it out with --no-memory.")
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _child() -> None:
    """Reads the request from standard input, and writes the peak of memory to standard output."""
    from slipstream.app.bench.turns import Turn, session_of, write
    from slipstream.app.protocol.requests import Message, Sampling

    asked = json.load(sys.stdin)
    load: Load = built(Load, asked["load"])
    turn = Turn("", 0, 0, (Message("user", "Hello!"),), Sampling(), asked["steps"])
    with ExitStack() as opened:
        try:  # without the draft model if the drafter does not need it
            session, _ = opened.enter_context(session_of(replace(load, draft_model=None)))
        except UsageError:
            session, _ = opened.enter_context(session_of(load))
        write(session, load.drafter, turn)
        print(json.dumps({"peak": peak_bytes()}))


if __name__ == "__main__":
    try:
        _child()
    except SlipstreamError as error:
        sys.exit(error.title)
