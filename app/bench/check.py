"""``bench --check``: compares replies with plain decoding's; where they differ, tests whether rounding explains it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from slipstream.app.bench.estimate import Estimate
from slipstream.app.bench.report import STOPPED, table
from slipstream.app.bench.turns import (
    BenchTurn,
    ReplyPlan,
    WrittenReply,
    never,
    play,
    session_of,
    usable_drafters,
    write,
)
from slipstream.app.engine.exactness import SAME_TEXT
from slipstream.app.engine.loop import generate
from slipstream.app.engine.session import Session
from slipstream.app.engine.stopping import StopRules
from slipstream.app.platform.safe_text import one_line
from slipstream.app.protocol.requests import Load
from slipstream.drafters.base import Plain
from slipstream.models.errors import UsageError
from slipstream.models.llama.target import Target
from slipstream.models.sampling.sampler import Sampler, gumbel
from slipstream.models.types import Floats, History, Token, TokenTree, shared_prefix

_WIDTHS: Final = (2, 3, 5, 9, 17)  # rows of the passes in which a row is computed again
_REREAD: Final = 64  # tokens before it that are passed again, in rows of other numbers
_BEST: Final = 64  # best logits of a row whose changes count: no sampler draws a token far below them
_FEW: Final = 2  # a near tie may turn over by so many times the changes that were seen: few passes show them
_SHOWN: Final = 12  # findings in full; all of them are in the JSON


@dataclass(frozen=True, slots=True)
class Difference:
    """The first token at which a reply differs from plain decoding's."""

    index: int  # index of the token in the reply, from 0
    plain: Token | None  # plain decoding's token; None if its reply has ended
    drafted: Token | None  # the other reply's token; None if it has ended
    again: Token | None  # the token of a second run of plain decoding; differs from ``plain`` if runs do not repeat
    gap: float | None  # lead of the best noisy score over the second, in logits; None if only one token can be drawn
    near_tie: bool  # whether logits within ``_FEW`` times the rounding can give either token
    rounding: float = 0.0  # greatest change of one of the row's best logits in passes of other rows


def explain(session: Session, turn: BenchTurn, plain: Sequence[Token], drafted: Sequence[Token]) -> Difference:
    """Decodes plainly up to the first difference, and examines the target's scores there.

    The row's rounding is measured by passes without any drafter, so that a drafter's fault cannot explain itself.
    """
    index = shared_prefix(plain, drafted)
    ours, theirs = _token_at(plain, index), _token_at(drafted, index)
    if ours is None or theirs is None:  # the same tokens, but one reply is longer: no score explains that
        return Difference(index=index, plain=ours, drafted=theirs, again=ours, gap=None, near_tie=False)
    settings = turn.sampling.drawing()
    sampler = Sampler(**settings)
    history, row, again = _replay_to(session, turn, index, sampler, plain)
    gap = noisy_gap(sampler, row, history)
    rounding = row_rounding(session.target, history.tokens, row)
    tie = near_tie(sampler, row, history, (ours, theirs), _FEW * rounding)
    return Difference(index=index, plain=ours, drafted=theirs, again=again, gap=gap, near_tie=tie, rounding=rounding)


