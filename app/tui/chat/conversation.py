"""The open chat: its stored messages, what the next reply is generated with, and the requests to the engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from slipstream.app.chats.compaction import Compaction, asking, compaction
from slipstream.app.chats.images import AttachedImage
from slipstream.app.chats.messages import RemovedMessages
from slipstream.app.chats.recording import history, last_summary, turns
from slipstream.app.chats.records import StoredChat, StoredMessage, new_id
from slipstream.app.chats.store import ChatStore
from slipstream.app.protocol.events import Done, Loaded, check_size
from slipstream.app.protocol.requests import Generate, Load, Message, Prepare, Sampling, new_seed
from slipstream.app.settings.file import SettingsFile
from slipstream.app.settings.presets import FIELDS, led_by, suggested, values_of
from slipstream.app.settings.values import ReplySettings, Value
from slipstream.models.errors import UsageError

_SHOWN: Final = 300  # most tokens of a reply that shows guesses: a small model may repeat itself without end
FRAME = 40.0  # milliseconds between two events of a reply: 25 a second look smooth and cost little CPU time


@dataclass(frozen=True, slots=True)
class SamplingChoice:
    """How the next replies are sampled: the chat's own values over the model's advice over the settings."""

    settings: Sampling  # of the settings and the command line; the seed and ``typical`` have no other source
    chosen: Callable[[], Collection[str]] = frozenset  # the fields that these set; the advice leaves them alone
    advice: Mapping[str, float] = field(default_factory=dict)  # what the model's makers recommend, by field
    own: Mapping[str, Value] = field(default_factory=dict)  # the chat's own values, by field
    default: Sampling = field(init=False)  # what a chat without own values is sampled with
    effective: Sampling = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "default", suggested(self.settings, self.advice, self.chosen()))
        object.__setattr__(self, "effective", replace(self.default, **self.own))  # type: ignore[arg-type]

    @property
    def advised(self) -> dict[str, Value]:
        return values_of(self.default, self.settings)

    def with_settings(self, settings: Sampling) -> SamplingChoice:
        """Takes changed settings, which have no seed and no ``typical``."""
        return replace(self, settings=replace(settings, seed=self.settings.seed, typical=self.settings.typical))

    def with_seed(self, seed: int) -> SamplingChoice:
        return replace(self, settings=replace(self.settings, seed=seed))


@dataclass(frozen=True, slots=True)
class Exchange:
    """A question and the reply that is being generated."""

    asked: StoredMessage  # the user's message
    reply: StoredMessage
    generate: Generate  # the request
    shown: list[StoredMessage]  # the messages of the shown branch up to the reply, without the system message
    again: bool = False  # whether the question already had a reply
    before: StoredMessage | None = None  # the reply so far, if it is continued
    once: bool = False  # whether the drafter was chosen for this reply alone

    @property
    def new_writer(self) -> str:
        """The name of the reply's model if another one wrote the reply before, else empty."""
        for message in reversed(self.shown[:-1]):
            if message.writer:
                return self.reply.writer if message.writer != self.reply.writer else ""
        return ""


