"""A kept chat in the words of the engine."""

from __future__ import annotations

from collections.abc import Iterable

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
    for message in messages:
        if not message.content:
            continue
        tokens = message.tokens if message.model == fingerprint else []
        if said and said[-1].role == message.role:
            said[-1] = Message(message.role, f"{said[-1].content}\n\n{message.content}")
        else:
            said.append(Message(message.role, message.content, tokens))
    return said
