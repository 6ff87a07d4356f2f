"""One loaded model with its drafters and its replies; independent of pipes and screens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Final

from slipstream.app.engine.chat_model import ChatModel
from slipstream.app.engine.drafter_list import Drafters
from slipstream.app.engine.kv_cache_store import KvCacheStore
from slipstream.app.engine.past_chats import PastChats
from slipstream.app.engine.prompt import Prompt
from slipstream.app.engine.reply import ReadPrompt, Reply, ReplyProgress
from slipstream.app.protocol.events import Counted, Done, Prefilling, Stepped
from slipstream.app.protocol.requests import AUTO, Generate, Message, Prepare
from slipstream.drafters.base import Drafter
from slipstream.drafters.combine import TextOnly
from slipstream.models.errors import SlipstreamError
from slipstream.models.llama.target import Prefill, PrefillChunk, Target
from slipstream.models.types import History, Token, shared_prefix

_READ_AGAIN: Final = 128
"""Most tokens at the end of a prompt that are read again for a drafter that has not seen their hidden states.

With a prompt that was read without it, EAGLE-3 guessed 25 % of first tokens right in place of 79 %.
"""


class PromptReader:
    """Reads prompts into the target's cache, and passes their hidden states to the drafter of the reply.

    Only the pass that reads a token returns its hidden state, so the drafter gets it even while a prompt is typed.
    """

    def __init__(self, target: Target, store: KvCacheStore) -> None:
        self._target, self._store = target, store

    def read(
        self,
        tokens: list[int],
        system: int,
        history: History,
        drafter: Drafter,
        state: str | None,
        *,
        on_chunk: Callable[[int], None],
        cancelled: Callable[[], bool],
    ) -> Prefill:
        """Reads the tokens of a prompt, the first ``system`` of a system message; a cancel keeps those read so far."""
        target, store = self._target, self._store
        store.enter(state, tokens, system)
        drafter.begin(history)
        target.request(drafter.needs.hidden)
        known = max(drafter.known(history), len(tokens) - _READ_AGAIN)
        if known < len(tokens) and target.abilities.rewinds:
            target.rewind(known)

        def chunk_read(chunk: PrefillChunk) -> None:
            drafter.on_prefill(chunk.tokens, chunk.hidden)
            on_chunk(chunk.done)

        first = None
        if store.wants_system(tokens, system):
            first = target.prefill(tokens[:system], chunk_read, cancelled)
            if not first.complete:
                return first
            store.keep_system()
        whole = target.prefill(tokens, chunk_read, cancelled)
        return Prefill(first.reused, first.decoded + whole.decoded, whole.complete) if first else whole


class Session:
    """Replies to chats with one model.

    The session owns the target's cache: the next turn of a chat reads only its new tokens, and an edited or shortened
    chat reuses the common prefix. ``open_second`` opens a session without drafters on the same weights, closed before
    this one; it may be None.
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
        """Takes over a model; ``opened`` closes it, after everything else."""
        self.model, self.drafters, self.open_second = model, drafters, open_second
        self._kept, self._past_chats, self._opened = kept, past_chats, opened or ExitStack()
        self._reader = PromptReader(model.target, kept)

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
        """Writes one reply; after an error, the session stays usable.

        ``cancelled`` is called between chunks and steps: True ends the reply, and keeps what was written. Called at
        every step, ``watched`` says whether it is to carry its drafts, ``answer_now`` whether to end the reasoning.
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
        """Reads the prompt of a reply; the caller then iterates over its steps. See ``reply``."""
        model = self.model
        drafter, sampler = self.drafters.get(request.drafter), model.sampler(request.sampling)
        size, whole = self.target.abilities.n_ctx, request.overflow == "stop"
        make = partial(model.prompts.build, request.messages, size, request.sampling.reasoning, whole=whole)
        prompt = model.prompts.unless(cancelled, _size(request.messages), make)
        if prompt is None:
            return Reply(request, model, self.drafters, cancelled)
        drafter = self._text_only(prompt, drafter)
        pilot = self.drafters.pilot if request.drafter == AUTO and not drafter.failed else None
        guide = model.guide(request, sampler, prompt)
        progress = ReplyProgress(request, model, prompt, watched, pilot)
        history = History([*prompt.tokens, *request.begun], prompt.trimmed)

        def chunk_read(done: int) -> None:
            emit(Prefilling(request.request, done, len(history.tokens) - 1))

        tokens = history.tokens[:-1]  # the first step evaluates the last one
        prefill = self._reader.read(
            tokens, prompt.system, history, drafter, request.state, on_chunk=chunk_read, cancelled=cancelled
        )
        if model.threads and model.threads.begin():
            model.plain.forget()
        read = ReadPrompt(prompt, history, prefill, sampler=sampler, guide=guide, drafter=drafter, progress=progress)
        return Reply(request, model, self.drafters, cancelled, read)

    def prepare(
        self,
        request: Prepare,
        waiting: Callable[[], bool],
        cancelled: Callable[[], bool],
        counted: Callable[[Counted], None] = lambda _: None,
    ) -> None:
        """Reads the beginning of a prompt that is still being typed, so that its reply begins sooner.

        The reply reads the rest, and rewinds to the first change. A cache that cannot be rewound is only replaced and
        never extended: otherwise another reply to the previous question would have to read the whole prompt again.
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
        if not request.read or not prompt.tokens or waiting() or not (abilities.rewinds or not grows):
            return
        left = False

        def chunk_read(_done: int) -> None:
            nonlocal left
            left = waiting()

        self._reader.read(
            prompt.tokens,
            prompt.system,
            History(prompt.tokens),
            drafter,
            request.state,
            on_chunk=chunk_read,
            cancelled=lambda: left or cancelled(),
        )

    def _text_only(self, prompt: Prompt, drafter: Drafter) -> Drafter:
        return TextOnly(drafter, self.target.abilities.n_ctx) if min(prompt.tokens, default=0) < 0 else drafter

    def prompt(self, messages: Sequence[Message]) -> list[Token]:
        return self.model.prompts.build(messages, self.target.abilities.n_ctx).tokens

    def forget(self, messages: Sequence[Message] = ()) -> None:
        """Drops the text that was read; of a prompt of ``messages``, only the end, as a drafter that reads it does."""
        self.target.rewind(max(0, len(self.prompt(messages)) - _READ_AGAIN) if messages else 0)

    def fix_threads(self) -> None:
        self.model.threads = None

    def idle(self) -> bool:
        """Does some of the deferred work; returns whether more is left."""
        if self._kept.due() == 0.0:
            self._kept.keep()
        with suppress(SlipstreamError, OSError):  # only costs speed, and is tried again after the next reply
            return self._past_chats is not None and self._past_chats.catch_up()
        return False

    def due(self) -> float | None:
        """Seconds until ``idle`` has work without a request; None for never."""
        return self._kept.due()

    def close(self) -> None:
        self.drafters.close()
        self.idle()
        self._kept.close()
        self._opened.close()


def _size(messages: Sequence[Message]) -> int:
    return sum(len(message.content) for message in messages)
