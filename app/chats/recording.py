"""Keeps a reply in the store while it streams, whoever shows it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from slipstream.app.chats.records import Figures
from slipstream.app.chats.store import ChatStore
from slipstream.app.engine.protocol import Done, Prefilling, Speed, Stepped
from slipstream.models.errors import EngineDiedError, SlipstreamError

APPEND_EVERY = 0.2
"""Seconds between writes; with the step that may follow, a kill loses less than 250 ms of text."""
SLOW_STEP = 40.0
"""Milliseconds; text of steps this slow is written at once, for the next may be long in coming."""

Event = Prefilling | Stepped | Done


def recorded(
    events: Iterable[Event], store: ChatStore, message: int, clock: Callable[[], float] = time.monotonic
) -> Iterator[Event]:
    """Passes a reply's events on and keeps the reply.

    The reply ends in the store as "done"; as "interrupted" if the engine died or the reader went away; as "failed" if
    the engine refused it before the first word.

    Args:
        events: What ``Engine.reply`` yields.
        store: Where the reply is kept.
        message: Number of the reply, from ``ChatStore.begin_reply``.
        clock: Seconds, for tests.
    """
    text: list[str] = []
    tokens: list[int] = []
    speed = Speed()
    begun = over = False
    written = clock()
    try:
        for event in events:
            if isinstance(event, Stepped):
                begun = True
                speed = event.speed
                text += [piece.text for piece in event.pieces]
                tokens += event.tokens
                if tokens and (clock() - written >= APPEND_EVERY or event.ms >= SLOW_STEP):
                    store.append_reply(message, "".join(text), tokens)
                    text, tokens, written = [], [], clock()
            elif isinstance(event, Done):
                figures = Figures.of(event)
                store.finish_reply(message, text=event.text, tokens=event.tokens, reason=event.reason, figures=figures)
                over = True
            yield event
    except SlipstreamError as error:
        if not begun and not isinstance(error, EngineDiedError):
            store.finish_reply(message, "failed", reason=error.title)
            over = True
        raise
    finally:
        if not over:
            store.append_reply(message, "".join(text), tokens)
            store.finish_reply(message, "interrupted", figures=Figures(speed) if begun else None)
