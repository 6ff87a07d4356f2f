"""A plan of replies: its conversations are played turn by turn, and Ctrl-C keeps what was written until then."""

from __future__ import annotations

import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Final, Self

from slipstream.app.bench import LIMIT
from slipstream.app.bench.estimate import Estimate, about
from slipstream.app.bench.intervals import TimedTokens
from slipstream.app.bench.prompts import BenchPrompt, PromptSet
from slipstream.app.engine.load import load
from slipstream.app.engine.session import Session
from slipstream.app.protocol.events import Done, Loaded, Prefilling, Stepped
from slipstream.app.protocol.requests import Generate, Load, Message, Sampling
from slipstream.drafters.base import Plain
from slipstream.models.errors import ContextFullError, SlipstreamError, UsageError
from slipstream.models.llama.library import PassCount, process_log
from slipstream.models.types import Token

ALL: Final = "all"  # all drafters of the engine's list
_WARM_UP: Final = 16  # tokens of the first reply of each drafter


@dataclass(frozen=True, slots=True)
class ReplyPlan:
    """Replies to be written."""

    names: Sequence[str]  # drafters, or ``ALL``
    sets: Sequence[PromptSet]  # kinds of text and their prompts
    temperatures: Sequence[float] = (0.0, 0.8)
    seeds: Sequence[int] = (1,)  # each prompt gets a reply with each seed; at temperature 0 only with the first
    tokens: int = 160  # maximum tokens of a reply
    typical: float | None = None  # threshold of typical acceptance, which changes the text; None for the exact rule


@dataclass(frozen=True, slots=True)
class BenchAmounts:
    """The default amount of measurement."""

    limit: int = LIMIT  # maximum prompts of a set; 0 for all
    temperatures: tuple[float, ...] = (0.0, 0.8)
    seeds: int = 1  # number of seeds for each prompt
    reply: int = 160  # maximum tokens of a reply
    drafter_steps: int = 64  # tokens to write when measuring each drafter's memory; 0 skips that

    @staticmethod
    def brief() -> BenchAmounts:
        return BenchAmounts(limit=2, temperatures=(0.8,), reply=64, drafter_steps=0)


class Stopped(Exception):
    """Ctrl-C was pressed; the reply or part that it cut short is not counted."""


def never() -> bool:
    return False


class CtrlC:
    """Handles Ctrl-C: the first sets ``asked``, which ends the measurement; the second ends the program."""

    def __init__(self, words: str = "bench: stopping, with what was measured; Ctrl-C once more drops it") -> None:
        self.asked = False
        self._words = words
        self._before: Any = None

    def __call__(self) -> bool:
        return self.asked

    def __enter__(self) -> Self:
        """Installs the handler, if this is the main thread."""
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._interrupted)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _interrupted(self, *_: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        print(self._words, file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class BenchTurn:
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
class WrittenReply:
    """A finished reply."""

    done: Done  # its text and figures
    tokens: tuple[Token, ...]  # all of its tokens, with the end token
    passes: PassCount  # the target's and the drafter's, after the first step

    @property
    def work(self) -> TimedTokens:
        speed = self.done.speed
        return TimedTokens(speed.tokens, speed.tokens / speed.tok_per_s)


def hello(tokens: int) -> BenchTurn:
    message = Message("user", "Hello!")
    return BenchTurn(kind="", prompt=0, number=0, messages=(message,), sampling=Sampling(), tokens=tokens)


@contextmanager
def session_of(request: Load) -> Iterator[tuple[Session, Loaded]]:
    """Loads a model as the engine does, and frees it at the end.

    Drafters neither load nor save learned data, since they could learn the prompts. The autopilot may also use disabled
    drafters. The number of threads stays as chosen at load.
    """
    # llama.cpp prints its warnings unless something listens, also those of passes that are aborted on purpose
    with tempfile.TemporaryDirectory(prefix="slipstream-bench-") as derived, process_log().listening():
        fresh = replace(request, derived=derived if request.derived else None, left_out=None)
        session, loaded = load(fresh, lambda _share: None)
        session.fix_threads()
        try:
            yield session, loaded
        finally:
            session.close()


def write(
    session: Session,
    drafter: str,
    turn: BenchTurn,
    stop: Callable[[], bool] = never,
    on_step: Callable[[], None] = lambda: None,
) -> WrittenReply:
    """Writes one reply; raises ``Stopped`` if ``stop``, which is called at every step, ended it.

    Every drafter begins with the same part of the prompt in the target's cache.
    """
    session.forget(turn.messages)
    tokens: list[Token] = []
    passes = process_log().passes
    before = copy(passes)

    def emit(event: Prefilling | Stepped) -> None:
        nonlocal before
        if isinstance(event, Stepped):
            before = before if tokens else copy(passes)
            tokens.extend(event.tokens)
            on_step()

    request = Generate(1, list(turn.messages), turn.sampling, drafter, max_tokens=turn.tokens)
    done = session.reply(request, emit, stop)
    if done.reason == "cancelled":
        raise Stopped
    return WrittenReply(done, tuple(tokens), passes.since(before))


def conversations(plan: ReplyPlan) -> list[tuple[str, int, BenchPrompt, Sampling]]:
    """The conversations of a plan, in order: kind of text, index of the prompt, the prompt, and the sampling."""
    return [
        (kind.name, at, prompt, Sampling(temperature=temperature, seed=seed, typical=plan.typical))
        for seed, temperature, kind in product(plan.seeds, plan.temperatures, plan.sets)
        for at, prompt in enumerate(kind.prompts)
        if temperature or seed == plan.seeds[0]  # every seed gives the same reply, which some drafters would remember
    ]


def play(
    plan: ReplyPlan,
    context: int,
    tell: Callable[[str], None],
    estimate: Estimate,
    reply: Callable[[BenchTurn], WrittenReply],
) -> dict[str, tuple[int, int]]:
    """Plays all turns of every conversation, once for each seed and temperature.

    Each turn follows plain decoding's reply to the turn before, which ``reply`` returns, so that all drafters get the
    same prompt. Returns for each kind of text the number of prompts with replies, and of those with a turn that does
    not fit the context; that turn and those after it are left out.
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
                plain = reply(BenchTurn(kind, at, number, prompt.messages, sampling=sampling, tokens=plan.tokens))
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
    warmed: Callable[[str, WrittenReply], None] = lambda _name, _written: None,
) -> tuple[list[str], dict[str, str]]:
    """Finds the drafters that work with the model, and warms them up with a short reply, which ``warmed`` gets.

    Returns the usable drafters without plain decoding, and the reasons why the others are not usable.
    """
    known = {offer.name: offer.why_not for offer in loaded.drafters}
    warmed(Plain.name, write(session, Plain.name, hello(_WARM_UP)))
    usable, unusable = list[str](), dict[str, str]()
    for name in dict.fromkeys(one for given in names for one in (known if given == ALL else [given])):
        reason = known.get(name, "")
        if not reason:
            try:
                warmed(name, write(session, name, hello(_WARM_UP)))  # creates it, and maps its memory
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
