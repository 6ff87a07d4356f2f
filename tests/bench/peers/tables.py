"""Part ``peers`` as text."""

from __future__ import annotations

from typing import Final

from tests.bench.peers.figures import OURS, PeerFigures, PeerReport

from slipstream.app.bench.intervals import Ratio
from slipstream.app.bench.report import table
from slipstream.app.platform.safe_text import one_line

_HEAD: Final = (
    "engine",
    "drafter",
    "tok/s",
    "whole requests",
    "over our plain",
    "over its own plain",
    "ours over it",
    "acceptance",
    "texts equal",
)


def peers_text(report: PeerReport) -> str:
    """The table, and what one must know to read it."""
    flash = {None: "as llama.cpp chooses", True: "on", False: "off"}[report.flash]
    counts = ", ".join(f"{name} {count}" for name, count in report.prompts.items())
    notes = [
        f"The same tokens in, temperature 0, at most {report.reply} tokens out; threads {report.threads}, KV cache"
        f" {report.kv}, flash attention {flash}; prompts: {counts}. tok/s is by each engine's own clock, the prompt's"
        " reading left out; whole requests are tok/s with it, by a clock around them.",
        "Ours over it: plain decoding over plain decoding, our fastest drafter over a drafter. Of an engine's settings,"
        " and of our drafters, the fastest on these very prompts counts, which favours both a little.",
        *(
            [f"Built for: {name} {one_line(build)}" for name, build in report.builds.items()]
            if len(set(report.builds.values())) > 1
            else []
        ),
        *(f"Prompts of {name} too long for the context: {count}." for name, count in report.too_long.items() if count),
        *(f"Left out: {one_line(line)}" for line in report.left_out),
    ]
    return table(
        f"peers: other engines on {one_line(report.model)}, each turn in turn with slipstream",
        _HEAD,
        [_row(row) for row in report.rows],
        [notes[0], *(f"- {note}" for note in notes[1:])],
    )


def _row(row: PeerFigures) -> tuple[str, ...]:
    settings = " ".join(f"{name}={value:g}" for name, value in row.settings.items())
    return (
        f"{row.engine} {row.version}" if row.engine != OURS else row.engine,
        f"{row.drafter} {settings}".strip(),
        f"{row.tok_per_s:.1f}",
        f"{row.wall_tok_per_s:.1f}",
        _ratio(row.against_our_plain),
        _ratio(row.against_own_plain),
        _ratio(row.ours_against_it),
        "-" if row.acceptance is None else f"{row.acceptance:.2f}",
        f"{row.equal_texts}/{row.texts}",
    )


def _ratio(ratio: Ratio | None) -> str:
    return "-" if ratio is None else ratio.text()
