"""The chat on the screen: what is kept of it, and what the engine is asked next."""

from __future__ import annotations

import dataclasses
import secrets
from dataclasses import dataclass

from slipstream.app.chats.history import history
from slipstream.app.chats.records import StoredChat, StoredMessage
from slipstream.app.chats.store import ChatStore
from slipstream.app.engine.protocol import Loaded
from slipstream.app.engine.requests import Generate, Sampling

FRAME = 33.0
"""Milliseconds between two pictures of a reply: what comes faster nobody sees."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A question on its way.

    Attributes:
        asked: The user's message.
        reply: The reply that begins.
        generate: What the engine is asked.
        again: Whether the question had a reply before.
    """

    asked: StoredMessage
    reply: StoredMessage
    generate: Generate
    again: bool = False


class Conversation:
    """One chat of the store, or one that begins with its first message."""

    def __init__(self, store: ChatStore, sampling: Sampling, chat: str | None = None) -> None:
        """Opens a chat.

        Raises:
            UsageError: If there is no such chat.
        """
        self._store = store
        self._sampling = sampling
        self.chat: StoredChat | None = store.get(chat) if chat else None

    @property
    def exact(self) -> bool:
        """Whether the text is the model's own, whatever drafts."""
        return self._sampling.typical is None

    def open(self, chat: str) -> None:
        """Goes to another chat.

        Raises:
            UsageError: If there is no such chat.
        """
        self.chat = self._store.get(chat)

    def begin(self) -> None:
        """Goes to a new chat, which is kept once something is said in it."""
        self.chat = None

    def messages(self) -> list[StoredMessage]:
        """What was said, oldest first, without the system message."""
        kept = self._store.messages(self.chat.id) if self.chat else []
        return [message for message in kept if message.role != "system"]

    def refused(self) -> str:
        """What the user said last, if the engine refused it; else empty."""
        return self._store.refused(self.chat.id) if self.chat else ""

    def ask(self, text: str, loaded: Loaded, drafter: str, request: int) -> Turn:
        """Keeps what the user said, and begins a reply.

        Raises:
            SlipstreamError: If it cannot be kept.
        """
        if self.chat is None:
            self.chat = self._store.create()
        asked = self._store.add_user(self.chat.id, text)
        self.chat = self._store.get(self.chat.id)
        return self._turn(asked, self._store.messages(self.chat.id), loaded, drafter, request)

    def ask_again(self, loaded: Loaded, drafter: str, request: int, same_seed: bool = False) -> Turn | None:
        """Begins another reply to the last question; the one before stays kept as a branch.

        Args:
            loaded: The model.
            drafter: Who drafts.
            request: Number of the request.
            same_seed: Whether it is to be the same reply, which did not come; else it gets a seed of its own.

        Returns:
            The turn, or None where nothing was asked yet.

        Raises:
            SlipstreamError: If it cannot be kept.
        """
        said = self._store.messages(self.chat.id) if self.chat else []
        while said and said[-1].role != "user":
            said.pop()
        if not said:
            return None
        turn = self._turn(
            said[-1], said, loaded, drafter, request, seed=None if same_seed else secrets.randbelow(1 << 31)
        )
        return dataclasses.replace(turn, again=True)

    def withdraw(self, turn: Turn) -> None:
        """Takes a question that the engine refused out of the chat."""
        if not turn.again:
            self._store.withdraw(turn.asked.id)

    def _turn(
        self,
        asked: StoredMessage,
        said: list[StoredMessage],
        loaded: Loaded,
        drafter: str,
        request: int,
        seed: int | None = None,
    ) -> Turn:
        sampling = self._sampling if seed is None else dataclasses.replace(self._sampling, seed=seed)
        reply = self._store.begin_reply(
            asked.chat,
            model=loaded.name,
            fingerprint=loaded.fingerprint,
            drafter=drafter,
            seed=sampling.seed,
            parent=asked.id,
        )
        messages = history(said, loaded.fingerprint)
        return Turn(asked, reply, Generate(request, messages, sampling, drafter, frame_ms=FRAME))
