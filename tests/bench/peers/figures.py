"""What part ``peers`` found, from replies to figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Final

from tests.bench.peers.sweep import Timing, Tried, Variant, rate

from slipstream.app.bench.intervals import Interval, ReplyPair, TimedTokens, advantage, speedup
from slipstream.drafters.base import Plain

OURS: Final = "slipstream"
OUR_PLAIN: Final = Variant(OURS, Plain.name)


@dataclass(frozen=True, slots=True)
class PeerFigures:
    """One engine with one way to draft, over all prompts."""

    engine: str  # its name; "slipstream" for our own
    version: str  # its version
    drafter: str  # who drafts, by the engine's own name; "none" for plain decoding
    settings: dict[str, float]  # what was set of it: the fastest of those that were tried
    tok_per_s: float  # tokens a second by the engine's own clock, the prompts' reading left out
    wall_tok_per_s: float  # the same by the time of whole requests, the prompts' reading included
    against_our_plain: Interval  # its speed over that of slipstream's plain decoding of the same turns
    against_own_plain: Interval | None  # its speed over that of its own plain decoding; None where that was left out
    ours: str  # Slipstream's fastest drafter of the same kind; empty where none was measured, and for slipstream itself
    ours_against_it: Interval | None  # its speed over this one's; None where there is none
    acceptance: float | None  # accepted over drafted tokens; None where nothing was drafted, or the engine does not say
    tokens: int  # tokens that were timed
    equal_texts: int  # replies that were the same as slipstream's plain ones
    texts: int  # replies


@dataclass(frozen=True, slots=True)
class BestPair:
    """An engine at its best against slipstream at its best, plain decoding included on both sides."""

    engine: str  # the other engine
    drafter: str  # its fastest way to write
    ours: str  # Slipstream's
    ratio: Interval  # Slipstream's speed over its


@dataclass(frozen=True, slots=True)
class PeerReport:
    """What part ``peers`` found."""

    model: str
    threads: int  # threads of every pass, in every engine
    kv: str  # type of every KV cache
    flash: bool | None  # flash attention on, off, or None for llama.cpp's choice
    reply: int  # most tokens of a reply
    temperature: float  # at which all of them draw, each with its own noise; at 0 the best token is taken
    prompts: dict[str, int]  # prompts of each kind of text that were replied to
    too_long: dict[str, int]  # prompts of each kind of text with a turn that does not fit the context
    builds: dict[str, str]  # what each engine's llama.cpp was built for
    rows: list[PeerFigures]  # Slipstream's rows, then the others'
    best: list[BestPair]  # best against best
    tried: list[Tried]  # settings that were tried before, and how fast they were
    left_out: list[str]  # who is missing, refused or died, and why


@dataclass(slots=True)
class Replies:
    """What one variant has written."""

    timings: list[Timing] = field(default_factory=list)  # every reply
    # per prompt: the sums of its replies, and of slipstream's plain ones
    pairs: dict[tuple[str, int], ReplyPair] = field(default_factory=dict)
    equal: int = 0  # replies that were the same as slipstream's plain ones

    def add(self, prompt: tuple[str, int], timing: Timing, plain: Timing) -> None:
        """Takes a reply; one that ended with its first token has no speed and counts only as a text."""
        self.timings.append(timing)
        self.equal += timing.text == plain.text
        if timing.seconds and plain.seconds and timing.tokens and plain.tokens:
            pair = ReplyPair(TimedTokens(timing.tokens, timing.seconds), TimedTokens(plain.tokens, plain.seconds))
            self.pairs[prompt] = self.pairs[prompt] + pair if prompt in self.pairs else pair


def peer_figures(replies: Mapping[Variant, Replies], versions: Mapping[str, str]) -> list[PeerFigures]:
    """Sums up.

    Args:
        replies: What each variant wrote; slipstream's plain decoding must be among them.
        versions: The version of each engine.
    """
    timed = {variant: written for variant, written in replies.items() if written.pairs}
    rows = []
    for variant, written in timed.items():
        own = next((v for v in timed if v.engine == variant.engine and v.drafter == Plain.name), None)
        rival = None
        if variant.engine != OURS:
            rival = _fastest(timed, [v for v in timed if v.engine == OURS and v.kind == variant.kind])
        known = [t for t in written.timings if t.drafted is not None and t.accepted is not None]
        total = sum(t.drafted or 0 for t in known)
        rows.append(
            PeerFigures(
                engine=variant.engine,
                version=version("slipstream") if variant.engine == OURS else versions[variant.engine],
                drafter=variant.drafter,
                settings=dict(variant.settings),
                tok_per_s=rate(written.timings),
                wall_tok_per_s=sum(t.tokens for t in written.timings) / sum(t.wall for t in written.timings),
                against_our_plain=Interval(1.0) if variant == OUR_PLAIN else speedup(_pairs(written)),
                against_own_plain=None if own is None or own == variant else _over(written, timed[own]),
                ours=rival.drafter if rival else "",
                ours_against_it=_over(timed[rival], written) if rival else None,
                acceptance=sum(t.accepted or 0 for t in known) / total if total else None,
                tokens=sum(t.tokens for t in written.timings),
                equal_texts=written.equal,
                texts=len(written.timings),
            )
        )
    return rows


def best_pairs(replies: Mapping[Variant, Replies]) -> list[BestPair]:
    """The fastest of each other engine against our fastest."""
    timed = {variant: written for variant, written in replies.items() if written.pairs}
    ours = _fastest(timed, [variant for variant in timed if variant.engine == OURS])
    found = []
    for engine in dict.fromkeys(variant.engine for variant in timed if variant.engine != OURS):
        theirs = _fastest(timed, [variant for variant in timed if variant.engine == engine])
        if ours and theirs and (ratio := _over(timed[ours], timed[theirs])):
            found.append(BestPair(engine, theirs.drafter, ours.drafter, ratio))
    return found


def _fastest(timed: Mapping[Variant, Replies], variants: Sequence[Variant]) -> Variant | None:
    """By the speed over plain decoding's of the same turns."""
    return max(variants, key=lambda variant: speedup(_pairs(timed[variant])).value, default=None)


def _pairs(written: Replies) -> list[ReplyPair]:
    return list(written.pairs.values())


def _over(ours: Replies, theirs: Replies) -> Interval | None:
    """One's speed over the other's, on the prompts where both have one."""
    both = [prompt for prompt in ours.pairs if prompt in theirs.pairs]
    if not both:
        return None
    return advantage([ours.pairs[prompt] for prompt in both], [theirs.pairs[prompt] for prompt in both])
