"""Replaces the older messages of a chat by a summary that the model writes; the messages themselves stay stored.

A summary is a message of the chat. It comes after the messages that it replaces and a few newer ones that it keeps: the
model still reads these, and the summary records their number. Removing the summary restores everything.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from slipstream.app.chats.reasoning import begins_inside, split
from slipstream.app.chats.recording import LEAD, history, last_summary, merged, since_summary
from slipstream.app.chats.records import StoredMessage
from slipstream.app.protocol.events import Done
from slipstream.app.protocol.requests import Generate, Message
from slipstream.models.errors import ContextFullError, SlipstreamError, UsageError

ASKED: Final = (
    "Summarize our conversation so far, in its language, for yourself: your summary will stand in its place. Keep "
    "what we will need: what I want, facts, names, numbers, decisions, code that is still in use, and what is open. "
    "Write only the summary, in at most 300 words."
)
_KEPT_TURNS: Final = 2  # maximum newest turns to keep
_KEPT_SHARE: Final = 4  # keeps turns only if they have at most this fraction (1/4) of the chat's characters
_MOST_TOKENS: Final = 1024  # maximum tokens of a summary, reasoning included
Ask = Callable[[list[Message]], Done]


@dataclass(frozen=True, slots=True)
class Compaction:
    """The messages that a summary replaces, and the messages that it keeps."""

    system: list[StoredMessage]
    older: list[StoredMessage]  # replaced by the summary
    kept: list[StoredMessage]  # read by the model after the summary
    parent: int  # the message that the summary follows

    @property
    def chat(self) -> str:
        return self.older[0].chat

    @property
    def count(self) -> int:
        return sum(not message.summary for message in self.older)

    def summary(self, ask: Ask, fingerprint: str, images: Callable[[str], dict[str, str]] = lambda _: {}) -> str:
        """Writes the summary, in several passes if the messages do not fit the context; empty if it was stopped."""
        led = history(self.system, fingerprint)
        rest, summary = history(self.older, fingerprint, images=images), ""
        while rest:
            count = len(rest)
            done = None
            while done is None:
                so_far = [Message("user", f"{LEAD}{summary}")] if summary else []
                try:
                    done = ask(merged([*led, *so_far, *rest[:count], Message("user", ASKED)]))
                except ContextFullError:
                    if count == 1:
                        raise
                    count = (count + 1) // 2
            if done.reason == "cancelled":
                return ""
            summary = split(done.text, begins_inside(done.text, done.speed.thought)).answer.strip()
            if not summary:
                raise SlipstreamError("the model wrote no summary.", "Nothing was changed; try again.")
            rest = rest[count:]
        return summary


def compaction(messages: Sequence[StoredMessage]) -> Compaction:
    """Chooses the messages to summarize: all except the newest turns, or all if those are a large part of the chat.

    Raises ``UsageError`` if there is too little in ``messages``, the shown branch.
    """
    system = [message for message in messages if message.role == "system"]
    said = [message for message in messages if message.role != "system"]
    before = last_summary(said)
    fresh = said if before is None else said[before + 1 :]  # keeps no message that an earlier summary replaces
    turns = [at for at, message in enumerate(fresh) if message.role == "user"]
    size = sum(len(message.content) for message in since_summary(said))
    start = len(fresh)
    for at in reversed(turns[-_KEPT_TURNS:]):
        if sum(len(message.content) for message in fresh[at:]) * _KEPT_SHARE <= size:
            start = at
    kept = fresh[start:]
    older = said[: len(said) - len(kept)]
    spoken = [message for message in since_summary(older) if message.content and not message.summary]
    if len(spoken) < 2:
        raise UsageError("there is too little in this chat to summarize.", "/compact is for longer chats.")
    return Compaction(system, older, kept, said[-1].id)


def asking(request: int, messages: list[Message], like: Generate, levels: Sequence[str]) -> Generate:
    """The request for a summary, with sampling and drafter ``like`` another one of the chat."""
    sampling = replace(like.sampling, reasoning="off" if "off" in levels else like.sampling.reasoning)
    return Generate(request, messages, sampling, like.drafter, _MOST_TOKENS, frame_ms=like.frame_ms, overflow="stop")
