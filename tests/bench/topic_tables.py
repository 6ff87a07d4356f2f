"""Part ``topics`` as text."""

from __future__ import annotations

from tests.bench.topic_figures import AS_GOOD, TopicFigures
from tests.bench.topics import TopicReport

from slipstream.app.bench.report import table
from slipstream.app.platform.safe_text import one_line


def topics_text(report: TopicReport) -> str:
    """A row for each stretch of the text, and one for each choice's speed."""
    choices = list(report.segments[0].rates)
    speeds = table(
        f"topics: a known text of prose, a quoted document and code, replayed on {one_line(report.model)}",
        ("tok/s", *(segment.name for segment in report.segments)),
        [
            *((name, *(f"{segment.rates[name]:.1f}" for segment in report.segments)) for name in choices),
            ("auto", *(f"{segment.auto_rate:.1f}" for segment in report.segments)),
        ],
    )
    changes = table(
        "how soon auto chooses what is best for each stretch (the fastest fixed choice, known only afterwards)",
        ("stretch", "tokens", "best", f"within {AS_GOOD:.0%} of it", "steps until", "share of steps", "auto / best"),
        [_row(segment) for segment in report.segments],
        [
            f"{report.rounds} rounds; steps until auto first chose one of these, round by round; `none` is plain.",
            *(f"- Left out: `{name}`, {reason}." for name, reason in report.unusable.items()),
        ],
    )
    return speeds + changes


def _row(segment: TopicFigures) -> tuple[str, ...]:
    fastest = segment.rates[segment.best]
    return (
        segment.name,
        str(segment.tokens),
        segment.best,
        ", ".join(name for name in segment.as_good if name != segment.best) or "-",
        " ".join("never" if steps is None else str(steps) for steps in segment.steps_until),
        f"{segment.share:.0%}",
        f"{segment.auto_rate / fastest:.2f}x" if fastest else "-",
    )
