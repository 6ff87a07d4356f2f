"""Measured speed-ups of a model's drafters on this machine, from chats, the last benchmark, and the autopilot."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Final

from slipstream.app.chats.reading import ChatReader
from slipstream.app.chats.records import Figures
from slipstream.app.platform.paths import Paths
from slipstream.app.protocol.requests import AUTO, PLAIN
from slipstream.app.speed import LEAST_OF_CHATS, judged
from slipstream.drafters.memory import DrafterMemory
from slipstream.models.errors import SlipstreamError
from slipstream.models.gguf.reader import Header

_NEWEST: Final = 2000  # number of messages that are read: older ones are outdated, and a start must not wait for them


def chats_of(path: Path, fingerprint: str) -> tuple[str, ...]:
    """Titles of the chats in which a model replied, the newest first; empty for an unreadable database."""
    query = """
        SELECT title FROM chats
        WHERE deleted IS NULL AND id IN (SELECT chat FROM messages WHERE model = ?) ORDER BY updated DESC
    """
    with suppress(SlipstreamError), ChatReader(path).open() as db:
        return tuple(str(title) for (title,) in db.execute(query, (fingerprint,))) if db else ()
    return ()


def _newest(path: Path, model: str = "") -> Iterator[tuple[str, str, Figures]]:
    query = """
        SELECT model, drafter, speed FROM messages WHERE id > (SELECT coalesce(max(id), 0) FROM messages) - ?
            AND role = 'assistant' AND status IN ('done', 'interrupted') AND ? IN ('', model)
    """
    with suppress(SlipstreamError), ChatReader(path).open() as db:
        for own, drafter, packed in db.execute(query, (_NEWEST, model)) if db else ():
            if figures := Figures.unpacked(packed):
                yield own, drafter, figures


def reply_speeds(path: Path) -> dict[str, float]:
    """Tokens a second of plain decoding by a model's fingerprint, as its newest replies measured them.

    It is the median of the replies that nothing disturbed; where there are none, the best of the others, since other
    programs only make replies slower.
    """
    speeds: defaultdict[str, dict[bool, list[float]]] = defaultdict(lambda: {True: [], False: []})
    for model, _, figures in _newest(path):
        speed = figures.speed
        if model and speed.plain_tok_per_s:
            speeds[model][speed.busy].append(speed.plain_tok_per_s)
    return {model: median(found[False]) if found[False] else max(found[True]) for model, found in speeds.items()}


def _in_chats(path: Path, fingerprint: str) -> "DrafterGains":
    """What a model's newest replies tell; a drafter is busy if most of its tokens were written while others ran."""
    tried = set[str]()
    written: defaultdict[str, int] = defaultdict(int)
    tokens: defaultdict[str, int] = defaultdict(int)  # of the replies that were compared with plain decoding
    disturbed: defaultdict[str, int] = defaultdict(int)  # how many of them were written while the machine was busy
    seconds: defaultdict[str, float] = defaultdict(float)  # in units of plain decoding's seconds per token
    noises: defaultdict[str, float] = defaultdict(float)  # the replies' noise, weighted with their tokens
    for _, drafter, figures in _newest(path, fingerprint):
        speed = figures.speed
        if drafter == AUTO:
            tried |= {name for name, count in figures.by_drafter.items() if count.get("drafted")}
        written[drafter] += speed.timed
        if speed.speedup:
            tokens[drafter] += speed.timed
            disturbed[drafter] += speed.timed * speed.busy
            seconds[drafter] += speed.timed / speed.speedup
            noises[drafter] += speed.timed * speed.noise
    enough = [name for name in tokens if tokens[name] >= LEAST_OF_CHATS]
    busy = frozenset(name for name in enough if 2 * disturbed[name] > tokens[name])
    found = {name: tokens[name] / seconds[name] for name in enough}
    chance = {name for name in enough if judged(found[name], noises[name] / tokens[name]) != judged(found[name])}
    uncompared = frozenset(name for name, count in written.items() if count >= LEAST_OF_CHATS and name not in found)
    return DrafterGains(
        chats=found,
        benchmark={},
        autopilot={},
        busy_chats=busy,
        chance_chats=frozenset(chance),
        tried=frozenset(tried),
        uncompared=uncompared,
    )


