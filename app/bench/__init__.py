"""The benchmark: measures the gain of drafting on this machine, and checks that the text stays the same; the race.

In come a request that loads a model, prompts and names of drafters; out come figures, tables and charts, or the events
of a race. It may import the engine and what stands below it.
"""

from typing import Final

RACE: Final = "race"  # a command for the chat alone; its argument is a ``RaceRequest`` as JSON
LIMIT: Final = 8  # default number of prompts taken from a set
PAPERS_TYPICAL: Final = 0.09  # the threshold of typical acceptance in the Medusa paper
STDOUT: Final = "-"  # stands for standard output where a file is asked for
UNFINISHED: Final = ".running-"  # prefix of the files of running benchmarks; lists of results leave them out
