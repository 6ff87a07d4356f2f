"""Plays the conversations of a plan, turn by turn, and writes their replies."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from typing import Final

from slipstream.app.bench.estimate import Estimate, about
from slipstream.app.bench.intervals import Work
from slipstream.app.bench.plan import ALL, Plan
from slipstream.app.bench.prompts import Prompt
from slipstream.app.bench.stopping import Stopped, never
from slipstream.app.engine.load import load
from slipstream.app.engine.session import Session
from slipstream.app.protocol.events import Done, Loaded, Prefilling, Stepped
from slipstream.app.protocol.requests import Generate, Load, Message, Sampling
from slipstream.drafters.none import Plain
from slipstream.models.errors import ContextFullError, SlipstreamError, UsageError
from slipstream.models.types import Token


@dataclass(frozen=True, slots=True)
class Turn:
    """A reply that every drafter is to write."""

    kind: str
    prompt: int  # index of the prompt
    number: int  # index of the turn in the conversation
    messages: tuple[Message, ...]  # the conversation so far
    sampling: Sampling
    tokens: int  # maximum tokens of the reply

    @property
    def place(self) -> str:
        turn = f", turn {self.number + 1}" if self.number else ""
        return (
            f"{self.kind}, prompt {self.prompt + 1}{turn}, temperature {self.sampling.temperature:g},"
            f" seed {self.sampling.seed}"
        )


@dataclass(frozen=True, slots=True)
class Written:
    """A finished reply."""

    done: Done  # its text and figures
    tokens: tuple[Token, ...]  # all of its tokens, with the end token

    @property
    def work(self) -> Work:
        """Its tokens, and the seconds of its steps."""
        speed = self.done.speed
        return Work(speed.tokens, speed.tokens / speed.tok_per_s)


_WARM_UP: Final = Turn("", 0, 0, (Message("user", "Hello!"),), Sampling(), 16)


@contextmanager
def session_of(request: Load) -> Iterator[tuple[Session, Loaded]]:
    """Loads a model as the engine does, and frees it at the end.

    Drafters neither load nor save learned data, since they could learn the prompts. The autopilot may also use disabled
    drafters. The number of threads stays as chosen at load.
    """
    with tempfile.TemporaryDirectory(prefix="slipstream-bench-") as derived:
        fresh = replace(request, derived=derived if request.derived else None, left_out=None)
        session, loaded = load(fresh, lambda _share: None)
        session.fix_threads()
        try:
            yield session, loaded
        finally:
            session.close()


def unheard(_: int) -> None:
    """Ignores a count."""


def write(
    session: Session,
    drafter: str,
    turn: Turn,
    stop: Callable[[], bool] = never,
    on_tokens: Callable[[int], None] = unheard,
) -> Written:
    """Writes one reply.

    Args:
        stop: Called at every step; True ends the reply.
        on_tokens: Called after each step with the number of tokens so far.

    Raises:
        SlipstreamError: If it cannot be written, for example because the prompt does not fit.
        Stopped: If ``stop`` ended it.
    """
    tokens: list[Token] = []

    def emit(event: Prefilling | Stepped) -> None:
        if isinstance(event, Stepped):
            tokens.extend(event.tokens)
            on_tokens(len(tokens))

    request = Generate(1, list(turn.messages), turn.sampling, drafter, max_tokens=turn.tokens)
    done = session.reply(request, emit, stop)
    if done.reason == "cancelled":
        raise Stopped
    return Written(done, tuple(tokens))


def conversations(plan: Plan) -> list[tuple[str, int, Prompt, Sampling]]:
    """The conversations of a plan, in order: kind of text, index of the prompt, the prompt, and the sampling."""
    return [
        (kind.name, at, prompt, Sampling(temperature=temperature, seed=seed, typical=plan.typical))
        for seed, temperature, kind in product(plan.seeds, plan.temperatures, plan.sets)
        for at, prompt in enumerate(kind.prompts)
        if temperature or seed == plan.seeds[0]  # every seed gives the same reply, which some drafters would remember
    ]


def play(
    plan: Plan, context: int, tell: Callable[[str], None], estimate: Estimate, reply: Callable[[Turn], Written]
) -> dict[str, tuple[int, int]]:
    """Plays all turns of every conversation, once for each seed and temperature.

    Each turn follows plain decoding's reply to the turn before, so that all drafters get the same prompt.

    Args:
        context: Size of the model's context in tokens, for the error.
        estimate: Predicts the time left; updated at each conversation.
        reply: Writes a turn with every drafter and returns plain decoding's reply.

    Returns:
        For each kind of text: the number of prompts with replies, and the number of prompts with a turn that does not
        fit the context; that turn and those after it are left out.

    Raises:
        ContextFullError: If no prompt fits.
        Stopped: If ``reply`` was stopped before the first turn was written.
    """
    replied: dict[str, set[int]] = {kind.name: set() for kind in plan.sets}
    too_long: dict[str, set[int]] = {kind.name: set() for kind in plan.sets}
    rounds = conversations(plan)
    for count, (kind, at, prompt, sampling) in enumerate(rounds):
        estimate.begin(kind, prompt.turns, [(each[0], each[2].turns) for each in rounds[count + 1 :]])
        left = estimate.left()
        time = "" if left is None else f", {about(left)} left"
        place = f"{kind}, temperature {sampling.temperature:g}, seed {sampling.seed}"
        tell(f"{place} ({count + 1} of {len(rounds)}{time})")
        try:
            for number in range(prompt.turns):
                plain = reply(Turn(kind, at, number, prompt.messages, sampling, plan.tokens))
                replied[kind].add(at)
                if prompt.later:
                    prompt = prompt.after(Message("assistant", plain.done.text, plain.done.tokens))
        except ContextFullError as error:
            tell(f"{kind}, prompt {at + 1}, turn {number + 1} is left out: {error.title}")
            too_long[kind].add(at)
        except Stopped:
            if not any(replied.values()):
                raise
            break
    if not any(replied.values()):
        raise ContextFullError(
            f"none of the prompts fits the context of {context:,} tokens.", "Give shorter ones, or another model."
        )
    return {name: (len(replied[name]), len(too_long[name])) for name in replied}


def usable_drafters(
    session: Session,
    loaded: Loaded,
    names: Sequence[str],
    warmed: Callable[[str, Written], None] = lambda _name, _written: None,
) -> tuple[list[str], dict[str, str]]:
    """Finds the drafters that work with the model, and warms them up with a short reply.

    Args:
        names: Wanted drafters; ``ALL`` means the engine's list.
        warmed: Called with each short reply, plain decoding's first.

    Returns:
        The usable drafters without plain decoding, and the reasons why the others are not usable.

    Raises:
        UsageError: If none of the wanted drafters works.
    """
    known = {offer.name: offer.why_not for offer in loaded.drafters}
    warmed(Plain.name, write(session, Plain.name, _WARM_UP))
    usable, unusable = list[str](), dict[str, str]()
    for name in dict.fromkeys(one for given in names for one in (known if given == ALL else [given])):
        reason = known.get(name, "")
        if not reason:
            try:
                warmed(name, write(session, name, _WARM_UP))  # creates it, and maps its memory
            except SlipstreamError as error:  # a damaged file of heads, or an unusable part of a combination
                reason = error.title.rstrip(".")
        if reason:
            unusable[name] = reason
        elif name != Plain.name:
            usable.append(name)
    if unusable and not usable:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in unusable.items())
        raise UsageError(f"no drafter that was asked for works with this model: {reasons}.", "Try --drafters all.")
    return usable, unusable
