"""What becomes of a scenario while the disk fails."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run of a scenario.

    Attributes:
        seen: How many calls there were that could have failed.
        told: Whether an error was worded for the user.
        wrong: What went wrong that must not.
    """

    seen: int
    told: bool
    wrong: list[str]