def row_rounding(target: Target, tokens: Sequence[Token], row: Floats) -> float:
    """The greatest change of one of the best logits of the row after ``tokens``, whose cells the target holds.

    The row is computed again as the last and as the first of several rows, after cells that were filled by passes of
    several rows, and after a prompt that is read again.
    """
    best, last, changes = np.argsort(row)[-_BEST:], len(tokens) - 1, [0.0]
    widths = [width for width in _WIDTHS if width <= min(target.abilities.max_rows, last)]

    def evaluated(at: int, others: Sequence[Token]) -> Floats:
        target.rewind(at)
        rows = target.evaluate(tokens[at], TokenTree.chain(tuple(others))).logits
        target.keep(tuple(range(len(others))))
        return rows

    def compare(logits: Floats) -> None:
        changes.append(float(np.abs(logits[best] - row[best]).max()))

    target.rewind(last)
    for width in widths:
        compare(evaluated(last - width + 1, tokens[last - width + 2 :])[-1])
        if last + width <= target.abilities.n_ctx:
            compare(evaluated(last, tokens[: width - 1])[0])
    for width in widths:
        for at in range(max(0, last - _REREAD), last, width):
            evaluated(at, tokens[at + 1 : min(at + width, last)])
        compare(evaluated(last, ())[0])
    for at in (0, last // 2):
        target.rewind(at)
        target.prefill(tokens[:last])
        compare(evaluated(last, ())[0])
    return max(changes)


def noisy_gap(sampler: Sampler, row: Floats, history: History) -> float | None:
    """The lead of the best noisy score over the second, in logits; None if only one token can be drawn."""
    if sampler.temperature == 0:
        _, shares = sampler.rank(row, history, (), 2)
        return math.log(shares[0] / shares[1]) if len(shares) == 2 and shares[1] > 0 else None
    ids, probs = sampler.distribution(row, history)
    if len(ids) < 2:
        return None
    scores = np.sort(np.log(probs) + gumbel(sampler.seed, history.position, ids))
    return float(scores[-1] - scores[-2]) * sampler.temperature


def near_tie(sampler: Sampler, row: Floats, history: History, tokens: Sequence[Token], tolerance: float) -> bool:
    """Whether logits within ``tolerance`` of the row's can give each of the tokens.

    A token passes if it is drawn from the row itself, from the row with the token's logit raised against all others
    (which may lift it past a truncation), or from the row with its logit raised and the winner's lowered (which may
    drop the winner below a truncation).
    """
    winner = sampler.pick(row, history)
    for token in tokens:
        raised, swapped = row.copy(), row.copy()
        raised[token] += np.float32(2 * tolerance)  # as +tolerance here and -tolerance elsewhere
        swapped[token] += np.float32(tolerance)
        swapped[winner] -= np.float32(tolerance)
        if token != winner and token not in (sampler.pick(raised, history), sampler.pick(swapped, history)):
            return False
    return True


def _replay_to(
    session: Session, turn: BenchTurn, index: int, sampler: Sampler, plain: Sequence[Token]
) -> tuple[History, Floats, Token]:
    """Decodes the reply plainly again; returns the history before token ``index``, its logits, and the token drawn.

    The history holds the tokens of the first run, even if this run draws others.
    """
    target, prompt = session.target, session.model.prompts.build(turn.messages, session.target.abilities.n_ctx)
    history = History(list(prompt.tokens), prompt.trimmed)
    target.request(frozenset())
    target.prefill(history.tokens[:-1])
    rules = StopRules(frozenset(), target.abilities.n_ctx - len(history.tokens), 0, (), lambda _token: b"")
    steps = generate(target, Plain(), sampler, history, should_extend=lambda *_: False, rules=rules, cancelled=never)
    for at, step in enumerate(steps):
        if at == index:
            row = step.evaluation.logits[0].copy()
            before = History(history.tokens[:-1], prompt.trimmed)
            return before, row, step.tokens[0]
        history.tokens[-1] = plain[at]
    raise AssertionError("the reply fitted the context when it was written")


def _token_at(tokens: Sequence[Token], index: int) -> Token | None:
    return tokens[index] if index < len(tokens) else None


@dataclass(frozen=True, slots=True)
class Finding:
    """A reply that differs from plain decoding's."""

    drafter: str
    place: str  # the prompt, turn, temperature and seed, in words
    difference: Difference  # the first difference, and the target's scores there


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The result of the check."""

    model: str
    promise: str  # the promise about equal texts that was made at load
    compared: dict[str, int]  # number of compared replies of each drafter
    unusable: dict[str, str]  # drafters that cannot serve the model, and why
    tolerance: float = 0.0  # greatest change of a logit that makes a difference a near-tie; each row has its own
    # number of equal tokens of each drafter, up to the first difference of each reply
    tokens: dict[str, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)  # replies that differ
    # prompts of each kind of text with a turn that does not fit the context
    too_long: dict[str, int] = field(default_factory=dict)
    stopped: bool = False  # whether it was stopped before its end

    @property
    def wrong(self) -> list[Finding]:
        return [finding for finding in self.findings if not finding.difference.near_tie]

    @property
    def passed(self) -> bool:
        return not (self.findings if self.promise == SAME_TEXT else self.wrong)


def check_drafters(
    request: Load, plan: ReplyPlan, tell: Callable[[str], None], stop: Callable[[], bool] = never
) -> CheckReport:
    """Loads a model and compares every reply of every drafter with plain decoding's, until ``stop`` is true."""
    with session_of(request) as (session, loaded):
        usable, unusable = usable_drafters(session, loaded, plan.names)
        if not usable:
            raise UsageError("only plain decoding was chosen: nothing to compare it with.", "Name other drafters.")
        report = CheckReport(loaded.title, loaded.promise, dict.fromkeys(usable, 0), unusable)
        return audit(session, report, plan, loaded.n_ctx, tell=tell, stop=stop)


def audit(
    session: Session,
    report: CheckReport,
    plan: ReplyPlan,
    context: int,
    tell: Callable[[str], None],
    stop: Callable[[], bool] = never,
) -> CheckReport:
    """Compares every reply of the drafters in ``report.compared``; returns the report with the results."""
    compared, tokens, findings = dict(report.compared), dict.fromkeys(report.compared, 0), list[Finding]()
    estimate = Estimate([Plain.name, *compared], plan.tokens)

    def timed(name: str, turn: BenchTurn) -> WrittenReply:
        estimate.reply(name)
        written = write(session, name, turn, stop)
        estimate.end(len(written.tokens))
        return written

    def reply(turn: BenchTurn) -> WrittenReply:
        plain = timed(Plain.name, turn)
        for name in compared:
            drafted = timed(name, turn)
            alike = shared_prefix(plain.tokens, drafted.tokens)
            compared[name] += 1
            tokens[name] += alike
            if drafted.tokens != plain.tokens:
                difference = explain(session, turn, plain.tokens, drafted.tokens)
                findings.append(Finding(name, turn.place, difference))
                tell(f"check: {name} differs: {turn.place}, token {alike + 1}")
        return plain

    counts = play(plan, context, lambda line: tell(f"check: {line}"), estimate, reply)
    return replace(
        report,
        compared=compared,
        tokens=tokens,
        findings=findings,
        tolerance=max((_FEW * finding.difference.rounding for finding in findings), default=0.0),
        too_long={name: long for name, (_, long) in counts.items()},
        stopped=stop(),
    )


def check_text(report: CheckReport) -> str:
    rows, ties = [], [finding for finding in report.findings if finding.difference.near_tie]
    for name, replies in report.compared.items():
        differ = [finding for finding in report.findings if finding.drafter == name]
        near = sum(finding.difference.near_tie for finding in differ)
        equal, tokens = str(replies - len(differ)), f"{report.tokens[name]:,}"
        rows.append((name, str(replies), equal, tokens, str(near), str(len(differ) - near)))
    notes = [
        *([STOPPED] if report.stopped else []),
        _verdict(report),
        *(f"- {_line(finding)}" for finding in [*report.wrong, *ties][:_SHOWN]),
        *([f"- and {len(report.findings) - _SHOWN} more (--json)."] if len(report.findings) > _SHOWN else []),
        *(
            f"- Prompts of {name} too long for the context: {found}."
            for name, found in report.too_long.items()
            if found
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
        f"Passed: {len(report.findings)} replies differ, each at a near-tie: the row's own rounding"
        f" turns one draw into the other (promised: {report.promise})."
    )


def _line(finding: Finding) -> str:
    difference = finding.difference
    if difference.plain is None or difference.drafted is None:
        return f"`{finding.drafter}`, {finding.place}: one reply ends after {difference.index} tokens: WRONG."
    gap = "only one could be drawn" if difference.gap is None else f"the two best are {difference.gap:.3g} logits apart"
    gap += f", logits move by up to {difference.rounding:.2g}"
    unstable = "" if difference.again == difference.plain else f"; run again, plain decoding has {difference.again}"
    return (
        f"`{finding.drafter}`, {finding.place}: token {difference.index + 1} is {difference.drafted} in place of"
        f" {difference.plain} ({gap}: {'a near-tie' if difference.near_tie else 'WRONG'}{unstable})."
    )
