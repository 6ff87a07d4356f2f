"""Child processes that end in a limited time, and with their parent, however it ends."""

import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Final

from slipstream.models.outside import LONGEST_REASON

_TELLING: Final = ("GGML_ASSERT", "GGML_ABORT", "terminate called", "what():", "CUDA error", "Error:")


def run_child(
    arguments: Sequence[str], seconds: float, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Runs Python, and collects its output; its standard input is a pipe that only this process keeps open.

    The code calls ``end_with_parent``; at the limit it is killed, and ``subprocess.TimeoutExpired`` is raised.
    """
    ours, theirs = os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, *arguments], stdin=ours, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
        )
        try:
            output, errors = process.communicate(timeout=seconds)
        except BaseException:  # ``subprocess.run`` would also wait for children of the child that hold its pipes
            process.kill()
            process.wait()
            for pipe in (process.stdout, process.stderr):
                if pipe:
                    pipe.close()
            raise
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)
    finally:
        os.close(ours)
        os.close(theirs)


def last_words(log: str) -> str:
    """The last line of an ended process's log that names the reason; empty if none does."""
    found = [line.strip() for line in log.splitlines() if any(mark in line for mark in _TELLING)]
    return found[-1][:LONGEST_REASON] if found else ""


def end_with_parent() -> None:
    """Ends this process when its standard input is closed, even while C code runs."""

    def wait() -> None:
        while os.read(0, 1024):
            pass
        os._exit(1)

    threading.Thread(target=wait, name="end with parent", daemon=True).start()
