"""Finds, downloads, checks and runs models."""

import os
from typing import Final

SPIN_COUNT: Final = "1000"
"""Turns that a thread of libgomp spins at a barrier before it sleeps; libgomp reads this once, when llama.cpp loads it.

Its default of 300,000 keeps a core from the thread that is waited for wherever another program runs: beside two busy
loops on two cores, passes then take twice to fifteen times as long (``python -m tests.bench waiting``).
"""

if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
