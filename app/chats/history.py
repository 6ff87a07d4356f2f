"""A kept chat in the words of the engine."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from slipstream.app.chats.records import StoredMessage
from slipstream.app.engine.requests import Message


def history(messages: Iterable[StoredMessage], fingerprint: str, system: str = "") -> list[Message]:
    """Makes the messages of a request.

    A reply brings its tokens if the model that will read them wrote them. Replies without a word are left out, and so
    two messages of the user may meet; in an imported chat two replies may. They become one, for most templates want
    turns.

    Args:
        messages: The chat, oldest first.
        fingerprint: Of the model that will reply.
        system: A system message to begin with, or empty.
    """
    said = [Message("system", system)] if system else []
    for together in turns(messages):
        first = together[0]
        if len(together) == 1:
            said.append(Message(first.role, first.content, first.tokens if first.model == fingerprint else []))
        else:
            said.append(Message(first.role, "\n\n".join(message.content for message in together)))
    return said


def turns(messages: Iterable[StoredMessage]) -> list[list[StoredMessage]]:
    """The messages that ``history`` makes one of, in order; those without a word are in none."""
    spoken = (message for message in messages if message.content)
    return [list(together) for _, together in groupby(spoken, key=lambda message: message.role)]
