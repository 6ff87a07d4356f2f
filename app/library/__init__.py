"""The model manager's actions, and those on heads and indexes, shared by commands and screens.

In: names that a person types. Out: requests that load a model, offers and files. May import bench, devices and below.
"""

from typing import Final

TOKENS: Final = 500_000  # tokens of text that heads are trained on by default
