"""The model manager's actions, and those on heads and indexes, shared by commands and screens."""

from typing import Final

TOKENS: Final = 500_000  # tokens of text that heads are trained on by default
