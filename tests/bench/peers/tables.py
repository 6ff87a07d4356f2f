"""Part ``peers`` as text."""

from __future__ import annotations

import re
from typing import Final

from tests.bench.peers.figures import OURS, PeerFigures, PeerReport

from slipstream.app.bench.intervals import Interval
from slipstream.app.bench.report import table
from slipstream.app.platform.safe_text import one_line

# names in llama.cpp's own description of a build, the widest first
_LEVELS: Final = (
    "AMX_INT8",
    "AVX512_BF16",
    "AVX512_VNNI",
    "AVX512",
    "AVX2",
    "AVX",
    "SVE",
    "MATMUL_INT8",
    "DOTPROD",
    "NEON",
)

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
        f"The same tokens in, temperature {report.temperature:g}, at most {report.reply} tokens out; threads"
        f" {report.threads}, KV cache"
        f" {report.kv}, flash attention {flash}; prompts: {counts}. tok/s is by each engine's own clock, the prompt's"
        " reading left out; whole requests are tok/s with it, by a clock around them.",
        "Ours over it: like with like: plain decoding over plain decoding, our draft model over theirs, our fastest of"
        " those that copy text over their n-gram drafters and prompt lookup. Of an engine's settings, and of our"
        " drafters, the fastest on these very prompts counts, which favours both a little.",
        *(["Each engine draws with its own noise: texts differ."] if report.temperature else []),
        *(f"{name} was built for {level(build)}: {one_line(build)}" for name, build in report.builds.items()),
        *(f"Prompts of {name} too long for the context: {count}." for name, count in report.too_long.items() if count),
        *(f"Left out: {one_line(line)}" for line in report.left_out),
    ]
    whole = table(
        f"peers: other engines on {one_line(report.model)}, each turn in turn with slipstream",
        _HEAD,
        [_row(row) for row in report.rows],
        [notes[0], *(f"- {note}" for note in notes[1:])],
    )
    best = table(
        "best against best: each engine's fastest against slipstream's fastest, plain decoding included",
        ("engine", "its best", "our best", "ours over it"),
        [(pair.engine, pair.drafter, pair.ours, pair.ratio.text()) for pair in report.best],
    )
    return whole + (best if report.best else "")


def level(build: str) -> str:
    """The widest processor features that a build names, which say how fast its arithmetic can be."""
    on = {name for name, value in re.findall(r"(\w+) = (\d)", build) if value != "0"}
    return next((name for name in _LEVELS if name in on), "no known features")


def _row(row: PeerFigures) -> tuple[str, ...]:
    settings = " ".join(f"{name}={value:g}" for name, value in row.settings.items())
    return (
        f"{row.engine} {row.version}" if row.engine != OURS else row.engine,
        f"{row.drafter} {settings}".strip(),
        f"{row.tok_per_s:.1f}",
        f"{row.wall_tok_per_s:.1f}",
        _ratio(row.against_our_plain),
        _ratio(row.against_own_plain),
        f"{_ratio(row.ours_against_it)} ({row.ours})" if row.ours else "-",
        "-" if row.acceptance is None else f"{row.acceptance:.2f}",
        f"{row.equal_texts}/{row.texts}",
    )


def _ratio(ratio: Interval | None) -> str:
    return "-" if ratio is None else ratio.text()
