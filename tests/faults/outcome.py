"""What becomes of a scenario while the disk fails."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run of a scenario."""

    seen: int  # how many calls there were that could have failed
    told: bool  # whether an error was worded for the user
    wrong: list[str]  # what went wrong that must not
