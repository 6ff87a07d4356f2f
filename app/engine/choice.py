"""What the autopilot chose for a step, and why, in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

PLAIN: Final = "none"


class Choice(NamedTuple):
    """What was chosen for a step.

    Attributes:
        drafter: Who drafted; "none" for a plain step.
        nodes: Nodes of the draft.
        cost: Milliseconds of the pass over those of a plain one.
        expected: Tokens that are expected of the step.
        plain_ms: Milliseconds of a plain step, all in all.
        rate: Tokens a millisecond of the latest steps.
        trial: Whether it was tried, rather than chosen.
    """

    drafter: str = PLAIN
    nodes: int = 0
    cost: float = 1.0
    expected: float = 1.0
    plain_ms: float = 0.0
    rate: float = 0.0
    trial: bool = False

    def __str__(self) -> str:
        """The reason, in one line."""
        now = f"the latest steps {1e3 * self.rate:.0f} tok/s" if self.rate else "not measured yet"
        if not self.nodes:
            return f"plain, for nothing promises more; {now}"
        return (
            f"{'trying ' if self.trial else ''}{self.drafter} {self.nodes}, C({self.nodes + 1})={self.cost:.1f}x, "
            f"expect {self.expected:.1f} tokens; plain would be {1e3 / self.plain_ms:.0f} tok/s, {now}"
        )


@dataclass(slots=True)
class Tally:
    """What came of the steps of one drafter.

    Attributes:
        steps: How many there were.
        expected: Tokens that were expected of them.
        tokens: Tokens that came.
        ms: Milliseconds that they took, drafting and all.
        plain_ms: Milliseconds that plain decoding would have taken for the same tokens.
    """

    steps: int = 0
    expected: float = 0.0
    tokens: int = 0
    ms: float = 0.0
    plain_ms: float = 0.0

    def add(self, expected: float, tokens: int, ms: float, plain_ms: float, steps: int = 1) -> None:
        """Takes a step, or several alike."""
        self.steps += steps
        self.expected += expected
        self.tokens += tokens
        self.ms += ms
        self.plain_ms += plain_ms
