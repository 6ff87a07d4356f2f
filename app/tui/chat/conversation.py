"""The open chat: its stored messages, and the requests to the engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from slipstream.app.chats.compaction import Compaction, asking, compaction
from slipstream.app.chats.images import AttachedImage
from slipstream.app.chats.recording import history, last_summary, turns
from slipstream.app.chats.records import StoredChat, StoredMessage
from slipstream.app.chats.store import ChatStore
from slipstream.app.protocol.events import Done, Loaded, check_size
from slipstream.app.protocol.requests import Generate, Message, Prepare, Sampling, new_seed
from slipstream.app.settings.presets import FIELDS, suggested, values_of
from slipstream.app.settings.values import ReplySettings, Value

FRAME = 40.0
"""Milliseconds between two events of a reply: 25 a second look smooth and cost little CPU time."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A question and the reply that is being generated."""

    asked: StoredMessage  # the user's message
    reply: StoredMessage
    generate: Generate  # the request
    again: bool = False  # whether the question already had a reply
    before: StoredMessage | None = None  # the reply so far, if it is continued


class Conversation:
    """A stored chat, or a new one that its first message stores. Raises ``SlipstreamError`` if storing fails."""

    def __init__(
        self,
        store: ChatStore,
        sampling: Sampling,
        chat: str | None = None,
        reply: ReplySettings | None = None,
        asked: bool = False,
        chosen: Callable[[], Collection[str]] = frozenset,
    ) -> None:
        """Opens a chat.

        Args:
            sampling: The default sampling, for chats without their own.
            chat: The chat; None for a new one.
            asked: Whether ``sampling`` comes from the command line and overrides the chat's own.
            chosen: Returns the fields of ``sampling`` that the user has set; they override what the model recommends.
        """
        self._store = store
        self._settled, self._chosen, self._asked = sampling, chosen, asked
        self._suggested: Mapping[str, float] = {}
        self.sampling = sampling  # sampling of the next replies
        self.usual = sampling  # default sampling, with the model's recommended values
        self._reply = reply or ReplySettings()
        self._new_system = self._reply.system  # system prompt of a new chat
        self.chat: StoredChat | None = store.get(chat) if chat else None
        if not asked:
            self._draw_as_kept()

    @property
    def exact(self) -> bool:
        """Whether drafting leaves the output unchanged."""
        return self.sampling.typical is None

    def open(self, chat: str) -> None:
        self.chat = self._store.get(chat)
        self._asked = False
        self._draw_as_kept()

    def begin(self) -> None:
        """Switches to a new chat, which is stored with its first message."""
        self.chat = None
        self._new_system = self._reply.system
        self._asked = False
        self._draw_as_kept()

    def settle(self, sampling: Sampling, reply: ReplySettings) -> None:
        """Applies changed settings; the chat's own values stay."""
        if self.chat is None and self._new_system == self._reply.system:
            self._new_system = reply.system
        self._reply = reply
        self._settled = dataclasses.replace(sampling, seed=self.usual.seed, typical=self.usual.typical)
        self._draw_anew()

    def suggest(self, values: Mapping[str, float]) -> None:
        """Applies the sampling that a model recommends, except where the user or the chat has values.

        Args:
            values: Recommended values by field of ``Sampling``.
        """
        self._suggested = values
        self._draw_anew()

    @property
    def suggested(self) -> dict[str, Value]:
        """The default values that the model recommended."""
        return values_of(self.usual, self._settled)

    def _draw_anew(self) -> None:
        """Computes the default sampling again; the chat's own values stay."""
        own = values_of(self.sampling, self.usual)
        self.usual = suggested(self._settled, self._suggested, self._chosen())
        self.sampling = dataclasses.replace(self.usual, seed=self.sampling.seed, **own)  # type: ignore[arg-type]
        if self.chat and not self._asked:
            self._draw_as_kept()

    @property
    def system(self) -> str:
        if self.chat is None:
            return self._new_system
        return next((kept.content for kept in self._store.messages(self.chat.id) if kept.role == "system"), "")

    def set_system(self, text: str) -> None:
        """Sets the chat's system prompt; an empty one removes it."""
        if self.chat is None:
            self._new_system = text
        else:
            self._store.set_system(self.chat.id, text)

    def draw(self, sampling: Sampling) -> None:
        """Sets the sampling of the next replies, and stores it with the chat."""
        self.sampling = sampling
        if self.chat:
            self._store.keep_sampling(self.chat.id, values_of(sampling, self.usual))

    def _draw_as_kept(self) -> None:
        kept = self._store.sampling(self.chat.id) if self.chat else {}
        values = {name: value for name, value in kept.items() if name in FIELDS}
        self.sampling = dataclasses.replace(self.usual, seed=self.sampling.seed, **values)  # type: ignore[arg-type]

    def messages(self) -> list[StoredMessage]:
        """The messages, oldest first, without the system message."""
        kept = self._store.messages(self.chat.id) if self.chat else []
        return [message for message in kept if message.role != "system"]

    def forks(self) -> dict[int, list[int]]:
        """The messages with alternatives, see ``ChatStore.forks``."""
        return self._store.forks(self.chat.id) if self.chat else {}

    def show(self, message: int) -> None:
        """Switches to the branch of a message."""
        self._store.show(message)

    def first_read(self, dropped: int) -> int | None:
        """The first message that stays in the context after the oldest were dropped; None if none stays.

        Args:
            dropped: Number of dropped messages; messages that are joined into one for the model count as one.
        """
        spoken = turns(self.messages())
        return spoken[dropped][0].id if dropped < len(spoken) else None

    def refused(self) -> str:
        """The last question, if the engine refused it; else empty."""
        return self._store.refused(self.chat.id) if self.chat else ""

    def ask(self, text: str, loaded: Loaded, drafter: str, request: int, beside: int | None = None) -> Turn:
        """Stores a question and begins a reply.

        Args:
            beside: The message that this one replaces; it is kept as a branch.

        Raises:
            ContextFullError: If the text does not fit the context; nothing is stored then.
        """
        check_size(text, loaded.token_bytes, loaded.n_ctx, loaded.n_ctx_longest)
        if self.chat is None:
            self.chat = self._store.create()
            self._store.keep_sampling(self.chat.id, values_of(self.sampling, self.usual))
            if self._new_system:
                self._store.set_system(self.chat.id, self._new_system)
                self._new_system = ""
        self._store.add_user(self.chat.id, text, beside)
        self.chat = self._store.get(self.chat.id)
        return self._turn(self._store.messages(self.chat.id), loaded, drafter, request, self.sampling)

    def keep_image(self, image: AttachedImage) -> None:
        """Stores an image, which is deleted with the last message that refers to it.

        Raises:
            SlipstreamError: If writing fails.
        """
        self._store.images.keep(image.raw, image.facts.sha256)

    def ahead(
        self, chat: StoredChat | None, text: str, loaded: Loaded, drafter: str, beside: int | None = None
    ) -> Prepare:
        """The request that prefills a message before it is sent; stores nothing. Thread-safe.

        Args:
            chat: The chat, or None for a new one.
            beside: See ``ask``.
        """
        said = self._store.messages(chat.id) if chat else []
        numbers = [kept.id for kept in said]
        before = said[: numbers.index(beside)] if beside in numbers else said
        found = self._store.images.found
        messages = history(before, loaded.fingerprint, "" if chat else self._new_system, found)
        if messages and messages[-1].role == "user":  # ``history`` also joins them once the text is sent
            text = f"{messages.pop().content}\n\n{text}"
        state, reasoning = self._state(chat.id) if chat else None, self.sampling.reasoning
        return Prepare([*messages, Message("user", text, images=found(text))], drafter, state, reasoning=reasoning)

    def ask_again(self, loaded: Loaded, drafter: str, request: int, message: int | None = None) -> Turn | None:
        """Begins another reply with a new seed; the previous one is kept as a branch.

        Args:
            message: The question, or the reply to it; None for the last question.

        Returns:
            The turn, or None if there is no question.
        """
        said = self._store.messages(self.chat.id) if self.chat else []
        numbers = [kept.id for kept in said]
        if message in numbers:
            said = said[: numbers.index(message) + 1]
        while said and (said[-1].role != "user" or said[-1].summary):
            said.pop()
        if not said:
            return None
        sampling = dataclasses.replace(self.sampling, seed=new_seed())
        return dataclasses.replace(self._turn(said, loaded, drafter, request, sampling), again=True)

    @property
    def unfinished(self) -> bool:
        said = self._store.messages(self.chat.id) if self.chat else []
        return bool(said) and said[-1].unfinished

    def go_on(self, loaded: Loaded, drafter: str, request: int) -> Turn | None:
        """Continues the last reply with its own seed, as if it had never stopped.

        Returns:
            The turn, or None if the last reply is finished.
        """
        said = self._store.messages(self.chat.id) if self.chat else []
        if len(said) < 2 or not said[-1].unfinished:
            return None
        before = self._store.go_on(said[-1], model=loaded.title, fingerprint=loaded.fingerprint, drafter=drafter)
        sampling = self.sampling if before.seed is None else dataclasses.replace(self.sampling, seed=before.seed)
        if before.figures and before.figures.thoughts_closed >= 0:
            sampling = dataclasses.replace(sampling, reasoning_budget=before.figures.thoughts_closed)
        messages = history([*said[:-1], before], loaded.fingerprint, images=self._store.images.found)
        generate = self._generate(said[-1].chat, request, messages, sampling, drafter)
        if self.overflow == "compact":  # a summary would replace the reply that is continued
            generate = dataclasses.replace(generate, overflow="drop")
        return Turn(said[-2], before, generate, again=True, before=before)

    @property
    def overflow(self) -> str:
        """The policy for a chat that exceeds the context, see ``ReplySettings``."""
        return self._reply.overflow

    def compaction(self) -> Compaction:
        """The plan of a summary of the older messages.

        Raises:
            UsageError: If there is too little to summarize.
        """
        return compaction(self._store.messages(self.chat.id) if self.chat else [])

    def summary_of(
        self, plan: Compaction, loaded: Loaded, drafter: str, next_request: Callable[[], int]
    ) -> Callable[[Callable[[Generate], Done]], str]:
        """Returns a function that generates the summary; its argument generates a reply. See ``Compaction.summary``."""
        sampling, found = self.sampling, self._store.images.found

        def write(ask: Callable[[Generate], Done]) -> str:
            def part(messages: list[Message]) -> Done:
                request = next_request()
                like = Generate(request, [], sampling, drafter, frame_ms=FRAME)
                return ask(asking(request, messages, like, loaded.reasoning))

            return plan.summary(part, loaded.fingerprint, found)

        return write

    def compact(self, done: Compaction, summary: str, loaded: Loaded) -> None:
        """Replaces the older messages by a summary."""
        self._store.add_summary(done.chat, done.parent, summary, len(done.kept), loaded.fingerprint)

    def undo_compact(self) -> bool:
        """Removes the last summary of the shown branch; returns whether there was one."""
        said = self.messages()
        at = last_summary(said)
        if at is not None:
            self._store.remove_summary(said[at].id)
        return at is not None

    def summarized(self) -> tuple[int, int] | None:
        """The first message that is not summarized, and the number of summarized messages before it."""
        said = self.messages()
        at = last_summary(said)
        if at is None:
            return None
        first = max(0, at - said[at].keeps)
        return said[first].id, sum(1 for message in said[:first] if not message.summary)

    def withdraw(self, turn: Turn) -> None:
        """Removes a question that the engine refused."""
        if not turn.again:
            self._store.withdraw(turn.asked.id)

    def _turn(self, said: list[StoredMessage], loaded: Loaded, drafter: str, request: int, sampling: Sampling) -> Turn:
        """Begins a reply to the last of the messages."""
        asked = said[-1]
        reply = self._store.begin_reply(
            asked.chat,
            model=loaded.title,
            fingerprint=loaded.fingerprint,
            drafter=drafter,
            seed=sampling.seed,
            parent=asked.id,
        )
        messages = history(said, loaded.fingerprint, images=self._store.images.found)
        return Turn(asked, reply, self._generate(asked.chat, request, messages, sampling, drafter))

    def _generate(self, chat: str, request: int, messages: list[Message], sampling: Sampling, drafter: str) -> Generate:
        most = self._reply.max_tokens
        return Generate(
            request,
            messages,
            sampling,
            drafter,
            most,
            state=self._state(chat),
            frame_ms=FRAME,
            overflow="drop" if self.overflow == "drop" else "stop",
        )

    def _state(self, chat: str) -> str | None:
        """The file of the chat's KV cache, which saves the prefill when the chat is opened."""
        state = self._store.state(chat)
        return str(state) if state else None
