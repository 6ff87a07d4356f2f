"""Keeps a reply in the store while it streams, and turns a kept chat into the engine's messages."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from typing import Final

from slipstream.app.chats.records import Figures, Run, StoredMessage, joined_runs
from slipstream.app.chats.store import ChatStore
from slipstream.app.protocol import Done, Message, Prefilling, Stepped
from slipstream.app.speed import Speed
from slipstream.models.errors import EngineDiedError, SlipstreamError

WRITTEN_WITHIN: Final = 0.2
"""Seconds until text is in the store; including the write, a kill loses less than 250 ms of text."""

LEAD: Final = "Summary of our conversation so far:\n\n"
"""Stands before a summary where the model reads it."""

Event = Prefilling | Stepped | Done


def recorded(
    events: Iterable[Event],
    store: ChatStore,
    message: int,
    before: StoredMessage | None = None,
) -> Iterator[Event]:
    """Passes a reply's events on and keeps the reply.

    A failed write does not end the reply: its text is written with the next one, and only a failure of the last one is
    an error. The reply's final status is "done"; "interrupted" if the engine died or the generator was closed; "failed"
    if the engine refused it before its first word.

    Args:
        events: What ``Engine.reply`` yields.
        message: Number of the reply, from ``ChatStore.begin_reply``.
        before: The reply of that number as ``ChatStore.go_on`` gave it, if it goes on.

    Raises:
        SlipstreamError: If the engine fails, or the whole reply cannot be kept.
    """
    speed = Speed()
    begun = over = False
    in_tokens = not before or bool(before.tokens) or not before.content  # incomplete tokens are useless
    growing, runs = _Growing(store, message), list[Run]()
    if before and before.content and not (before.figures and before.figures.origins):
        runs.append((len(before.content), "plain", ""))
    try:
        for event in events:
            if isinstance(event, Stepped):
                begun = True
                speed = event.speed
                growing.add("".join(piece.text for piece in event.pieces), event.tokens if in_tokens else [])
                runs += ((len(piece.text), piece.origin, piece.source) for piece in event.pieces)
            elif isinstance(event, Done):
                whole, all_tokens = event.text, event.tokens
                if before:
                    whole = before.content + event.text
                    joined = in_tokens and (bool(event.tokens) or not event.text)
                    all_tokens = before.tokens + event.tokens if joined else []
                figures = _figures(before, replace(Figures.of(event), origins=joined_runs(runs)))
                growing.end()
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
        growing.end()
        if not over:
            known = (
                _figures(before, Figures(speed, origins=joined_runs(runs)))
                if begun
                else before.figures
                if before
                else None
            )
            with suppress(SlipstreamError):  # the error in flight matters more; the next start marks the reply
                growing.write()
                store.finish_reply(message, "interrupted", figures=known)


class _Growing:
    """Text that is not in the store yet; a thread takes it there in time, though the engine may be silent."""

    def __init__(self, store: ChatStore, message: int) -> None:
        self._store, self._message = store, message
        self._text: list[str] = []
        self._tokens: list[int] = []
        self._changed = threading.Condition()
        self._over = False
        self._thread = threading.Thread(target=self._run, name="recording", daemon=True)
        self._thread.start()

    def add(self, text: str, tokens: list[int]) -> None:
        with self._changed:
            self._text.append(text)
            self._tokens += tokens
            self._changed.notify()

    def write(self) -> None:
        """Writes what there is.

        Raises:
            SlipstreamError: If it cannot be written; it is tried again with what follows.
        """
        with self._changed:
            self._store.append_reply(self._message, "".join(self._text), self._tokens)
            self._text, self._tokens = [], []

    def end(self) -> None:
        """Writes no more by itself."""
        with self._changed:
            self._over = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._text or self._over)
                if self._changed.wait_for(lambda: self._over, WRITTEN_WITHIN):
                    return
                with suppress(SlipstreamError):  # a disk may have room again
                    self.write()


def _figures(before: StoredMessage | None, rest: Figures) -> Figures:
    return before.figures.followed_by(rest) if before and before.figures else rest


def history(
    messages: Iterable[StoredMessage],
    fingerprint: str,
    system: str = "",
    images: Callable[[str], dict[str, str]] = lambda _: {},
) -> list[Message]:
    """Makes the messages of a request.

    A reply brings its tokens if the model that will read them wrote them. Replies without a word are left out, and so
    two messages of the user may meet; in an imported chat two replies may. They become one, for most templates want
    turns.

    Args:
        messages: The chat, oldest first.
        fingerprint: Of the model that will reply.
        system: A system message to begin with, or empty.
        images: Finds the files of the images that a text names, see ``ImageFolder.found``.
    """
    said = [Message("system", system)] if system else []
    for together in turns(messages):
        first, content = together[0], "\n\n".join(map(_read, together))
        tokens = first.tokens if len(together) == 1 and first.model == fingerprint else []
        said.append(Message(first.role, content, tokens, images(content) if first.role == "user" else {}))
    return said


def _read(message: StoredMessage) -> str:
    """The text as the model reads it."""
    return f"{LEAD}{message.content}" if message.summary else message.content


def merged(messages: Iterable[Message]) -> list[Message]:
    """The same messages, those of one role that meet as one."""
    runs = [list(together) for _, together in groupby(messages, key=lambda message: message.role)]
    return [
        run[0]
        if len(run) == 1
        else Message(
            run[0].role,
            "\n\n".join(message.content for message in run),
            images={sha256: file for message in run for sha256, file in message.images.items()},
        )
        for run in runs
    ]


def last_summary(messages: Sequence[StoredMessage]) -> int | None:
    """The place of the last summary; None if there is none."""
    return next((at for at in reversed(range(len(messages))) if messages[at].summary), None)


def since_summary(messages: Iterable[StoredMessage]) -> list[StoredMessage]:
    """What a model reads of a chat: the last summary in place of what it stands for."""
    said = list(messages)
    at = last_summary(said)
    if at is None:
        return said
    system = [message for message in said[:at] if message.role == "system"]
    kept = [message for message in said[max(0, at - said[at].keeps) : at] if message.role != "system"]
    return [*system, said[at], *kept, *said[at + 1 :]]


def turns(messages: Iterable[StoredMessage]) -> list[list[StoredMessage]]:
    """The messages that ``history`` makes one of, in order; those without a word are in none."""
    spoken = (message for message in since_summary(messages) if message.content)
    return [list(together) for _, together in groupby(spoken, key=lambda message: message.role)]
