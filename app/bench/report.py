"""Formats the benchmark's figures as Markdown."""

from collections.abc import Mapping, Sequence
from typing import Final

from slipstream.app.bench.figures import ALL_KINDS, DISAGREE, BestFixed, DrafterFigures, DrafterReport, Noise
from slipstream.app.bench.intervals import FEW, Interval
from slipstream.app.bench.plots import verdict
from slipstream.app.platform.safe_text import one_line
from slipstream.app.protocol.requests import AUTO, PLAIN
from slipstream.app.speed import GAIN, LOSS, times

STOPPED: Final = "STOPPED before its end: the figures cover only what was written until then."
RANGE: Final = "[low, high]: the range that holds the true value 95 times in 100."
_DEPTHS_SHOWN: Final = 6


def advice(rows: Sequence[DrafterFigures], noise: Noise) -> str:
    """One sentence: what to use on this model and machine, by the rows of the last temperature."""
    drafted = [row for row in rows if row.drafter != PLAIN and row.temperature == rows[-1].temperature]
    if not any(row.gain and row.gain.low is not None for row in drafted) and not all(row.idle for row in drafted):
        return "Too little was measured to say what to use: take more prompts."
    verdicts = [(row, row.gain, verdict(row, noise)) for row in drafted]
    gains = [(row, gain.value) for row, gain, found in verdicts if gain and found == "gain"]
    auto = [(row, gain, found) for row, gain, found in verdicts if row.drafter == AUTO]
    whole = next((each for each in auto if each[0].kind == ALL_KINDS), auto[0] if len(auto) == 1 else None)
    lost = ""
    if whole and whole[1] and whole[1].value < LOSS:
        sure = "is" if whole[2] == "loss" else "was, perhaps by chance,"
        lost = f"auto {sure} {times(whole[1].value)} as fast"
    end = "; measure again when the machine is quiet." if noise.was_busy else "."
    over_all = max((each for each in gains if each[0].kind == ALL_KINDS), key=lambda each: each[1], default=None)
    best = max(gains, key=lambda each: each[1], default=None)
    if whole and whole[1] and whole[2] == "gain":
        own = times(whole[1].value)
        if over_all and over_all[1] >= GAIN * whole[1].value:
            return f"Use {over_all[0].drafter}: it is {times(over_all[1])} faster here, auto {own}{end}"
        if best is None or best[1] < GAIN * whole[1].value:
            return f"Use auto: it is {own} faster here{end}"
        return f"Use auto: it is {own} faster here; {_faster(*best)}{end}"
    if best:
        over = f"; {lost or 'auto gains nothing'} over all texts" if whole else ""
        return f"{_faster(*(over_all or best))}{over}{end}"
    if noise.was_busy or noise.spread >= DISAGREE:
        why = "busy" if noise.was_busy else "unsteady"
        return f"Nothing gained, but the machine was {why}: measure again when it is quiet."
    if lost:
        return f"Use none: nothing gains on this model here, and {lost}."
    return f"{'Use auto or none: nothing' if auto else 'Nothing that was measured'} gains on this model here."


