"""Part ``replay``: what drafters that read text gain on replies that people and large models really wrote.

The text is forced through the target whatever it would say itself, so a model that is widened from a small one gives a
large one's cost without its own way of writing. Only drafters that read text can be judged so: a draft model or heads
guess the target, not the text. ``recycle`` and ``lookahead`` read the target's logits too: on a widened model theirs is
what a weak target gives them, a lower bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from tests.bench.real_texts import DOMAINS, RealText, TextFile, read_texts
from tests.bench.replay import replay_with

from slipstream.app.bench.intervals import Interval, ReplyPair, TimedTokens, between, speedup
from slipstream.app.bench.prompts import evenly
from slipstream.app.bench.report import table
from slipstream.app.bench.turns import ALL, ReplyPlan, session_of, usable_drafters
from slipstream.app.engine.session import Session
from slipstream.app.engine.stats import PlainClock, ReplyStats
from slipstream.app.platform.safe_text import one_line
from slipstream.app.protocol.requests import AUTO, PLAIN, Load
from slipstream.drafters.base import Step
from slipstream.models.errors import ContextFullError, UsageError
from slipstream.models.types import repeated_share

TEXT_DRIVEN: Final = (AUTO, "lookup", "lookahead", "recycle", "retrieval", "lookup+recycle", "lookup|recycle")
"""Replayed where no drafters are named; ``auto`` chooses among those, for no draft model and no heads are loaded."""
DEFAULT_LIMIT: Final = 4  # texts of each domain
_EVERY: Final = "all of these"
_DEPTHS_SHOWN: Final = 6


@dataclass(frozen=True, slots=True)
class TextChoice:
    """Which texts are replayed."""

    folder: Path | None = None  # where they lie; None where none was named
    limit: int = DEFAULT_LIMIT  # texts of each domain, chosen evenly; 0 for all


@dataclass(frozen=True, slots=True)
class ReplayFigures:
    """One drafter on one domain."""

    domain: str  # the domain, or "all of these"
    drafter: str  # its name
    texts: int  # replies
    tokens: int  # their tokens
    repeated: float  # share of them that finish a run of four which stands earlier in the same reply
    speedup: Interval  # tokens a second over plain decoding's beside it
    tokens_per_step: float  # tokens emitted a step
    by_depth: list[float | None]  # acceptance at each depth from 1


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """What part ``replay`` found."""

    model: str
    reply: int  # most tokens of a text
    rows: list[ReplayFigures]  # a row for each domain and drafter
    files: list[dict[str, str]]  # the files that were read: name, checksum, what is said of their source
    too_long: int  # texts that do not fit the context with what was said before
    unusable: dict[str, str]  # drafters that cannot serve the model, and why


@dataclass(slots=True)
class _Cell:
    pairs: list[ReplyPair] = field(default_factory=list)
    tokens: int = 0
    steps: int = 0
    repeated: float = 0.0
    depths: list[list[int]] = field(default_factory=list)

    def figures(self, domain: str, drafter: str) -> ReplayFigures:
        return ReplayFigures(
            domain=domain,
            drafter=drafter,
            texts=len(self.pairs),
            tokens=self.tokens,
            repeated=self.repeated / self.tokens,
            speedup=speedup(self.pairs),
            tokens_per_step=self.tokens / self.steps,
            by_depth=[accepted / reached if reached else None for reached, accepted in self.depths],
        )

    def add(self, pair: ReplyPair, stats: ReplyStats, repeated: float) -> None:
        self.pairs.append(pair)
        self.tokens += stats.tokens
        self.steps += stats.whole.steps
        self.repeated += repeated * stats.tokens
        self.depths += ([0, 0] for _ in range(len(stats.by_depth) - len(self.depths)))
        for sums, (reached, accepted) in zip(self.depths, stats.by_depth, strict=False):
            sums[0] += reached
            sums[1] += accepted


def replay_texts(request: Load, plan: ReplyPlan, choice: TextChoice, tell: Callable[[str], None]) -> ReplayReport:
    """Forces texts through a target with every drafter, from plain decoding to plain decoding.

    Each text is written plainly, with each drafter, and plainly again; who comes first changes from text to text. A
    drafter keeps what it learned from the texts before, but for its own: each is replayed by it once.

    Args:
        request: Which model; its draft model and heads are left out.
        plan: Which drafters, and the most tokens of a text.
        choice: Which texts.
        tell: Called with how far it is.

    Raises:
        UsageError: If no folder is named, or it holds no texts.
        SlipstreamError: If the model cannot be loaded, or no text fits its context.
    """
    if choice.folder is None:
        raise UsageError("part replay needs texts to replay.", "Give --texts FOLDER.")
    files = read_texts(choice.folder)
    names = TEXT_DRIVEN if list(plan.names) == [ALL] else plan.names
    cells: dict[tuple[str, str], _Cell] = {}
    turns = too_long = 0
    with session_of(replace(request, draft_model=None, heads=[])) as (session, loaded):
        usable, unusable = usable_drafters(session, loaded, names)
        texts = _chosen(files, choice.limit)
        for at, text in enumerate(texts):
            shift = turns % max(1, len(usable))
            order = [PLAIN, *usable[shift:], *usable[:shift], PLAIN]
            tell(f"replay: {text.domain}, text {at + 1} of {len(texts)}")
            try:
                stats = [_played(session, name, text, plan.tokens) for name in order]
            except ContextFullError:
                too_long += 1
                continue
            turns += 1
            repeated = repeated_share(session.model.prompts.tokens_of(text.reply)[: plan.tokens])
            plain = between(_work(stats[0]), _work(stats[-1]))
            for name, found in zip(order[1:-1], stats[1:-1], strict=True):
                for domain in (text.domain, _EVERY):
                    cells.setdefault((domain, name), _Cell()).add(ReplyPair(_work(found), plain), found, repeated)
    if not cells:
        raise ContextFullError("none of the texts fits the context.", "Give other texts, or another model.")
    return ReplayReport(
        model=loaded.name,
        reply=plan.tokens,
        rows=[
            cells[domain, name].figures(domain, name)
            for domain in (*DOMAINS, _EVERY)
            for name in usable
            if (domain, name) in cells
        ],
        files=[{"name": file.name, "sha256": file.sha256, "source": file.source} for file in files],
        too_long=too_long,
        unusable=unusable,
    )


def _chosen(files: Sequence[TextFile], limit: int) -> list[RealText]:
    """So many texts of each domain, as evenly from all files as may be, one domain after the other in turn."""
    kinds = [
        evenly([text for file in files for text in file.texts if text.domain == domain], limit) for domain in DOMAINS
    ]
    return [kind[at] for at in range(max(map(len, kinds))) for kind in kinds if at < len(kind)]


def _played(session: Session, drafter: str, text: RealText, most: int) -> ReplyStats:
    prompt, reply = session.prompt(list(text.messages)), session.model.prompts.tokens_of(text.reply)[:most]
    stats = ReplyStats(PlainClock())

    def hear(step: Step, milliseconds: float) -> None:
        stats.add(step, milliseconds)

    replay_with(session, drafter, prompt, reply, hear)
    return stats


def _work(stats: ReplyStats) -> TimedTokens:
    return TimedTokens(stats.tokens, stats.seconds)


def replay_text(report: ReplayReport) -> str:
    """The table, and which texts it is of."""
    return table(
        f"replay: texts that were really written, forced through {one_line(report.model)}",
        ("text", "drafter", "texts", "tokens", "repeated", "against plain [95 %]", "tokens/step", "by depth"),
        [
            (
                row.domain,
                row.drafter,
                str(row.texts),
                str(row.tokens),
                f"{row.repeated:.0%}",
                row.speedup.text(),
                f"{row.tokens_per_step:.2f}",
                " ".join("-" if share is None else f"{share:.2f}" for share in row.by_depth[:_DEPTHS_SHOWN]) or "-",
            )
            for row in report.rows
        ],
        [
            f"At most {report.reply} tokens of a text; prompts are read before and may be copied from. Repeated: tokens"
            " that finish a run of four which stands earlier in the same text.",
            *(
                f"- {one_line(file['name'])}, sha256 {file['sha256']}: {one_line(file['source']) or 'source not named'}"
                for file in report.files
            ),
            *([f"- Texts too long for the context: {report.too_long}."] if report.too_long else []),
            *(f"- Left out: `{name}`, {reason}." for name, reason in report.unusable.items()),
        ],
    )
