"""Stores a reply while it streams, and turns a stored chat into the engine's messages."""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from typing import Final

from slipstream.app.chats.records import Figures, Run, StoredMessage, joined_runs
from slipstream.app.chats.store import ChatStore
from slipstream.app.protocol.events import Done, Prefilling, Stepped
from slipstream.app.protocol.requests import Message
from slipstream.app.speed import Speed
from slipstream.models.errors import EngineDiedError, SlipstreamError

WRITTEN_WITHIN: Final = 0.2
"""Seconds until new text is written to the store; with the write, a kill loses less than 250 ms of text."""
LEAD: Final = "Summary of our conversation so far:\n\n"  # precedes a summary in the prompt
Event = Prefilling | Stepped | Done


def recorded(
    events: Iterable[Event], store: ChatStore, message: int, before: StoredMessage | None = None
) -> Iterator[Event]:
    """Passes a reply's events on and stores the reply, a continued one behind ``before``.

    A failed write does not end the reply: the next write includes its text, and only a failure of the last write is an
    error. The reply's final status is "done"; "interrupted" if the engine died or the generator was closed; "failed" if
    the engine refused it before its first word.
    """
    speed = Speed()
    begun = over = False
    in_tokens = not before or bool(before.tokens) or not before.content  # stores all tokens of the reply or none
    writer, runs = _Writer(store, message), list[Run]()
    if before and before.content and not (before.figures and before.figures.origins):
        runs.append((len(before.content), "plain", ""))
    try:
        for event in events:
            if isinstance(event, Stepped):
                begun = True
                speed = event.speed
                writer.add("".join(piece.text for piece in event.pieces), event.tokens if in_tokens else [])
                runs += ((len(piece.text), piece.origin, piece.source) for piece in event.pieces)
            elif isinstance(event, Done):
                whole, all_tokens = event.text, event.tokens
                if before:
                    whole = before.content + event.text
                    joined = in_tokens and (bool(event.tokens) or not event.text)
                    all_tokens = before.tokens + event.tokens if joined else []
                figures = _figures(before, replace(Figures.of(event), origins=joined_runs(runs)))
                writer.end()
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
        writer.end()
        if not over:
            known = before.figures if before else None
            if begun:
                known = _figures(before, Figures(speed, origins=joined_runs(runs)))
            with suppress(SlipstreamError):  # the current error matters more; the next start marks the reply
                writer.write()
                store.finish_reply(message, "interrupted", figures=known)


class _Writer:
    """Writes the text of a reply to the store within ``WRITTEN_WITHIN``, in a thread of its own."""

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
        """Writes the text so far; if this raises ``SlipstreamError``, the next write includes the text."""
        with self._changed:
            self._store.append_reply(self._message, "".join(self._text), self._tokens)
            self._text, self._tokens = [], []

    def end(self) -> None:
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
                with suppress(SlipstreamError):  # the disk may have room later
                    self.write()


def _figures(before: StoredMessage | None, rest: Figures) -> Figures:
    return before.figures.followed_by(rest) if before and before.figures else rest


def history(
    messages: Iterable[StoredMessage],
    fingerprint: str,
    system: str = "",
    images: Callable[[str], dict[str, str]] = lambda _: {},
) -> list[Message]:
    """Makes the messages of a request from a chat.

    A reply has its tokens if the model of this fingerprint wrote it. Empty messages are left out. Neighbouring messages
    of one role are merged, since most templates require alternating turns. ``images`` is as ``ImageFolder.found``.
    """
    found = [Message("system", system)] if system else []
    for turn in turns(messages):
        first, content = turn[0], "\n\n".join(f"{LEAD if each.summary else ''}{each.content}" for each in turn)
        tokens = first.tokens if len(turn) == 1 and first.model == fingerprint else []
        found.append(Message(first.role, content, tokens, images(content) if first.role == "user" else {}))
    return found


def merged(messages: Iterable[Message]) -> list[Message]:
    runs = [list(run) for _, run in groupby(messages, key=lambda message: message.role)]
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
    return next((at for at in reversed(range(len(messages))) if messages[at].summary), None)


def since_summary(messages: Iterable[StoredMessage]) -> list[StoredMessage]:
    """The messages that a model reads: the last summary replaces the older messages that it covers."""
    every = list(messages)
    at = last_summary(every)
    if at is None:
        return every
    system = [message for message in every[:at] if message.role == "system"]
    kept = [message for message in every[max(0, at - every[at].keeps) : at] if message.role != "system"]
    return [*system, every[at], *kept, *every[at + 1 :]]


def turns(messages: Iterable[StoredMessage]) -> list[list[StoredMessage]]:
    """The messages grouped as ``history`` merges them, without empty ones."""
    spoken = (message for message in since_summary(messages) if message.content)
    return [list(run) for _, run in groupby(spoken, key=lambda message: message.role)]
