"""Part ``acceptance``: how often each drafter is right, by depth, where it drafts at every step.

``slipstream bench`` lets a drafter draft what it is sure of, as a chat does, so its shares say how well a drafter
chooses. These say how well it guesses: its best path at every step, five levels deep, sure or not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from slipstream.app.bench.intervals import Interval, share
from slipstream.app.bench.report import table
from slipstream.app.bench.turns import ALL, ReplyPlan, conversations, session_of, usable_drafters
from slipstream.app.engine.loop import generate
from slipstream.app.engine.session import Session
from slipstream.app.engine.stopping import StopRules
from slipstream.app.protocol.requests import AUTO, PLAIN, Load, Message, Sampling
from slipstream.drafters.base import Step
from slipstream.models.types import ROOT, History, repeated_share

DEPTH: Final = 5
"""Most levels of a draft."""


@dataclass(slots=True)
class AcceptanceFigures:
    """One drafter's guesses at one temperature.

    Attributes:
        drafter: The drafter's name.
        temperature: Of the replies.
        first: Share of the first guesses that were right; None if it drafted nothing.
        depths: Of each depth, how often all guesses above it were right, and how often it was right then.
        steps: Steps of the replies.
        tokens: Tokens of the replies.
        repeated: Share of them that end a run of four tokens seen before in the reply.
    """

    drafter: str
    temperature: float
    first: Interval | None = None
    depths: list[list[int]] = field(default_factory=lambda: [[0, 0] for _ in range(DEPTH)])
    steps: int = 0
    tokens: int = 0
    repeated: float = 0.0


def best_path(step: Step) -> list[bool]:
    """Whether each guess of the draft's best path was right; it ends with the first wrong one."""
    tree, node, found = step.draft.tree, ROOT, list[bool]()
    for token in step.tokens:
        below = (at for at, parent in enumerate(tree.parents) if parent == node and at not in tree.probes)
        child = next(below, None)  # the best path comes first
        if child is None:
            break
        found.append(tree.tokens[child] == token)
        if not found[-1]:
            break
        node = child
    return found


def measure_acceptance(request: Load, plan: ReplyPlan, tell: Callable[[str], None]) -> list[AcceptanceFigures]:
    """Writes the first reply to each prompt of the plan with each drafter.

    Raises:
        SlipstreamError: If the model cannot be loaded, or a prompt does not fit.
    """
    found = []
    with session_of(request) as (session, loaded):
        wanted = [offer.name for offer in loaded.drafters] if ALL in plan.names else list(plan.names)
        names, _ = usable_drafters(session, loaded, [name for name in wanted if name not in (AUTO, PLAIN)])
        for name in names:
            for temperature in plan.temperatures:
                tell(f"acceptance: {name}, temperature {temperature:g}")
                found.append(_measure(session, name, temperature, plan))
    return found


def _measure(session: Session, drafter: str, temperature: float, plan: ReplyPlan) -> AcceptanceFigures:
    figures, firsts = AcceptanceFigures(drafter, temperature), list[tuple[int, int]]()
    repeated = 0.0
    for _, _, prompt, sampling in conversations(plan):
        if sampling.temperature == temperature:
            steps = _steps(session, drafter, prompt.messages, sampling, plan.tokens)
            before = list(figures.depths[0])
            for step in steps:
                for sums, right in zip(figures.depths, best_path(step), strict=False):
                    sums[0] += 1
                    sums[1] += right
            if of := figures.depths[0][0] - before[0]:
                firsts.append((figures.depths[0][1] - before[1], of))
            tokens = [token for step in steps for token in step.tokens]
            figures.steps += len(steps)
            figures.tokens += len(tokens)
            repeated += len(tokens) * repeated_share(tokens)
    figures.repeated = repeated / max(1, figures.tokens)
    figures.first = share(firsts) if firsts else None
    return figures


def _steps(session: Session, name: str, messages: Sequence[Message], sampling: Sampling, tokens: int) -> list[Step]:
    """Writes a reply; each draft goes to ``DEPTH`` levels."""
    target, drafter, model = session.target, session.drafters.get(name), session.model
    history = History(session.prompt(list(messages)))
    room = target.abilities.n_ctx - len(history.tokens)
    rules = StopRules(model.vocabulary.ends, room, tokens, (), model.vocabulary.piece)

    def should_extend(_probability: float, depth: int) -> bool:
        return depth <= min(DEPTH, rules.left() - 1)

    target.request(drafter.needs.hidden)
    drafter.begin(history)
    target.prefill(history.tokens[:-1], lambda chunk: drafter.on_prefill(chunk.tokens, chunk.hidden))
    write = partial(generate, target, drafter, model.sampler(sampling), history, should_extend, rules)
    return list(write(lambda: False))


def acceptance_text(found: Sequence[AcceptanceFigures]) -> str:
    """A row for each drafter and temperature."""
    rows = [
        (
            each.drafter,
            f"{each.temperature:g}",
            str(each.tokens),
            f"{each.repeated:.0%}",
            f"{each.tokens / max(1, each.steps):.2f}",
            _first(each.first),
            " ".join(f"{right / of:.2f}" if of else "-" for of, right in each.depths[1:]),
        )
        for each in found
    ]
    head = ("drafter", "T", "tokens", "repeated", "tokens/step", "depth 1 [95 %]", "further depths")
    note = f"A draft at every step, {DEPTH} levels deep: its best path; a depth counts where all above it was right."
    return table("acceptance: how often each drafter is right", head, rows, [note])


def _first(ratio: Interval | None) -> str:
    if ratio is None or ratio.low is None or ratio.high is None:
        return f"{ratio.value:.2f}" if ratio else "-"
    return f"{ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"
