"""Replaces the older messages of a chat by a summary that the model writes; the messages themselves stay stored.

A summary is a message of the chat, after the messages that it stands for and the few newest ones that the model still
reads as they are. It remembers how many those are. Taking it out again brings everything back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from slipstream.app.chats.reasoning import begins_inside, split
from slipstream.app.chats.recording import LEAD, history, last_summary, merged, since_summary
from slipstream.app.chats.records import StoredMessage
from slipstream.app.protocol import Done, Generate, Message
from slipstream.models.errors import ContextFullError, SlipstreamError, UsageError

ASKED: Final = (
    "Summarize our conversation so far, in its language, for yourself: your summary will stand in its place. Keep "
    "what we will need: what I want, facts, names, numbers, decisions, code that is still in use, and what is open. "
    "Write only the summary, in at most 300 words."
)
_KEPT_TURNS: Final = 2  # questions with their replies that stay as they are
_KEPT_SHARE: Final = 4  # they may have this part of the chat's characters at most
_MOST_TOKENS: Final = 1024  # of a summary, thoughts included

Ask = Callable[[list[Message]], Done]


@dataclass(frozen=True, slots=True)
class Compaction:
    """What is summarized, and what stays."""

    system: list[StoredMessage]
    older: list[StoredMessage]  # what the summary stands for
    kept: list[StoredMessage]  # what the model reads after it, as it is
    parent: int  # the message that the summary follows

    @property
    def chat(self) -> str:
        return self.older[0].chat

    @property
    def count(self) -> int:
        """How many messages the summary stands for, earlier summaries left out."""
        return sum(not message.summary for message in self.older)

    def summary(self, ask: Ask, fingerprint: str, images: Callable[[str], dict[str, str]] = lambda _: {}) -> str:
        """Has the summary written, in parts where the messages do not fit the context together.

        Args:
            ask: Has a reply to some messages written; it refuses what does not fit by ``ContextFullError``.
            fingerprint: Of the model.
            images: See ``history``.

        Returns:
            The summary; empty if it was stopped.

        Raises:
            SlipstreamError: If it cannot be written; nothing has changed.
        """
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
    """Chooses what of a chat is summarized: all but the newest turns, where those are not most of it.

    Args:
        messages: The shown branch, oldest first.

    Raises:
        UsageError: If there is too little to summarize.
    """
    system = [message for message in messages if message.role == "system"]
    said = [message for message in messages if message.role != "system"]
    before = last_summary(said)
    fresh = said if before is None else said[before + 1 :]  # a summary keeps nothing that an earlier one stands for
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
    """The request for a summary.

    Args:
        like: A request of the chat, for its sampling and drafter.
        levels: The levels of reasoning that the model has.
    """
    sampling = replace(like.sampling, reasoning="off" if "off" in levels else like.sampling.reasoning)
    return Generate(request, messages, sampling, like.drafter, _MOST_TOKENS, frame_ms=like.frame_ms, overflow="stop")
