"""Prefills the prompts of requests, and prompts that are still being typed."""

from __future__ import annotations

from collections.abc import Callable

from slipstream.app.engine.kv_cache_store import KvCacheStore
from slipstream.app.engine.prompt import Prompt
from slipstream.drafters.base import Drafter
from slipstream.models.llama.target import Prefill, PrefillChunk, Target
from slipstream.models.types import History


class PromptReader:
    """Reads prompts into the target's cache, and passes their hidden states to the drafter of the reply.

    Only the pass that reads a token returns its hidden state, so the drafter gets it even while a prompt is typed.
    """

    def __init__(self, target: Target, store: KvCacheStore) -> None:
        self._target, self._store = target, store

    def read(
        self,
        prompt: Prompt,
        history: History,
        drafter: Drafter,
        state: str | None,
        on_chunk: Callable[[int], None],
        cancelled: Callable[[], bool],
    ) -> Prefill:
        """Reads a prompt except its last token, which the first step evaluates.

        Args:
            history: The prompt for the drafter.
            state: See ``Generate.state``.
            on_chunk: Called after every chunk with the number of tokens in the cache.
            cancelled: Whether to stop at once; the tokens read so far stay.
        """
        return self._read(history.tokens[:-1], prompt.system, history, drafter, state, on_chunk, cancelled)

    def read_ahead(
        self,
        prompt: Prompt,
        drafter: Drafter,
        state: str | None,
        waiting: Callable[[], bool],
        cancelled: Callable[[], bool],
    ) -> Prefill:
        """Reads the beginning of a prompt as its reply would.

        Args:
            prompt: What to read; the cache is rewound to the common prefix.
            state: See ``Generate.state``.
            waiting: Whether another request waits; reading then ends after the current chunk.
            cancelled: Whether to stop at once.
        """
        left = False

        def on_chunk(_done: int) -> None:
            nonlocal left
            left = waiting()

        history = History(prompt.tokens)
        return self._read(prompt.tokens, prompt.system, history, drafter, state, on_chunk, lambda: left or cancelled())

    def _read(
        self,
        tokens: list[int],
        system: int,
        history: History,
        drafter: Drafter,
        state: str | None,
        on_chunk: Callable[[int], None],
        cancelled: Callable[[], bool],
    ) -> Prefill:
        target, store = self._target, self._store
        store.enter(state, tokens, system)
        target.request(drafter.needs.hidden)
        drafter.begin(history)

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
