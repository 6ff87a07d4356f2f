"""Part ``check`` as text."""

from __future__ import annotations

from typing import Final

from slipstream.app.bench.check import CheckReport, Finding
from slipstream.app.bench.report import STOPPED, table
from slipstream.app.engine.measuring import SAME_TEXT
from slipstream.app.safe_text import one_line

_SHOWN: Final = 12  # findings in full; all of them are in the JSON


def check_text(report: CheckReport) -> str:
    """What was compared, drafter by drafter, the differences, and the verdict."""
    rows = []
    for name, replies in report.compared.items():
        differ = [finding for finding in report.findings if finding.drafter == name]
        ties = sum(finding.difference.near_tie for finding in differ)
        rows.append(
            (
                name,
                str(replies),
                str(replies - len(differ)),
                f"{report.tokens[name]:,}",
                str(ties),
                str(len(differ) - ties),
            )
        )
    notes = [
        *([STOPPED] if report.stopped else []),
        _verdict(report),
        *(f"- {_line(finding)}" for finding in report.findings[:_SHOWN]),
        *([f"- and {len(report.findings) - _SHOWN} more (--json)."] if len(report.findings) > _SHOWN else []),
        *(
            f"- Prompts of {name} too long for the context: {count}."
            for name, count in report.too_long.items()
            if count
        ),
        *(f"- Left out: `{name}`, {reason}." for name, reason in report.unusable.items()),
    ]
    return table(
        f"check: replies on {one_line(report.model)} compared with plain decoding's, token for token",
        ("drafter", "replies", "equal", "tokens alike", "near-ties", "wrong"),
        rows,
        notes,
    )


def _verdict(report: CheckReport) -> str:
    if not report.findings:
        return f"Passed: every reply is plain decoding's (promised: {report.promise})."
    if report.wrong:
        return f"FAILED: {len(report.wrong)} replies differ by more than floating point explains."
    if report.promise == SAME_TEXT:
        return f"FAILED: {len(report.findings)} replies differ, by near-ties only, but the same text was promised."
    return (
        f"Passed: {len(report.findings)} replies differ, each at a near-tie: logits that moved by {report.tolerance:g}"
        f" or less turn one draw into the other (promised: {report.promise})."
    )


def _line(finding: Finding) -> str:
    difference = finding.difference
    if difference.plain is None or difference.drafted is None:
        return f"`{finding.drafter}`, {finding.place}: one reply ends after {difference.index} tokens: WRONG."
    gap = "only one could be drawn" if difference.gap is None else f"the two best are {difference.gap:.3g} logits apart"
    unstable = "" if difference.again == difference.plain else f"; run again, plain decoding has {difference.again}"
    return (
        f"`{finding.drafter}`, {finding.place}: token {difference.index + 1} is {difference.drafted} in place of"
        f" {difference.plain} ({gap}: {'a near-tie' if difference.near_tie else 'WRONG'}{unstable})."
    )
