"""One loaded model with its drafters and its replies; independent of pipes and screens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Final

from slipstream.app.chats.reasoning import Thinking
from slipstream.app.engine.budget import FixedBudget, WithinReply
from slipstream.app.engine.draft_trace import DraftTrace
from slipstream.app.engine.drafter_list import Drafters
from slipstream.app.engine.guide import Guide, GuideVocabulary
from slipstream.app.engine.kv_cache_store import KvCacheStore
from slipstream.app.engine.loop import generate
from slipstream.app.engine.past_chats import PastChats
from slipstream.app.engine.prefill import PromptReader
from slipstream.app.engine.prompt import Prompt, PromptBuilder
from slipstream.app.engine.stats import PlainClock, ReplyStats, drafter_of, origins
from slipstream.app.engine.stopping import StopRules
from slipstream.app.engine.text import TextStream, Vocabulary, reusable
from slipstream.app.engine.tune import Threads
from slipstream.app.protocol import (
    AUTO,
    PLAIN,
    Choice,
    Counted,
    Divided,
    Done,
    Generate,
    Message,
    Piece,
    Prefilling,
    Prepare,
    Sampling,
    Stepped,
    reasoning_levels,
)
from slipstream.app.speed import Speed
from slipstream.drafters.accept import accept_rule
from slipstream.drafters.autopilot.policy import Autopilot
from slipstream.drafters.base import Drafter, Step
from slipstream.drafters.text_only import TextOnly
from slipstream.models.chat_template.marks import AUTO_LEVEL
from slipstream.models.errors import SlipstreamError
from slipstream.models.llama.target import Prefill, Target
from slipstream.models.sampling.bias import bias_of
from slipstream.models.sampling.dry import BREAKERS
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import History, Token, shared_prefix

if TYPE_CHECKING:  # grammars are seldom used
    from slipstream.models.grammar.matching import GrammarTokens

_EXPLAIN_EVERY: Final = 8
"""Steps between two reported choices of the autopilot: more could not be read."""


@dataclass(slots=True)
class ChatModel:
    """A model that can chat.

    Attributes:
        target: The model; between replies, others may use it too.
        vocabulary: Its vocabulary.
        prompts: Makes its prompts.
        plain: The clock of plain decoding.
        threads: Chooses the number of threads; None where it is fixed.
        new_remarks: See ``Done.remarks``.
    """

    target: Target
    vocabulary: Vocabulary
    prompts: PromptBuilder
    plain: PlainClock
    threads: Threads | None = None
    new_remarks: Callable[[], dict[str, str]] = dict
    _breakers: frozenset[Token] | None = None
    _grammar_tokens: GrammarTokens | None = None

    def sampler(self, sampling: Sampling) -> Sampler:
        """Makes the sampler of a request.

        Raises:
            UsageError: If a value is out of its range, or a bias names no token of this model.
        """
        n_vocab = self.target.abilities.n_vocab
        bias = bias_of(sampling.logit_bias, self.prompts.tokens_of, n_vocab)
        if sampling.dry and self._breakers is None:  # some 0.2 s for a large vocabulary
            pieces = ((token, self.vocabulary.piece(token)) for token in range(n_vocab))
            self._breakers = frozenset(token for token, raw in pieces if any(map(raw.__contains__, BREAKERS)))
        return Sampler(**sampling.drawing(), bias=bias, breakers=self._breakers or frozenset())

    def guide(self, request: Generate, sampler: Sampler, prompt: Prompt) -> Guide:
        """Makes the guide of a request.

        Raises:
            UsageError: If the grammar cannot be used.
        """
        budget, tokenize = request.sampling.reasoning_budget, self.prompts.control_tokens
        matcher = None
        if request.grammar:
            from slipstream.models.grammar.matching import GrammarTokens, matcher_of  # seldom needed

            if self._grammar_tokens is None:
                pieces = [self.vocabulary.piece(token) for token in range(self.target.abilities.n_vocab)]
                self._grammar_tokens = GrammarTokens(pieces, self.vocabulary.ends, self.prompts.tokens_of)
            matcher = matcher_of(request.grammar_kind, request.grammar, self._grammar_tokens)
        blanks = frozenset(tokens[0] for text in ("\n", "\n\n") if len(tokens := tokenize(text)) == 1)
        vocabulary = GuideVocabulary(self.vocabulary.piece, tokenize, prompt.openers, blanks)
        return Guide(sampler, len(prompt.tokens) - prompt.said, prompt.thinks, vocabulary, budget, matcher)


class Session:
    """Replies to chats with one model.

    The session owns the target's cache: the next turn of a chat reads only its new tokens, and an edited or shortened
    chat reuses the common prefix.

    Attributes:
        model: The model.
        drafters: Its drafters.
        open_second: Opens a session without drafters on the same weights, to be closed before this one; may be None.
    """

    def __init__(
        self,
        model: ChatModel,
        drafters: Drafters,
        kept: KvCacheStore,
        past_chats: PastChats | None = None,
        opened: ExitStack | None = None,
        open_second: Callable[[], Session] | None = None,
    ) -> None:
        """Takes over a model.

        Args:
            kept: Keeps the target's cache in files.
            past_chats: Keeps the text index in step with the chats; None if they are not indexed.
            opened: Closes the model, after everything else.
            open_second: Opens a session without drafters on the same weights, with a cache of its own.
        """
        self.model, self.drafters, self.open_second = model, drafters, open_second
        self._kept, self._past_chats, self._opened = kept, past_chats, opened or ExitStack()
        self._reader = PromptReader(model.target, kept)
        self._reported_levels = set[str]()

    @property
    def target(self) -> Target:
        return self.model.target

    def reply(
        self,
        request: Generate,
        emit: Callable[[Prefilling | Stepped], None],
        cancelled: Callable[[], bool],
        watched: Callable[[], bool] = lambda: False,
        answer_now: Callable[[], bool] = lambda: False,
    ) -> Done:
        """Writes one reply.

        Args:
            emit: Called with the progress of the prompt, and with every step.
            cancelled: Called between chunks and steps; True ends the reply, and keeps what was written.
            watched: Whether steps are to carry their drafts; called at every step.
            answer_now: Whether to close its thoughts by the model's own mark; called at every step.

        Returns:
            How it ended.

        Raises:
            SlipstreamError: If the request fails; the session stays usable.
        """
        reply = self.begin(request, emit, cancelled, watched)
        for step in reply.steps(answer_now):
            emit(step)
        return reply.done()

    def begin(
        self,
        request: Generate,
        emit: Callable[[Prefilling], None],
        cancelled: Callable[[], bool],
        watched: Callable[[], bool] = lambda: False,
    ) -> Reply:
        """Reads the prompt of a reply; its caller then iterates over the steps; see ``reply``."""
        model = self.model
        drafter, sampler = self.drafters.get(request.drafter), model.sampler(request.sampling)
        size, whole = self.target.abilities.n_ctx, request.overflow == "stop"
        make = partial(model.prompts.build, request.messages, size, request.sampling.reasoning, whole=whole)
        prompt = model.prompts.unless(cancelled, _size(request.messages), make)
        if prompt is None:
            return Reply(request, self, drafter, None, None, cancelled)
        drafter = self._text_only(prompt, drafter)
        pilot = self.drafters.pilot if request.drafter == AUTO and not drafter.failed else None
        guide = model.guide(request, sampler, prompt)
        written = _Written(request, model, prompt, watched, pilot)
        history = History([*prompt.tokens, *request.begun], prompt.trimmed)

        def chunk_read(done: int) -> None:
            emit(Prefilling(request.request, done, len(history.tokens) - 1))

        prefill = self._reader.read(prompt, history, drafter, request.state, chunk_read, cancelled)
        if model.threads and model.threads.begin():
            model.plain.forget()
        read = _Read(prompt, history, prefill, sampler, guide)
        return Reply(request, self, drafter, read, written, cancelled)

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
            waiting: Whether another request waits, see ``PromptReader.read_ahead``.
            cancelled: Whether to stop at once.
            counted: Called with the size of the prompt, before anything is read.

        Raises:
            SlipstreamError: If the reply would fail, too.
        """
        drafter, abilities, cached = self.drafters.get(request.drafter), self.target.abilities, self.target.tokens
        prompts = self.model.prompts
        make = partial(prompts.beginning, request.messages, abilities.n_ctx, request.reasoning, typed=abilities.rewinds)
        prompt = prompts.unless(cancelled, _size(request.messages), make)
        if prompt is None:
            return
        counted(Counted(request.request, prompt.size, prompt.dropped, prompt.trimmed))
        drafter = self._text_only(prompt, drafter)
        grows = cached and shared_prefix(cached, prompt.tokens) == len(cached)
        if request.read and prompt.tokens and not waiting() and (abilities.rewinds or not grows):
            self._reader.read_ahead(prompt, drafter, request.state, waiting, cancelled)

    def _text_only(self, prompt: Prompt, drafter: Drafter) -> Drafter:
        """Hides the images of a prompt from a drafter."""
        return TextOnly(drafter, self.target.abilities.n_ctx) if min(prompt.tokens, default=0) < 0 else drafter

    def prompt(self, messages: Sequence[Message]) -> list[Token]:
        """The tokens of a chat's prompt.

        Raises:
            SlipstreamError: If there is nothing to answer, or it does not fit the context.
        """
        return self.model.prompts.build(messages, self.target.abilities.n_ctx).tokens

    def unknown_level(self, level: str) -> dict[str, str]:
        """A remark on a reasoning level that the model lacks, with those that it has; made once for each level."""
        known = self.model.prompts.reasoning.switches
        if level == AUTO_LEVEL or level in known or level in self._reported_levels:
            return {}
        self._reported_levels.add(level)
        return {f"this model has no reasoning level {level}.": reasoning_levels(known)}

    def forget(self) -> None:
        """Empties the cache, so that the next prompt is read from its start."""
        self.target.rewind(0)

    def fix_threads(self) -> None:
        """Fixes the number of threads, so that measurements side by side do not differ in it."""
        self.model.threads = None

    def idle(self) -> bool:
        """Does some of the deferred work; returns whether more is left."""
        if self._kept.due() == 0.0:
            self._kept.keep()
        with suppress(SlipstreamError, OSError):  # costs speed, and is tried again after the next reply
            return self._past_chats is not None and self._past_chats.catch_up()
        return False

    def due(self) -> float | None:
        """Seconds until ``idle`` has work without a request; None for never."""
        return self._kept.due()

    def close(self) -> None:
        """Frees the drafters, then the models."""
        self.drafters.close()
        self.idle()
        self._kept.close()
        self._opened.close()


