"""The benchmark: what drafting gains on this machine, and whether the text stays the same."""

from typing import Final

LIMIT: Final = 8  # prompts of a set that are replied to by default
RACE_TOKENS: Final = 160  # tokens of each reply of a race, at most
PAPERS_TYPICAL: Final = 0.09  # the threshold of typical acceptance in the Medusa paper
