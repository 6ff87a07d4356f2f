"""A prompt and what is asked after its reply."""

from __future__ import annotations

from dataclasses import dataclass, replace

from slipstream.app.engine.requests import Message


@dataclass(frozen=True, slots=True)
class Prompt:
    """A chat that waits for its next reply.

    Attributes:
        messages: What was said so far; the last message is the user's.
        later: What the user says after that reply, and after the next ones, as in MT-bench.
        category: What its file says that it is about, as in Spec-Bench; else empty.
    """

    messages: tuple[Message, ...]
    later: tuple[str, ...] = ()
    category: str = ""

    @property
    def turns(self) -> int:
        """Replies that are still to be written."""
        return 1 + len(self.later)

    def after(self, reply: Message) -> Prompt:
        """The prompt of the next turn, once the model has replied; there must be one."""
        asked_next = Message("user", self.later[0])
        return replace(self, messages=(*self.messages, reply, asked_next), later=self.later[1:])


def asked(*texts: str) -> Prompt:
    """The prompt that is one message of the user, and what the user says after each reply."""
    return Prompt((Message("user", texts[0]),), texts[1:])