@dataclass(frozen=True, slots=True)
class _Read:
    """A prompt in the cache: its tokens, the text so far, the prefill, and what draws the reply's tokens."""

    prompt: Prompt
    history: History
    prefill: Prefill
    sampler: Sampler
    guide: Guide


class Reply:
    """A reply that is written while its caller iterates over its steps."""

    def __init__(
        self,
        request: Generate,
        session: Session,
        drafter: Drafter,
        read: _Read | None,
        written: _Written | None,
        cancelled: Callable[[], bool],
    ) -> None:
        """Made by ``Session.begin`` alone."""
        self._request, self._session, self._drafter = request, session, drafter
        self._read, self._written, self._cancelled = read, written, cancelled
        self._before = 0.0

    def resume(self) -> None:
        """Starts the clock of the next step: something else was computed since the last one."""
        self._before = perf_counter()

    def steps(self, answer_now: Callable[[], bool] = lambda: False) -> Iterator[Stepped]:
        """Writes, step by step; a step's time counts from the end of the one before, or from ``resume``.

        Args:
            answer_now: See ``Session.reply``.
        """
        if self._read is None or self._written is None:
            return
        request, model, written = self._request, self._session.model, self._written
        rule = accept_rule(request.sampling.typical, request.sampling.temperature)
        sampler, rules = self._read.sampler, written.rules
        budget = FixedBudget(rules, known=lambda: model.plain.milliseconds is not None)
        should_extend = WithinReply(rules) if written.pilot else budget
        self.resume()
        if self._read.prefill.complete:
            history, guide = self._read.history, self._read.guide

            def cancelled() -> bool:
                if answer_now():
                    guide.close(history)
                return self._cancelled()

            for step in generate(
                model.target, self._drafter, sampler, history, should_extend, rules, cancelled, rule, guide
            ):
                now = perf_counter()
                milliseconds, self._before = 1e3 * (now - self._before), now
                budget.step += 1
                if model.threads and model.threads.add(step):
                    model.plain.forget()
                yield written.add(step, milliseconds)
        if rest := written.rest():
            yield rest

    def done(self) -> Done:
        """The result, or the state so far."""
        if self._read is None or self._written is None:
            return Done(self._request.request, "cancelled", "", [], 0, 0, 0, 0.0, Speed())
        request, session, written = self._request, self._session, self._written
        prompt, prefill, stats = self._read.prompt, self._read.prefill, self._written.stats
        size = len(prompt.tokens)
        return Done(
            request=request.request,
            reason=written.rules.reason or "cancelled",
            text=written.text,
            tokens=reusable(self._read.history.tokens[size:], written.text, session.model.vocabulary),
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
            auto={name: asdict(chosen) for name, chosen in written.chosen.items()},
            dropped_tokens=prompt.trimmed,
            failed=session.drafters.new_failures(),
            remarks=session.model.new_remarks() | session.unknown_level(request.sampling.reasoning),
            complete=self._read.guide.complete(self._read.history),
            thoughts_closed=self._read.guide.closed,
        )


