"""``slipstream`` with the bundled model, as an owner calls it, and what it says."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.app.terminal import ROOT

SEED: Final = 7
PROGRAM: Final = (sys.executable, "-m", "slipstream.app.cli.main", "-m", "bundled", "--seed", str(SEED))


def words(text: str) -> list[str]:
    """What is left of a text on every screen, whatever Markdown makes of it."""
    return re.findall(r"\w+", text)


def replies_of_run(home: Path, *questions: str, last_seed: int = SEED) -> list[str]:
    replies = []
    for number, question in enumerate(questions, 1):
        seed = last_seed if number == len(questions) else SEED
        command = [*PROGRAM, "run", "--chat", "other", "--seed", str(seed), "-p", question]
        environment = {**os.environ, "SLIPSTREAM_HOME": str(home)}
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, env=environment, cwd=ROOT)
        assert done.returncode == 0, done.stderr
        replies.append(done.stdout.decode().removesuffix("\n"))
    return replies
