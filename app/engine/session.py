"""One loaded target, its drafters, and the replies they write. It knows no pipes and no screen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from time import perf_counter
from typing import Final

from slipstream.app.engine.autopilot import Autopilot
from slipstream.app.engine.budget import FixedBudget, Room
from slipstream.app.engine.flight_log import FlightLog
from slipstream.app.engine.keeper import Keeper
from slipstream.app.engine.loop import generate
from slipstream.app.engine.past_chats import PastChats
from slipstream.app.engine.preparing import Reader
from slipstream.app.engine.prompt import PromptBuilder
from slipstream.app.engine.protocol import Counted, Done, Piece, Prefilling, Stepped
from slipstream.app.engine.requests import AUTO, Generate, Message, Prepare
from slipstream.app.engine.rules import Rules
from slipstream.app.engine.stats import PlainClock, ReplyStats, drafter_of, origins
from slipstream.app.engine.text import TextStream, Vocabulary, reusable
from slipstream.app.engine.thinking import Thinking
from slipstream.app.engine.threads import Threads
from slipstream.app.engine.watching import Lookout
from slipstream.drafters import registry
from slipstream.drafters.accept import accept_rule
from slipstream.drafters.base import Drafter, Step
from slipstream.drafters.none import Plain
from slipstream.drafters.parts import Parts
from slipstream.models.errors import SlipstreamError
from slipstream.models.runtime.target import Target
from slipstream.models.sampling import Sampler
from slipstream.models.types import History, Token, shared_prefix

_SAY_EVERY: Final = 8
"""Steps between two reasons: a sentence takes 3 us to make, and longer to read."""


class Session:
    """Replies to chats with one target.

    The target's cache is the session's: the next turn of a chat reads only what is new, and an edited or shortened chat
    goes back to what both have in common.
    """

    def __init__(
        self,
        target: Target,
        vocabulary: Vocabulary,
        prompts: PromptBuilder,
        parts: Parts,
        plain: PlainClock,
        threads: Threads | None,
        keeper: Keeper,
        opened: ExitStack,
        log: FlightLog,
        past_chats: PastChats | None = None,
        left_out: Callable[[], frozenset[str]] = frozenset,
    ) -> None:
        """Takes over a target.

        Args:
            target: The model; this session owns it from now on.
            vocabulary: Its vocabulary.
            prompts: Makes its prompts.
            parts: What its drafters are made of.
            plain: Clock of plain decoding.
            threads: Chooses the number of threads; None where it is fixed.
            keeper: Keeps the target's cache in files.
            opened: Closes everything above.
            log: Keeps what the autopilot learns.
            past_chats: Keeps the index of text in step with the chats; None where they are not indexed.
            left_out: Says which drafters the autopilot leaves out now.
        """
        self._target, self._vocabulary, self._prompts = target, vocabulary, prompts
        self._parts, self._plain, self._threads = parts, plain, threads
        self._keeper, self._opened, self._log, self._past_chats = keeper, opened, log, past_chats
        self._reader = Reader(target, keeper)
        self._drafters: dict[str, Drafter] = {}
        self._left_out, self._left_out_before = left_out, frozenset[str]()

    @property
    def target(self) -> Target:
        """The model that decides; between replies, others may use it too."""
        return self._target

    @property
    def vocabulary(self) -> Vocabulary:
        """Its vocabulary."""
        return self._vocabulary

    @property
    def prompts(self) -> PromptBuilder:
        """Makes its prompts."""
        return self._prompts

    def reply(
        self,
        request: Generate,
        emit: Callable[[Prefilling | Stepped], None],
        cancelled: Callable[[], bool],
        watched: Callable[[], bool] = lambda: False,
    ) -> Done:
        """Writes one reply.

        Args:
            request: What is asked.
            emit: Hears how far the prompt is read, and every step.
            cancelled: Asked between chunks and steps; what was written until then stays.
            watched: Whether somebody looks at the drafts; asked at every step.

        Returns:
            How it ended.

        Raises:
            SlipstreamError: If the request cannot be served; the session lives on.
        """
        asked = perf_counter()
        drafter = self.drafter(request.drafter)
        settings = asdict(request.sampling)
        rule = accept_rule(settings.pop("typical"), request.sampling.temperature)
        sampler = Sampler(**settings)
        target, n_ctx = self._target, self._target.abilities.n_ctx
        prompt = self._prompts.build(request.messages, n_ctx)
        history = History(prompt.tokens, prompt.trimmed)
        size = len(history.tokens)
        vocabulary = self._vocabulary
        rules = Rules(vocabulary.ends, n_ctx - size, request.max_tokens, request.stop, vocabulary.piece)

        def heard(done: int) -> None:
            emit(Prefilling(request.request, done, size - 1))

        prefill = self._reader.read(prompt, history, drafter, request.state, heard, cancelled)
        if self._threads:
            self._threads.begin()
        stats, stream, budget = ReplyStats(self._plain), TextStream(request.stop), FixedBudget(rules)
        lookout, mind = Lookout(watched, vocabulary, stats), Thinking.after(request.messages, prompt.thinks)
        pilot = drafter if isinstance(drafter, Autopilot) else None
        worth = Room(rules) if pilot else budget
        first_token_ms = 0.0
        before = perf_counter()
        if prefill.complete:
            for step in generate(target, drafter, sampler, history, worth, rules, cancelled, rule):
                now = perf_counter()
                first_token_ms = first_token_ms or 1e3 * (now - asked)
                milliseconds, before = 1e3 * (now - before), now
                stats.hear(step, milliseconds)
                budget.step += 1
                if self._threads:
                    self._threads.hear(step)
                pieces = self._pieces(step, stream)
                if mind.hears(pieces):
                    stats.think()
                depth, accepted = step.draft.tree.depth, len(step.path)
                report = Stepped(
                    request.request,
                    pieces,
                    list(step.tokens),
                    drafter_of(step),
                    depth,
                    accepted,
                    milliseconds,
                    stats.speed(),
                    pilot.choice.expected if pilot else 0.0,
                    str(pilot.choice) if pilot and budget.step % _SAY_EVERY == 1 else "",
                    lookout.tell(step, milliseconds),
                )
                emit(report)
        rest = stream.finish(stopped=not rules.reason)
        if rest:
            emit(Stepped(request.request, rest, [], "none", 0, 0, 0.0, stats.speed()))
        return Done(
            request=request.request,
            reason=rules.reason or "cancelled",
            text=stream.text,
            tokens=reusable(history.tokens[size:], stream.text, vocabulary),
            prompt_tokens=size,
            prefilled_tokens=(size if prefill.complete else prefill.reused + prefill.decoded) - prefill.reused,
            dropped_messages=prompt.dropped,
            ttft_ms=first_token_ms,
            speed=stats.speed(),
            by_depth=stats.by_depth,
            by_drafter={name: asdict(count) for name, count in stats.by_drafter.items()},
            drafter_depths=stats.drafter_depths,
            phases=stats.phase_ms(),
            exact=request.sampling.typical is None,
            auto={name: asdict(tally) for name, tally in pilot.books.tallies.items()} if pilot else {},
            dropped_tokens=prompt.trimmed,
        )

    def prepare(
        self,
        request: Prepare,
        waiting: Callable[[], bool],
        cancelled: Callable[[], bool],
        counted: Callable[[Counted], None] = lambda _: None,
    ) -> None:
        """Reads the beginning of a prompt that is still being typed, so that its reply begins sooner.

        The reply reads what is missing, and rewinds what has changed. A cache that cannot be rewound is not written
        on, only replaced: else another reply to the question before would have to read all of it again.

        Args:
            request: What is typed so far.
            waiting: Whether something else is asked, see ``Reader.read_ahead``.
            cancelled: Whether to leave at once.
            counted: Hears what it takes of the context, before anything is read.

        Raises:
            SlipstreamError: If the reply could not be written either.
        """
        drafter, abilities, cached = self.drafter(request.drafter), self._target.abilities, self._target.tokens
        prompt = self._prompts.beginning(request.messages, abilities.n_ctx, typed=abilities.rewinds)
        counted(Counted(request.request, prompt.size, prompt.dropped, prompt.trimmed))
        grows = cached and shared_prefix(cached, prompt.tokens) == len(cached)
        if request.read and prompt.tokens and not waiting() and (abilities.rewinds or not grows):
            self._reader.read_ahead(prompt, drafter, request.state, waiting, cancelled)

    def drafter(self, name: str, on_progress: Callable[[float], None] = lambda _share: None) -> Drafter:
        """Finds or makes a drafter.

        Args:
            name: Its name.
            on_progress: Hears how far it is, 0 to 1: the autopilot measures the machine when it first meets a model.

        Raises:
            UsageError: If it is unknown or cannot serve this target.
        """
        if name == AUTO:
            self._heed_left_out()
        if name not in self._drafters:
            made = self._autopilot(on_progress) if name == AUTO else registry.make(name, self._parts)
            self._drafters[name] = made
        return self._drafters[name]

    def _heed_left_out(self) -> None:
        """Drops an autopilot whose drafters are no longer those that its owner wants; the next knows what it knew."""
        now = self._left_out()
        pilot = self._drafters.pop(AUTO, None) if now != self._left_out_before else None
        if isinstance(pilot, Autopilot):
            self._log.keep(pilot)
            pilot.close()
        self._left_out_before = now

    def _autopilot(self, on_progress: Callable[[float], None]) -> Autopilot:
        plain_ms = self._plain.milliseconds
        assert plain_ms is not None  # loading has measured it
        wanted = [name for name in registry.METHODS if name != Plain.name and name not in self._left_out_before]
        usable = [name for name in wanted if not registry.why_not(name, self._parts)]
        drafters = {name: registry.make(name, self._parts) for name in usable}
        return self._log.autopilot(drafters, self._target, plain_ms, on_progress)

    def prompt(self, messages: Sequence[Message]) -> list[Token]:
        """The tokens that a reply to a chat begins after.

        Raises:
            SlipstreamError: If there is nothing to answer, or it does not fit the context.
        """
        return self._prompts.build(messages, self._target.abilities.n_ctx).tokens

    def forget(self) -> None:
        """Empties the cache, so that the next prompt is read from its start."""
        self._target.rewind(0)

    def settle(self) -> None:
        """Keeps the number of threads as it is from now on: what is measured side by side must not differ in it."""
        self._threads = None

    def idle(self) -> bool:
        """Does a little of what can wait while nothing is asked; says whether there is more of it."""
        if self._keeper.due() == 0.0:
            self._keeper.keep()
        with suppress(SlipstreamError):  # costs speed, and is tried again after the next reply
            return self._past_chats is not None and self._past_chats.catch_up()
        return False

    def due(self) -> float | None:
        """Seconds after which ``idle`` has something to do though nothing was asked; None for never."""
        return self._keeper.due()

    def close(self) -> None:
        """Frees the drafters, then the models."""
        for drafter in self._drafters.values():
            if isinstance(drafter, Autopilot):
                self._log.keep(drafter)
            drafter.close()
        self.idle()
        self._keeper.close()
        self._opened.close()

    def _pieces(self, step: Step, stream: TextStream) -> list[Piece]:
        pieces: list[Piece] = []
        for token, (origin, source) in zip(step.tokens, origins(step), strict=True):
            pieces += stream.feed(self._vocabulary.piece(token), origin, source)
        return pieces