@dataclass(slots=True)
class _Chosen:
    """Sums over the steps for which the autopilot chose one drafter: see ``Done.auto``."""

    steps: int = 0
    expected: float = 0.0
    tokens: int = 0
    ms: float = 0.0


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
        self.rules = StopRules(vocabulary.ends, room, request.max_tokens, request.stop, vocabulary.piece)
        self.stats = ReplyStats(model.plain, len(request.begun), len(prompt.tokens))
        self.chosen: dict[str, _Chosen] = {}
        self.ttft_ms = 0.0
        self._request, self._asked, self._piece, self.pilot = request.request, request.asked, vocabulary.piece, pilot
        self._stream, self._steps = TextStream(request.stop), 0
        self._reasoning = Thinking.after(request.messages, prompt.thinks)
        self._trace = DraftTrace(watched, vocabulary, self.stats)
        for token in request.begun:
            self.rules.commit((token,))
            self._divide(self._stream.feed(self._piece(token), "plain"))

    @property
    def text(self) -> str:
        return self._stream.text

    def add(self, step: Step, milliseconds: float) -> Stepped:
        """Adds a step of the loop; returns its event."""
        self.ttft_ms = self.ttft_ms or 1e3 * (perf_counter() - self._asked)
        self.stats.add(step, milliseconds)
        self._steps += 1
        pieces: list[Piece] = []
        for token, (origin, source) in zip(step.tokens, origins(step), strict=True):
            pieces += self._stream.feed(self._piece(token), origin, source)
        divided = self._divide(pieces)
        expected, choice = 0.0, None
        if self.pilot:
            decision = self.pilot.decision
            expected = decision.expected
            chosen = self.chosen.setdefault(decision.drafter, _Chosen())
            chosen.steps += 1
            chosen.expected += expected
            chosen.tokens += len(step.tokens)
            chosen.ms += milliseconds
            if self._steps % _EXPLAIN_EVERY == 1:
                drafter, nodes, cost, plain_ms = decision.drafter, decision.nodes, decision.cost, decision.plain_ms
                choice = Choice(drafter, nodes, max(1.0, cost), expected, plain_ms, decision.trial)
        return Stepped(
            self._request,
            pieces,
            list(step.tokens),
            drafter_of(step),
            step.draft.tree.depth,
            len(step.path),
            milliseconds,
            self.stats.speed(),
            expected,
            choice,
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
