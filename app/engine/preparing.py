"""Reads a prompt that is still being typed."""

from __future__ import annotations

from collections.abc import Callable

from slipstream.drafters.base import Drafter
from slipstream.models.runtime.target import Prefill, PrefillChunk, Target
from slipstream.models.types import History


def read_ahead(
    target: Target, drafter: Drafter, history: History, waiting: Callable[[], bool], cancelled: Callable[[], bool]
) -> Prefill:
    """Reads the beginning of a prompt as its reply would.

    Hidden states come once, with the pass that reads a token: so the drafter of the reply hears them now.

    Args:
        target: Reads; what it has read of another text is rewound.
        drafter: Of the reply.
        history: What to read.
        waiting: Whether something else is asked; the chunk that is being read is then the last one, and is kept.
        cancelled: Whether to leave at once.
    """
    target.request(drafter.needs.hidden)
    drafter.begin(history)
    left = False

    def chunk_read(chunk: PrefillChunk) -> None:
        nonlocal left
        drafter.prefilled(chunk.tokens, chunk.hidden)
        left = waiting()

    return target.prefill(history.tokens, chunk_read, lambda: left or cancelled())
