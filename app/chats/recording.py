"""Keeps a reply in the store while it streams, whoever shows it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from slipstream.app.chats.records import Figures, StoredMessage
from slipstream.app.chats.store import ChatStore
from slipstream.app.engine.protocol import Done, Prefilling, Speed, Stepped
from slipstream.models.errors import EngineDiedError, SlipstreamError

APPEND_EVERY = 0.2
"""Seconds between writes; with the step that may follow, a kill loses less than 250 ms of text."""
SLOW_STEP = 40.0
"""Milliseconds; text of steps this slow is written at once, for the next may be long in coming."""

Event = Prefilling | Stepped | Done


def recorded(
    events: Iterable[Event],
    store: ChatStore,
    message: int,
    clock: Callable[[], float] = time.monotonic,
    before: StoredMessage | None = None,
) -> Iterator[Event]:
    """Passes a reply's events on and keeps the reply.

    A write that fails ends no reply: its text is written with what follows, and only if the last write fails too, there
    is an error. The reply ends in the store as "done"; as "interrupted" if the engine died or the reader went away; as
    "failed" if the engine refused it before the first word, unless it has words already.

    Args:
        events: What ``Engine.reply`` yields.
        store: Where the reply is kept.
        message: Number of the reply, from ``ChatStore.begin_reply``.
        clock: Seconds, for tests.
        before: The reply of that number as ``ChatStore.go_on`` gave it, if it goes on.

    Raises:
        SlipstreamError: If the engine fails, or the whole reply cannot be kept.
    """
    text: list[str] = []
    tokens: list[int] = []
    speed = Speed()
    begun = over = False
    in_tokens = not before or bool(before.tokens) or not before.content  # tokens count only where they are all there
    written = clock()
    try:
        for event in events:
            if isinstance(event, Stepped):
                begun = True
                speed = event.speed
                text += [piece.text for piece in event.pieces]
                tokens += event.tokens
                if tokens and (clock() - written >= APPEND_EVERY or event.ms >= SLOW_STEP):
                    with suppress(SlipstreamError):  # a disk may have room again
                        store.append_reply(message, "".join(text), tokens if in_tokens else [])
                        text, tokens = [], []
                    written = clock()
            elif isinstance(event, Done):
                whole, all_tokens = event.text, event.tokens
                if before:
                    whole = before.content + event.text
                    joined = in_tokens and (bool(event.tokens) or not event.text)
                    all_tokens = before.tokens + event.tokens if joined else []
                figures = _figures(before, Figures.of(event))
                try:
                    store.finish_reply(message, text=whole, tokens=all_tokens, reason=event.reason, figures=figures)
                except SlipstreamError as error:
                    hint = f"The end of this reply is not kept: copy it before you leave. {error.hint}"
                    raise SlipstreamError(error.title, hint) from error
                over = True
            yield event
    except SlipstreamError as error:
        if not begun and not before and not isinstance(error, EngineDiedError):
            store.finish_reply(message, "failed", reason=error.title)
            over = True
        raise
    finally:
        if not over:
            known = _figures(before, Figures(speed)) if begun else before.figures if before else None
            with suppress(SlipstreamError):  # what is raised says more; the next start marks the reply
                store.append_reply(message, "".join(text), tokens if in_tokens else [])
                store.finish_reply(message, "interrupted", figures=known)


def _figures(before: StoredMessage | None, rest: Figures) -> Figures:
    return before.figures.followed_by(rest) if before and before.figures else rest