@dataclass(frozen=True, slots=True)
class DrafterGains:
    """Speed over plain decoding by drafter."""

    chats: Mapping[str, float]  # from the newest replies that measured it
    benchmark: Mapping[str, float]  # from the model's newest stored benchmark, over all kinds of text
    autopilot: Mapping[str, float]  # from the autopilot's records
    busy_chats: frozenset[str] = frozenset()  # drafters whose replies other programs mostly disturbed
    busy_benchmark: bool = False  # whether other programs disturbed the benchmark
    chance: frozenset[str] = frozenset()  # drafters whose figure in the benchmark may be chance
    chance_chats: frozenset[str] = frozenset()  # the same of the figure in chats
    tried: frozenset[str] = frozenset()  # drafters that the autopilot used in chats, if only for a few steps
    uncompared: frozenset[str] = frozenset()  # drafters whose own replies had no steady plain speed beside them
    advice: str = ""  # what to use by the benchmark, in a sentence; empty without one

    @property
    def sure(self) -> dict[str, float]:
        """The figures of a quiet benchmark that are not chance: it measures all drafters alike, unlike chats."""
        names = () if self.busy_benchmark else self.benchmark.keys() - self.chance
        return {name: self.benchmark[name] for name in names}

    @property
    def known(self) -> dict[str, float]:
        """One figure per drafter, for lists: from a sure benchmark, else the chats, the benchmark, the autopilot."""
        return {**self.autopilot, **self.benchmark, **self.chats, **self.sure}

    @property
    def sources(self) -> dict[str, str]:
        """A word for the source of each figure in ``known``."""
        busy = ", busy" if self.busy_benchmark else ""
        words = dict.fromkeys(self.autopilot, "auto")
        words |= {name: f"bench{busy or ', chance' * (name in self.chance)}" for name in self.benchmark}
        for name in self.chats:
            words[name] = f"chats{', busy' * (name in self.busy_chats) or ', chance' * (name in self.chance_chats)}"
        return words | dict.fromkeys(self.sure, "bench")

    @property
    def proven(self) -> dict[str, float]:
        """The figures in ``known`` that are not chance."""
        chance = self.chance_chats | (self.chance - self.chats.keys())
        return {name: gain for name, gain in self.known.items() if name in self.sure or name not in chance}


NO_GAINS: Final = DrafterGains({}, {}, {})


def gains_of(paths: Paths, header: Header) -> DrafterGains:
    from slipstream.drafters.autopilot.profile import learned_gains  # loads llama.cpp; lists work without it

    learned = learned_gains(DrafterMemory(paths.derived, header.fingerprint))
    gains = replace(_in_chats(paths.chats, header.fingerprint), autopilot=learned)
    return _benchmarked(paths.benches, header.title, gains)


def _benchmarked(folder: Path, model: str, gains: DrafterGains) -> DrafterGains:
    from slipstream.app.bench.plots import verdict  # most starts need no benchmark
    from slipstream.app.bench.report import advice
    from slipstream.app.bench.results import kept_results

    reports = (kept.report for kept in kept_results(folder) if kept.report and kept.report.model == model)
    newest = next(reports, None)
    if newest is None:
        return gains
    rows = [row for row in newest.overall if row.gain and row.drafter != PLAIN]
    busy = newest.noise.was_busy
    return replace(
        gains,
        benchmark={row.drafter: row.gain.value for row in rows if row.gain},
        busy_benchmark=busy,
        chance=frozenset(row.drafter for row in rows if verdict(row, newest.noise) == "even"),
        advice="" if busy else advice(newest.rows, newest.noise),
    )