def _faster(row: DrafterFigures, value: float) -> str:
    where = "here" if row.kind == ALL_KINDS else f"on {one_line(row.kind)}"
    return f"{row.drafter} is {times(value)} faster {where}"


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str] = ()) -> str:
    """Lays out rows below a title, as Markdown; the first column is flush left, the others right."""
    cells = [[cell.replace("|", "\\|") for cell in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["| " + " | ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) + " |" for row in cells]
    rule = "|".join(["", "-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:]), ""])
    return "\n".join(["", title, "", lines[0], rule, *lines[1:], "", *notes])


def drafters_text(report: DrafterReport) -> str:
    graphs = any(row.replayed is not None for row in report.rows)
    head = (
        *("text", "T", "drafter", "tok/s", "against plain [95 %]", "repeated", "tokens/step", "acceptance"),
        *("acceptance by depth", "ms/step: draft, evaluate, accept, commit, rest", "first token, ms"),
        *(["replayed"] if graphs else []),
        *(["peak MB"] if report.memory_mb else []),
    )
    counts = ", ".join(f"{name} {count}" for name, count in report.prompts.items())
    few = [name for name, count in report.prompts.items() if count < FEW]
    notes = [
        *([STOPPED] if report.stopped else []),
        *report.noise.remarks(),
        f"Texts equal: {report.equal_texts}/{report.texts} (promised: {report.promise}); prompts: {counts};"
        f" seeds: {len(report.seeds)}; at most {report.reply} tokens a reply.",
        RANGE,
        "Repeated: tokens that complete a run of four tokens seen earlier in the same reply; they are easy to copy.",
        *(["Replayed: passes, the drafter's too, for which the device replayed a captured graph."] if graphs else []),
        *([] if report.typical is None else [f"Typical acceptance ({report.typical:g}) was on: it changes the text."]),
        *([few_words(few)] if few else []),
        *(f"Prompts of {name} too long for the context: {count}." for name, count in report.too_long.items() if count),
        *(f"Left out: `{name}`, {reason}." for name, reason in report.unusable.items()),
    ]
    rows = table(
        f"drafters: on {one_line(report.model)}, each reply measured between two of plain decoding",
        head,
        [_row(row, report.memory_mb, graphs) for row in report.rows],
        [notes[0], *(f"- {note}" for note in notes[1:])],
    )
    idle = [(row.kind, row.temperature) for row in report.rows if row.drafter == AUTO and row.idle]
    return rows + "\n" + _best(report.best, idle)


def few_words(kinds: Sequence[str]) -> str:
    return f"Fewer than {FEW} prompts of {', '.join(kinds)}: too few for a range; their figures are a rough guide."


def _row(row: DrafterFigures, memory_mb: dict[str, float | None], graphs: bool) -> tuple[str, ...]:
    peak = memory_mb.get(row.drafter)
    return (
        row.kind,
        f"{row.temperature:g}",
        row.drafter,
        f"{row.tok_per_s:.1f}" if row.drafter == PLAIN else "",
        row.speedup_text,
        "-" if row.repeated is None else f"{row.repeated:.0%}",
        f"{row.tokens_per_step:.2f}",
        _share(row.acceptance),
        " ".join(map(_share, row.by_depth[:_DEPTHS_SHOWN])),
        " ".join(f"{ms:.3f}" for ms in row.phases.values()),
        f"{row.first_token_ms:.1f}",
        *([_share(row.replayed)] if graphs else []),
        *(["-" if peak is None else f"{peak:.0f}"] if memory_mb else []),
    )


def _best(rows: Sequence[BestFixed], idle: Sequence[tuple[str, float]]) -> str:
    """``idle`` are the kinds of text and temperatures at which ``auto`` guessed nothing."""

    def shown(row: BestFixed, ratio: Interval | None) -> str:
        return "guessed nothing" if (row.kind, row.temperature) in idle else ratio.text() if ratio else "-"

    return table(
        "best fixed: the one drafter that was fastest on each kind of text, chosen with hindsight",
        ("text", "T", "best fixed", "against plain [95 %]", "auto against plain", "auto / best fixed"),
        [
            (
                row.kind,
                f"{row.temperature:g}",
                row.drafter,
                row.speedup.text(),
                shown(row, row.auto),
                shown(row, row.auto_over_best),
            )
            for row in rows
        ],
    )


def share_line(where: str, model: str, rows: Sequence[DrafterFigures], kinds: Mapping[str, str]) -> str:
    """One line to compare between people; ``kinds`` are the sets of prompts to show apart, and a word for each."""
    plain = next(row for row in rows if row.drafter == PLAIN and row.kind == ALL_KINDS)
    gains = [
        f"{kinds[row.kind]} {row.speedup_text}, {row.tokens_per_step:.2f} tokens a step"
        for row in rows
        if row.drafter == AUTO and row.kind in kinds
    ]
    return f"{where} | {model} | plain {plain.tok_per_s:.1f} tok/s | auto: {'; '.join(gains)}"


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.2f}"
