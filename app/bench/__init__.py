"""The benchmark: measures the gain of drafting on this machine, and checks that the text stays the same."""

from typing import Final

LIMIT: Final = 8  # default number of prompts taken from a set
RACE_TOKENS: Final = 160  # maximum tokens of each reply of a race
PAPERS_TYPICAL: Final = 0.09  # the threshold of typical acceptance in the Medusa paper
