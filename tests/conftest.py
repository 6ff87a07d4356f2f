"""What holds for all tests."""

from __future__ import annotations

import os

for _name in ("COLUMNS", "LINES"):
    # pytest-xdist sets these to the size of its own terminal; a program on the terminal of a test would believe them
    os.environ.pop(_name, None)
