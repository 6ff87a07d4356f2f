"""Part ``check``: whether every drafter writes what plain decoding writes, token for token (DESIGN section 4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from slipstream.app.bench.plan import Plan
from slipstream.app.bench.stopping import never
from slipstream.app.bench.ties import Difference, weigh
from slipstream.app.bench.turns import Turn, Written, play, session_of, usable_drafters, write
from slipstream.app.engine.measuring import SAME_TEXT
from slipstream.app.engine.requests import Load
from slipstream.app.engine.session import Session
from slipstream.drafters.none import Plain
from slipstream.models.errors import UsageError
from slipstream.models.types import shared_prefix

TOLERANCE: Final = 0.05
"""How far floating point may move a logit: passes of other widths and layouts moved it by up to 0.03 (DESIGN 4)."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A reply that is not plain decoding's.

    Attributes:
        drafter: Who drafted.
        place: Which prompt, turn, temperature and seed.
        difference: Where the two part, and what the target says there.
    """

    drafter: str
    place: str
    difference: Difference


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What part ``check`` found.

    Attributes:
        model: The model's own name.
        promise: What loading it promised about equal texts.
        tolerance: How far a logit may have moved for a difference to be a near-tie.
        compared: Replies of each drafter that were compared with plain decoding's.
        tokens: Tokens that each drafter and plain decoding wrote alike, up to the first difference of each reply.
        findings: Replies that differ.
        unusable: Drafters that cannot serve the model, and why.
        too_long: Prompts of each kind of text with a turn that does not fit the context.
        stopped: Whether it was stopped before its end.
    """

    model: str
    promise: str
    tolerance: float
    compared: dict[str, int]
    tokens: dict[str, int]
    findings: list[Finding]
    unusable: dict[str, str]
    too_long: dict[str, int]
    stopped: bool = False

    @property
    def wrong(self) -> list[Finding]:
        """The findings that floating point does not explain."""
        return [finding for finding in self.findings if not finding.difference.near_tie]

    @property
    def passed(self) -> bool:
        """Whether every difference is a near-tie, or, where the same text was promised, there is none."""
        return not (self.findings if self.promise == SAME_TEXT else self.wrong)


def check_drafters(
    request: Load,
    plan: Plan,
    tell: Callable[[str], None],
    tolerance: float = TOLERANCE,
    stop: Callable[[], bool] = never,
) -> CheckReport:
    """Loads a model and compares every reply of every drafter with plain decoding's.

    Args:
        request: Which model.
        plan: Which replies; by the exact rule.
        tell: Hears how far it is.
        tolerance: How far floating point may move a logit.
        stop: Asked step by step; the report is then of what was compared.

    Raises:
        Stopped: If that is nothing.
        UsageError: If no drafter can serve.
        SlipstreamError: If the model cannot be loaded, or takes none of the prompts.
    """
    with session_of(request) as (session, loaded):
        usable, unusable = usable_drafters(session, loaded, plan.names)
        if not usable:
            raise UsageError("only plain decoding was asked for: there is nothing to compare it with.", "Name others.")
        report = CheckReport(loaded.name, loaded.promise, tolerance, dict.fromkeys(usable, 0), {}, [], unusable, {})
        return audit(session, report, plan, loaded.n_ctx, tell, stop)


def audit(
    session: Session,
    report: CheckReport,
    plan: Plan,
    context: int,
    tell: Callable[[str], None],
    stop: Callable[[], bool] = never,
) -> CheckReport:
    """Compares every reply of the drafters in ``report.compared`` with plain decoding's.

    Args:
        session: The model.
        report: What is known so far; nothing was compared yet.
        plan: Which replies.
        context: Tokens that fit the model's context.
        tell: Hears how far it is.
        stop: Asked step by step.

    Returns:
        The report with what was found.
    """
    compared, tokens, findings = dict(report.compared), dict.fromkeys(report.compared, 0), list[Finding]()

    def reply(turn: Turn) -> Written:
        plain = write(session, Plain.name, turn, stop)
        for name in compared:
            drafted = write(session, name, turn, stop)
            alike = shared_prefix(plain.tokens, drafted.tokens)
            compared[name] += 1
            tokens[name] += alike
            if drafted.tokens != plain.tokens:
                difference = weigh(session, turn, plain.tokens, drafted.tokens, report.tolerance)
                findings.append(Finding(name, turn.place, difference))
                tell(f"check: {name} differs: {turn.place}, token {alike + 1}")
        return plain

    counts = play(plan, context, lambda line: tell(f"check: {line}"), reply)
    too_long = {name: long for name, (_, long) in counts.items()}
    return replace(report, compared=compared, tokens=tokens, findings=findings, too_long=too_long, stopped=stop())
