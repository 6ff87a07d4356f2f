"""Finds, downloads, checks and runs models."""

import os
from typing import Final

DEFAULT_CONTEXT: Final = 8192  # longest context in tokens unless the user sets one
SPIN_COUNT: Final = "1000"
"""How often a libgomp thread spins at a barrier before it sleeps; libgomp reads this once, when llama.cpp loads it.

With libgomp's default of 300,000, waiting threads keep cores from working threads while another program runs: with two
busy loops on two cores, passes take 2 to 15 times as long (``python -m tests.bench waiting``).
"""
BLAS_THREADS: Final = "1"
"""Threads of NumPy's OpenBLAS, which reads this once, when NumPy is imported.

After a large product its other threads spin for up to 0.1 s, and beside them a pass of the bundled model takes 13 ms
instead of 1. The benchmark's intervals are such products, so they disturbed the replies that were measured next.
"""

os.environ.setdefault("OPENBLAS_NUM_THREADS", BLAS_THREADS)
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
