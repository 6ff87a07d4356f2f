"""The figures as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # they load the engine, which whoever shows figures does not need
    from slipstream.app.bench.memory import MemoryFigures
    from slipstream.app.bench.overhead import OverheadFigures
    from slipstream.app.bench.plain import PlainFigures

STOPPED: Final = "STOPPED before its end: the figures are of what was written until then."


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str] = ()) -> str:
    """Lays out rows below a title, as Markdown; the first column is flush left, the others right."""
    cells = [[cell.replace("|", "\\|") for cell in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["| " + " | ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) + " |" for row in cells]
    rule = "|".join(["", "-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:]), ""])
    return "\n".join(["", title, "", lines[0], rule, *lines[1:], "", *notes])


def plain_text(rows: Sequence[PlainFigures]) -> str:
    """Part ``plain``."""
    return table(
        "plain: our loop against a bare llama_decode loop (speed ratio; aim: 0.95 or more where a step takes 10 ms)",
        ("model", "MB", "threads", "bare ms/step", "ratio, T 0", "ratio, T 0.8", "added us, T 0", "added us, T 0.8"),
        [
            (
                row.model,
                f"{row.file_mb:.0f}",
                str(row.threads),
                row.bare_ms.text(2),
                row.greedy_ratio.text(3),
                row.sampled_ratio.text(3),
                row.greedy_added_us.text(0),
                row.sampled_added_us.text(0),
            )
            for row in rows
        ],
        [f"{rows[0].rounds} rounds; the bare loop chooses no token." if rows else ""],
    )


def overhead_text(rows: Sequence[OverheadFigures], n_vocab: int, n_ctx: int) -> str:
    """Part ``overhead``."""
    return table(
        f"overhead: milliseconds outside llama_decode, {n_vocab:,} tokens of vocabulary, context {n_ctx:,}",
        ("tree", "in cache", "tokens/step", "loop ms/step", "sampling ms/token", "all ms/step", "same text"),
        [
            (
                f"{row.nodes} nodes, {row.leaves} leaves",
                f"{row.used:,}",
                f"{row.tokens_per_step:.2f}",
                row.loop_ms.text(3),
                row.sampling_ms.text(3),
                row.outside_ms.text(3),
                "yes" if row.same_text else "no",
            )
            for row in rows
        ],
        ["Aims: loop 0.25 ms a step with 16 nodes in 8 leaves; sampling 0.2 ms a token at temperature 0.8."],
    )


def memory_text(rows: Sequence[MemoryFigures]) -> str:
    """Part ``memory``."""
    return table(
        "memory: peak of a process that loads a model and writes with it, in MB",
        ("model", "file", "context", "Python and libraries", "peak", "peak above the file"),
        [
            (
                row.model,
                f"{row.file_mb:.0f}",
                f"{row.context:,}",
                f"{row.before_mb:.0f}",
                f"{row.peak_mb:.0f}",
                f"{row.over_file_mb:.0f}",
            )
            for row in rows
        ],
    )