class Conversation:
    """A stored chat, or a new one that its first message stores. Raises ``SlipstreamError`` if storing fails."""

    def __init__(self, store: ChatStore, sampling: SamplingChoice, drafter: str, reply: ReplySettings) -> None:
        self._store = store
        self.sampling = sampling
        self.drafter = drafter  # of the next reply
        # what the last reading of the messages has found, or the end of a reply since then
        self.unfinished = False  # whether the last reply can be continued
        self.summarized: tuple[int, int] | None = None  # the first message behind the summary, and how many are before
        self._reply = reply
        self._new_system = reply.system  # system prompt of a new chat
        self.chat: StoredChat | None = None

    @property
    def exact(self) -> bool:
        return self.sampling.settings.typical is None

    def open(self, chat: str) -> None:
        self.chat = self._store.get(chat)
        own = {name: value for name, value in self._store.sampling(chat).items() if name in FIELDS}
        self.sampling = replace(self.sampling, own=own)

    def begin(self) -> None:
        self.chat = None
        self._new_system = self._reply.system
        self.sampling = replace(self.sampling, own={})

    def apply_settings(self, sampling: Sampling, reply: ReplySettings) -> None:
        if self.chat is None and self._new_system == self._reply.system:
            self._new_system = reply.system
        self._reply = reply
        self.sampling = self.sampling.with_settings(sampling)

    def take_advice(self, values: Mapping[str, float]) -> None:
        """Samples as a model's makers recommend, except where the user or the chat has values."""
        self.sampling = replace(self.sampling, advice=values)

    def sample(self, sampling: Sampling) -> None:
        self.sampling = replace(self.sampling, own=values_of(sampling, self.sampling.default))
        if self.chat:
            self._store.keep_sampling(self.chat.id, self.sampling.own)

    @property
    def system(self) -> str:
        if self.chat is None:
            return self._new_system
        return next((kept.content for kept in self._stored() if kept.role == "system"), "")

    def set_system(self, text: str) -> None:
        if self.chat is None:
            self._new_system = text
        else:
            self._store.set_system(self.chat.id, text)

    def messages(self) -> list[StoredMessage]:
        return self._spoken(self._stored())

    def _stored(self) -> list[StoredMessage]:
        return self._store.messages(self.chat.id) if self.chat else []

    def _spoken(self, stored: list[StoredMessage]) -> list[StoredMessage]:
        said = [message for message in stored if message.role != "system"]
        self.unfinished = bool(said) and said[-1].unfinished
        self.summarized, at = None, last_summary(said)
        if at is not None:
            first = max(0, at - said[at].keeps)
            self.summarized = said[first].id, sum(1 for message in said[:first] if not message.summary)
        return said

    def forks(self) -> dict[int, list[int]]:
        return self._store.forks(self.chat.id) if self.chat else {}

    def show(self, message: int) -> None:
        self._store.show(message)

    def remove(self, message: int) -> RemovedMessages:
        return self._store.remove(message)

    def put_back(self, removed: RemovedMessages) -> bool:
        here = self.chat is not None and self.chat.id == removed.chat
        if here:
            self._store.put_back(removed)
        return here

    def fork(self, message: int | None) -> str:
        """Stores a new chat with the shown messages up to one, or with all; returns its id.

        Raises:
            UsageError: If nothing was said yet.
        """
        said = self._stored()
        if self.chat is None or not said:
            raise UsageError("nothing was said yet; there is nothing to fork.", "")
        end = next((at for at, each in enumerate(said, 1) if each.id == message), len(said))
        now = time.time()
        fresh = replace(self.chat, id=new_id(), created=now, updated=now, pinned=False)
        line = [replace(each, parent=said[at - 1].id if at else None) for at, each in enumerate(said[:end])]
        (forked,) = self._store.add_chats([(fresh, [(each, 0) for each in line])])
        self._store.keep_sampling(forked.id, self.sampling.own)
        return forked.id

    def first_read(self, dropped: int) -> int | None:
        """The first message that stays in the context after so many turns were dropped; None if none does."""
        spoken = turns(self.messages())
        return spoken[dropped][0].id if dropped < len(spoken) else None

    def refused(self) -> str:
        """The last question, if the engine refused it; else empty."""
        return self._store.refused(self.chat.id) if self.chat else ""

    def ask(self, text: str, loaded: Loaded, beside: int | None = None, drafter: str = "") -> Exchange:
        """Stores a question and begins a reply; a ``ContextFullError`` stores nothing.

        Args:
            beside: The message that the question is a branch of, if any.
            drafter: The drafter of this reply alone; empty for the chat's.
        """
        check_size(text, loaded.token_bytes, loaded.n_ctx, loaded.n_ctx_longest)
        if self.chat is None:
            self.chat = self._store.create()
            self._store.keep_sampling(self.chat.id, self.sampling.own)
            if self._new_system:
                self._store.set_system(self.chat.id, self._new_system)
                self._new_system = ""
        self._store.add_user(self.chat.id, text, beside)
        self.chat = self._store.get(self.chat.id)
        return self._exchange(self._stored(), loaded, self.sampling.effective, drafter)

    def keep_image(self, image: AttachedImage) -> None:
        """Stores an image, which is deleted with the last message that refers to it."""
        self._store.images.keep(image.raw, image.facts.sha256)

    def ahead(self, chat: StoredChat | None, text: str, loaded: Loaded, beside: int | None = None) -> Prepare:
        """The request that prefills a message before it is sent; stores nothing. Thread-safe."""
        said = self._store.messages(chat.id) if chat else []
        numbers = [kept.id for kept in said]
        before = said[: numbers.index(beside)] if beside in numbers else said
        found = self._store.images.found
        messages = history(before, loaded.fingerprint, "" if chat else self._new_system, found)
        if messages and messages[-1].role == "user":  # ``history`` also joins them once the text is sent
            text = f"{messages.pop().content}\n\n{text}"
        state, reasoning = self._state(chat.id) if chat else None, self.sampling.effective.reasoning
        return Prepare([*messages, Message("user", text, images=found(text))], self.drafter, state, reasoning=reasoning)

    def last_asked(self, loaded: Loaded) -> list[Message]:
        """The messages up to the last question, without images; empty if nothing was asked yet."""
        said = self._stored()
        last = next((at for at in reversed(range(len(said))) if said[at].role == "user"), -1)
        return history(said[: last + 1], loaded.fingerprint)

    def ask_again(self, loaded: Loaded, message: int | None = None) -> Exchange | None:
        """Begins another reply, by default to the last question, with a new seed, as a branch; None without one."""
        said = self._stored()
        numbers = [kept.id for kept in said]
        if message in numbers:
            said = said[: numbers.index(message) + 1]
        while said and (said[-1].role != "user" or said[-1].summary):
            said.pop()
        if not said:
            return None
        sampling = replace(self.sampling.effective, seed=new_seed())
        return replace(self._exchange(said, loaded, sampling), again=True)

    def go_on(self, loaded: Loaded) -> Exchange | None:
        """Continues the last reply with its own seed, as if it had never stopped; None if it is finished."""
        said = self._stored()
        if len(said) < 2 or not said[-1].unfinished:
            return None
        model, fingerprint = loaded.title, loaded.fingerprint
        before = self._store.go_on(said[-1], model=model, fingerprint=fingerprint, drafter=self.drafter)
        sampling = self.sampling.effective
        if before.seed is not None:
            sampling = replace(sampling, seed=before.seed)
        if before.figures and before.figures.thoughts_closed >= 0:
            sampling = replace(sampling, reasoning_budget=before.figures.thoughts_closed)
        messages = history([*said[:-1], before], loaded.fingerprint, images=self._store.images.found)
        generate = self._generate(said[-1].chat, messages, sampling)
        if self.overflow == "compact":  # a summary would replace the reply that is continued
            generate = replace(generate, overflow="drop")
        shown = [*self._spoken(said[:-1]), before]
        return Exchange(said[-2], before, generate, shown, again=True, before=before)

    @property
    def overflow(self) -> str:
        return self._reply.overflow

    def compaction(self) -> Compaction:
        """The plan of a summary of the older messages; raises ``UsageError`` if there is too little to summarize."""
        return compaction(self._stored())

    def summary_of(self, plan: Compaction, loaded: Loaded) -> Callable[[Callable[[Generate], Done]], str]:
        """Returns a function that generates the summary; its argument generates a reply. See ``Compaction.summary``."""
        like = Generate(0, [], self.sampling.effective, self.drafter, frame_ms=FRAME)
        found = self._store.images.found

        def write(ask: Callable[[Generate], Done]) -> str:
            def part(messages: list[Message]) -> Done:
                return ask(asking(0, messages, like, loaded.reasoning))

            return plan.summary(part, loaded.fingerprint, found)

        return write

    def compact(self, done: Compaction, summary: str, loaded: Loaded) -> None:
        self._store.add_summary(done.chat, done.parent, summary, len(done.kept), loaded.fingerprint)

    def undo_compact(self) -> bool:
        said = self.messages()
        at = last_summary(said)
        if at is not None:
            self._store.remove_summary(said[at].id)
        return at is not None

    def withdraw(self, exchange: Exchange) -> None:
        if not exchange.again:
            self._store.withdraw(exchange.asked.id)

    def _exchange(self, said: list[StoredMessage], loaded: Loaded, sampling: Sampling, drafter: str = "") -> Exchange:
        asked = said[-1]
        title, mark, name = loaded.title, loaded.fingerprint, drafter or self.drafter
        reply = self._store.begin_reply(
            asked.chat, model=title, fingerprint=mark, drafter=name, seed=sampling.seed, parent=asked.id
        )
        messages = history(said, loaded.fingerprint, images=self._store.images.found)
        generate = self._generate(asked.chat, messages, sampling, drafter)
        return Exchange(asked, reply, generate, [*self._spoken(said), reply], once=bool(drafter))

    def _generate(self, chat: str, messages: list[Message], sampling: Sampling, drafter: str = "") -> Generate:
        return Generate(
            0,  # ``EngineService`` numbers the requests
            messages,
            sampling,
            drafter or self.drafter,
            min(self._reply.max_tokens or _SHOWN, _SHOWN) if drafter else self._reply.max_tokens,
            state=self._state(chat),
            frame_ms=FRAME,
            overflow="drop" if self.overflow == "drop" else "stop",
        )

    def _state(self, chat: str) -> str | None:
        """The file of the chat's KV cache, which saves the prefill when the chat is opened."""
        state = self._store.state(chat)
        return str(state) if state else None


def opened(store: ChatStore, load: Load, sampling: Sampling, settings: SettingsFile, chat: str | None) -> Conversation:
    """The chat that the program begins with; a sampling other than the file's is the command line's, and prevails."""
    choice = SamplingChoice(sampling, lambda: settings.chosen)
    conversation = Conversation(store, choice, load.drafter, led_by(settings.settings.reply))
    if chat:
        conversation.open(chat)
    if values_of(sampling, settings.kept.sampling.sampling(seed=0)):
        conversation.sampling = choice
    return conversation
