"""One loaded model, its drafters, and the replies that they write; independent of pipes and screens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from functools import partial
from time import perf_counter
from typing import Final

from slipstream.app.chats.reasoning import Thinking
from slipstream.app.engine.budget import FixedBudget, Room
from slipstream.app.engine.draft_trace import DraftTrace
from slipstream.app.engine.drafter_list import Drafters
from slipstream.app.engine.kv_cache_store import KvCacheStore
from slipstream.app.engine.loop import generate
from slipstream.app.engine.past_chats import PastChats
from slipstream.app.engine.prefill import PromptReader
from slipstream.app.engine.prompt import Prompt, PromptBuilder
from slipstream.app.engine.stats import PlainClock, ReplyStats, drafter_of, origins
from slipstream.app.engine.stopping import Rules
from slipstream.app.engine.text import TextStream, Vocabulary, reusable
from slipstream.app.engine.tune import Threads
from slipstream.app.protocol import (
    AUTO,
    PLAIN,
    Counted,
    Divided,
    Done,
    Generate,
    Message,
    Piece,
    Prefilling,
    Prepare,
    Stepped,
)
from slipstream.drafters.accept import accept_rule
from slipstream.drafters.autopilot.policy import Autopilot
from slipstream.drafters.base import Step
from slipstream.models.errors import SlipstreamError
from slipstream.models.llama.target import Target
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import History, Token, shared_prefix

_EXPLAIN_EVERY: Final = 8
"""Steps between two reasons of the autopilot: a sentence takes 3 us to make, and longer to read."""


@dataclass(slots=True)
class ChatModel:
    """A model that can chat.

    Attributes:
        target: The model; between replies, others may use it too.
        vocabulary: Its vocabulary.
        prompts: Makes its prompts.
        plain: The clock of plain decoding.
        threads: Chooses the number of threads; None where it is fixed.
    """

    target: Target
    vocabulary: Vocabulary
    prompts: PromptBuilder
    plain: PlainClock
    threads: Threads | None = None


class Session:
    """Replies to chats with one model.

    The target's cache is the session's: the next turn of a chat reads only what is new, and an edited or shortened chat
    goes back to what both have in common.

    Attributes:
        model: The model.
        drafters: Its drafters.
    """

    def __init__(
        self,
        model: ChatModel,
        drafters: Drafters,
        kept: KvCacheStore,
        past_chats: PastChats | None = None,
        opened: ExitStack | None = None,
    ) -> None:
        """Takes over a model.

        Args:
            model: The model.
            drafters: Its drafters.
            kept: Keeps the target's cache in files.
            past_chats: Keeps the index of text in step with the chats; None where they are not indexed.
            opened: Closes the model, after everything else.
        """
        self.model, self.drafters = model, drafters
        self._kept, self._past_chats, self._opened = kept, past_chats, opened or ExitStack()
        self._reader = PromptReader(model.target, kept)

    @property
    def target(self) -> Target:
        """The model's target."""
        return self.model.target

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
            emit: Called with the progress of the prompt, and with every step.
            cancelled: Called between chunks and steps; True ends the reply, and what was written until then stays.
            watched: Whether steps are to carry their drafts; called at every step.

        Returns:
            How it ended.

        Raises:
            SlipstreamError: If the request cannot be served; the session lives on.
        """
        model, target = self.model, self.target
        drafter = self.drafters.get(request.drafter)
        settings = asdict(request.sampling)
        rule = accept_rule(settings.pop("typical"), request.sampling.temperature)
        sampler = Sampler(**settings)
        make = partial(model.prompts.build, request.messages, target.abilities.n_ctx)
        prompt = model.prompts.unless(cancelled, _size(request.messages), make)
        if prompt is None:
            speed = ReplyStats(model.plain).speed()
            return Done(request.request, "cancelled", "", [], 0, 0, 0, 0.0, speed)
        pilot = self.drafters.pilot if request.drafter == AUTO and not drafter.failed else None
        written = _Written(request, model, prompt, watched, pilot)
        history = History([*prompt.tokens, *request.begun], prompt.trimmed)

        def chunk_read(done: int) -> None:
            emit(Prefilling(request.request, done, len(history.tokens) - 1))

        prefill = self._reader.read(prompt, history, drafter, request.state, chunk_read, cancelled)
        if model.threads:
            model.threads.begin()
        rules, budget = written.rules, FixedBudget(written.rules)
        should_extend = Room(rules) if pilot else budget
        before = perf_counter()
        if prefill.complete:
            for step in generate(target, drafter, sampler, history, should_extend, rules, cancelled, rule):
                now = perf_counter()
                milliseconds, before = 1e3 * (now - before), now
                budget.step += 1
                if model.threads:
                    model.threads.add(step)
                emit(written.add(step, milliseconds))
        if rest := written.rest():
            emit(rest)
        size, stats = len(prompt.tokens), written.stats
        return Done(
            request=request.request,
            reason=rules.reason or "cancelled",
            text=written.text,
            tokens=reusable(history.tokens[size:], written.text, model.vocabulary),
            prompt_tokens=size,
            prefilled_tokens=prefill.decoded + prefill.complete,  # the first step reads the last one
            dropped_messages=prompt.dropped,
            ttft_ms=written.ttft_ms,
            speed=stats.speed(),
            by_depth=stats.by_depth,
            by_drafter={name: asdict(count) for name, count in stats.by_drafter.items()},
            drafter_depths=stats.drafter_depths,
            phases=stats.phase_ms(),
            exact=request.sampling.typical is None,
            auto={name: asdict(tally) for name, tally in pilot.throughput.tallies.items()} if pilot else {},
            dropped_tokens=prompt.trimmed,
            failed=self.drafters.new_failures(),
        )

    def prepare(
        self,
        request: Prepare,
        waiting: Callable[[], bool],
        cancelled: Callable[[], bool],
        counted: Callable[[Counted], None] = lambda _: None,
    ) -> None:
        """Reads the beginning of a prompt that is still being typed, so that its reply begins sooner.

        The reply reads what is missing, and rewinds what has changed. A cache that cannot be rewound is only replaced,
        never extended: another reply to the question before would have to read all of it again.

        Args:
            request: What is typed so far.
            waiting: Whether another request waits, see ``PromptReader.read_ahead``.
            cancelled: Whether to leave at once.
            counted: Called with what it takes of the context, before anything is read.

        Raises:
            SlipstreamError: If the reply could not be written either.
        """
        drafter, abilities, cached = self.drafters.get(request.drafter), self.target.abilities, self.target.tokens
        prompts = self.model.prompts
        make = partial(prompts.beginning, request.messages, abilities.n_ctx, typed=abilities.rewinds)
        prompt = prompts.unless(cancelled, _size(request.messages), make)
        if prompt is None:
            return
        counted(Counted(request.request, prompt.size, prompt.dropped, prompt.trimmed))
        grows = cached and shared_prefix(cached, prompt.tokens) == len(cached)
        if request.read and prompt.tokens and not waiting() and (abilities.rewinds or not grows):
            self._reader.read_ahead(prompt, drafter, request.state, waiting, cancelled)

    def prompt(self, messages: Sequence[Message]) -> list[Token]:
        """The tokens that a reply to a chat begins after.

        Raises:
            SlipstreamError: If there is nothing to answer, or it does not fit the context.
        """
        return self.model.prompts.build(messages, self.target.abilities.n_ctx).tokens

    def forget(self) -> None:
        """Empties the cache, so that the next prompt is read from its start."""
        self.target.rewind(0)

    def settle(self) -> None:
        """Keeps the number of threads as it is from now on: what is measured side by side must not differ in it."""
        self.model.threads = None

    def idle(self) -> bool:
        """Does some of the work that can wait; returns whether there is more of it."""
        if self._kept.due() == 0.0:
            self._kept.keep()
        with suppress(SlipstreamError, OSError):  # costs speed, and is tried again after the next reply
            return self._past_chats is not None and self._past_chats.catch_up()
        return False

    def due(self) -> float | None:
        """Seconds after which ``idle`` has work although nothing was asked; None for never."""
        return self._kept.due()

    def close(self) -> None:
        """Frees the drafters, then the models."""
        self.drafters.close()
        self.idle()
        self._kept.close()
        self._opened.close()


class _Written:
    """The reply so far: its text, its figures, and when it is over."""

    def __init__(
        self,
        request: Generate,
        model: ChatModel,
        prompt: Prompt,
        watched: Callable[[], bool],
        pilot: Autopilot | None,
    ) -> None:
        """Starts with the tokens that an earlier process wrote."""
        vocabulary, room = model.vocabulary, model.target.abilities.n_ctx - len(prompt.tokens)
        self.rules = Rules(vocabulary.ends, room, request.max_tokens, request.stop, vocabulary.piece)
        self.stats = ReplyStats(model.plain, len(request.begun))
        self.ttft_ms = 0.0
        self._request, self._asked, self._piece, self._pilot = request.request, request.asked, vocabulary.piece, pilot
        self._stream, self._steps = TextStream(request.stop), 0
        self._reasoning = Thinking.after(request.messages, prompt.thinks)
        self._trace = DraftTrace(watched, vocabulary, self.stats)
        for token in request.begun:
            self.rules.commit((token,))
            self._divide(self._stream.feed(self._piece(token), "plain"))

    @property
    def text(self) -> str:
        """All text so far."""
        return self._stream.text

    def add(self, step: Step, milliseconds: float) -> Stepped:
        """Takes a step of the loop; returns what is told of it."""
        self.ttft_ms = self.ttft_ms or 1e3 * (perf_counter() - self._asked)
        self.stats.add(step, milliseconds)
        self._steps += 1
        pieces: list[Piece] = []
        for token, (origin, source) in zip(step.tokens, origins(step), strict=True):
            pieces += self._stream.feed(self._piece(token), origin, source)
        divided = self._divide(pieces)
        decision = self._pilot.decision if self._pilot else None
        return Stepped(
            self._request,
            pieces,
            list(step.tokens),
            drafter_of(step),
            step.draft.tree.depth,
            len(step.path),
            milliseconds,
            self.stats.speed(),
            decision.expected if decision else 0.0,
            str(decision) if decision and self._steps % _EXPLAIN_EVERY == 1 else "",
            self._trace.of(step, milliseconds),
            divided,
            self.ttft_ms,
        )

    def rest(self) -> Stepped | None:
        """The text that was held back, once the reply is over."""
        pieces = self._stream.finish(stopped=not self.rules.reason)
        divided = self._reasoning.divide_rest(pieces)
        if not pieces and not divided:
            return None
        speed = self.stats.speed()
        return Stepped(self._request, pieces, [], PLAIN, 0, 0, 0.0, speed, divided=divided, ttft_ms=self.ttft_ms)

    def _divide(self, pieces: Sequence[Piece]) -> Divided | None:
        """Divides new text into reasoning and answer; a step that reasons counts as reasoning."""
        reasons, divided = self._reasoning.under_way, self._reasoning.divide(pieces)
        if reasons or self._reasoning.under_way:
            self.stats.think()
        return divided


def _size(messages: Sequence[Message]) -> int:
    return sum(len(message.content) for message in messages)
