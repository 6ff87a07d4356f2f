"""The benchmark: measures the gain of drafting on this machine, and checks that the text stays the same."""

from typing import Final

RACE: Final = "race"  # a command for the chat alone; its argument is a ``RaceRequest`` as JSON
LIMIT: Final = 8  # default number of prompts taken from a set
PAPERS_TYPICAL: Final = 0.09  # the threshold of typical acceptance in the Medusa paper
