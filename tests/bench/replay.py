"""Replays a known text through the real loop: drafters see the target's own logits, but the text is the script's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

from slipstream.app.engine.loop import generate
from slipstream.app.engine.session import Session
from slipstream.app.engine.stats import drafter_of
from slipstream.app.engine.stopping import FixedBudget, StopRules, WithinReply
from slipstream.drafters.accept import Over, Spreader, accept
from slipstream.drafters.autopilot import AUTO
from slipstream.drafters.autopilot.policy import Autopilot
from slipstream.drafters.base import Draft, Drafter, Step
from slipstream.models.errors import ContextFullError
from slipstream.models.llama.target import Target
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import Evaluation, Floats, History, Token


@dataclass(frozen=True, slots=True)
class Replayed:
    """One step of a replay."""

    start: int  # index of its first token in the script
    tokens: int  # tokens that it wrote
    milliseconds: float  # what it took, everything around it included
    choice: str | None  # who was chosen to draft, "none" for nobody; None where the autopilot only tried somebody


@dataclass(frozen=True, slots=True)
class Script:
    """Accepts what is written, whatever the target would say.

    It is an accept rule and its picker; a drafter that guesses the script is right, one that guesses the target may not
    be.
    """

    tokens: Sequence[Token]
    start: int  # index in the history of its first token

    def pick(self, logits: Floats, history: History, ahead: Sequence[Token] = ()) -> Token:
        """The token that is written after ``history`` and ``ahead``."""
        return self.tokens[len(history.tokens) + len(ahead) - self.start]

    def accept(self, draft: Draft, evaluation: Evaluation, sampler: Spreader, history: History, over: Over) -> Step:
        """Walks the tree along the script; the sampler is not asked."""
        return accept(draft, evaluation, self, history, over)


def replay(
    target: Target,
    drafter: Drafter,
    prompt: Sequence[Token],
    text: Sequence[Token],
    hear: Callable[[Step, float], object] = lambda _step, _milliseconds: None,
    pilot: Autopilot | None = None,
) -> list[Replayed]:
    """Writes ``text`` after ``prompt`` with a drafter, as the engine would a reply, at temperature 0.

    Args:
        prompt: What is read before.
        text: What is written.
        hear: Called after each step with the milliseconds that it took.
        pilot: The autopilot inside of the drafter, where it is one: it decides itself what pays.

    Raises:
        ContextFullError: If both do not fit the context.
    """
    n_ctx = target.abilities.n_ctx
    if len(prompt) + len(text) > n_ctx:
        raise ContextFullError(
            f"the text to replay has {len(prompt) + len(text):,} tokens, but the context holds {n_ctx:,}.",
            "Take less of it (--tokens), or another model.",
        )
    history, script = History(list(prompt)), Script(text, len(prompt))
    rules = StopRules(frozenset(), n_ctx - len(prompt), len(text), (), lambda _token: b"")
    budget = FixedBudget(rules)
    should_extend = WithinReply(rules) if pilot else budget
    target.request(drafter.needs.hidden)
    drafter.begin(history)
    target.prefill(history.tokens[:-1], lambda chunk: drafter.on_prefill(chunk.tokens, chunk.hidden))
    steps, start = list[Replayed](), 0
    before = perf_counter()
    for step in generate(
        target, drafter, Sampler(temperature=0), history, should_extend, rules, lambda: False, rule=script.accept
    ):
        now = perf_counter()
        hear(step, 1e3 * (now - before))
        choice = drafter_of(step) if not pilot else None if pilot.decision.trial else pilot.decision.drafter
        steps.append(Replayed(start, len(step.tokens), 1e3 * (now - before), choice))
        budget.add(step)
        start, before = start + len(step.tokens), now
    return steps


def replay_with(
    session: Session,
    name: str,
    prompt: Sequence[Token],
    text: Sequence[Token],
    hear: Callable[[Step, float], object] = lambda _step, _milliseconds: None,
) -> list[Replayed]:
    """The same with a loaded model and the name of a drafter."""
    drafter = session.drafters.get(name)
    return replay(session.target, drafter, prompt, text, hear, session.drafters.pilot if name == AUTO else None)
