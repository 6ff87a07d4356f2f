"""Measured speed-ups of a model's drafters on this machine, from chats, the last benchmark, and the autopilot."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slipstream.app.chats.reading import ChatReader
from slipstream.app.chats.records import Figures
from slipstream.app.platform.paths import Paths
from slipstream.app.protocol import PLAIN
from slipstream.drafters.memory import Memory
from slipstream.models.errors import SlipstreamError
from slipstream.models.gguf.reader import Header

_NEWEST: Final = 2000  # number of messages that are read: older ones are outdated, and a start must not wait for them
_LEAST_TOKENS: Final = 64


def chats_of(path: Path, fingerprint: str) -> tuple[str, ...]:
    """Titles of the chats in which a model replied, the newest first; empty for an unreadable database."""
    query = """
        SELECT title FROM chats
        WHERE deleted IS NULL AND id IN (SELECT chat FROM messages WHERE model = ?) ORDER BY updated DESC
    """
    with suppress(SlipstreamError), ChatReader(path).open() as db:
        return tuple(str(title) for (title,) in db.execute(query, (fingerprint,))) if db else ()
    return ()


def _in_chats(path: Path, fingerprint: str) -> dict[str, float]:
    """Speed over plain decoding by drafter, from a model's newest replies that measured it."""
    query = """
        SELECT drafter, speed FROM messages
        WHERE id > (SELECT coalesce(max(id), 0) FROM messages) - ?
            AND model = ? AND role = 'assistant' AND status IN ('done', 'interrupted')
    """
    tokens: defaultdict[str, int] = defaultdict(int)
    seconds: defaultdict[str, float] = defaultdict(float)  # in units of plain decoding's seconds per token
    with suppress(SlipstreamError), ChatReader(path).open() as db:
        for drafter, speed in db.execute(query, (_NEWEST, fingerprint)) if db else ():
            figures = Figures.unpacked(speed)
            if figures and figures.speed.speedup:
                tokens[drafter] += figures.speed.timed
                seconds[drafter] += figures.speed.timed / figures.speed.speedup
    return {name: tokens[name] / seconds[name] for name in tokens if tokens[name] >= _LEAST_TOKENS}


@dataclass(frozen=True, slots=True)
class Gains:
    """Speed over plain decoding by drafter."""

    chats: Mapping[str, float]  # from the newest replies that measured it
    benchmark: Mapping[str, float]  # from the model's newest stored benchmark, over all kinds of text
    autopilot: Mapping[str, float]  # from the autopilot's records

    @property
    def known(self) -> dict[str, float]:
        """One figure per drafter, for lists: from the chats, else the benchmark, else the autopilot."""
        return {**self.autopilot, **self.benchmark, **self.chats}

    @property
    def sources(self) -> dict[str, str]:
        """A word for the source of each figure in ``known``."""
        named = (("auto", self.autopilot), ("bench", self.benchmark), ("chats", self.chats))
        return {drafter: word for word, gains in named for drafter in gains}


NO_GAINS: Final = Gains({}, {}, {})


def gains_of(paths: Paths, header: Header) -> Gains:
    """Reads the measured speed-ups of a model's drafters."""
    from slipstream.drafters.autopilot.profile import learned_gains  # loads llama.cpp; lists work without it

    in_chats = _in_chats(paths.chats, header.fingerprint)
    learned = learned_gains(Memory(paths.derived, header.fingerprint))
    return Gains(in_chats, _benchmarked(paths.benches, header.name), learned)


def _benchmarked(folder: Path, model: str) -> dict[str, float]:
    from slipstream.app.bench.kept import kept_results  # also loads the plots; most starts need neither

    reports = (kept.report for kept in kept_results(folder) if kept.report and kept.report.model == model)
    rows = next((report.overall for report in reports), [])
    return {row.drafter: row.gain.value for row in rows if row.gain and row.drafter != PLAIN}
