"""The values of the chat store, and the tree of a chat's branches."""

from __future__ import annotations

import json
import os
import re
import struct
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from typing import Any, Literal

from slipstream.app.protocol.events import Done, Origin
from slipstream.app.speed import Speed

MESSAGE_COLUMNS = "id, chat, parent, role, content, tokens, model, status, drafter, seed, speed, reason, created"
ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # no i, l, o, u: nothing to misread
ID_LENGTH = 6
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")  # a valid id of a chat; its kept state is a file of that name
SUMMARY = "summary"  # prefix of a summary's ``reason``; the number of messages that it keeps follows
UNFINISHED = ("cancelled", "length", "context")  # reasons that cut a reply short
MESSAGE_LIMIT = 10_000_000  # maximum characters of an imported message; no model reads more
TITLE_LIMIT = 200  # maximum characters of a title; a longer one is cut when it is imported or read
Status = Literal["streaming", "done", "interrupted", "failed"]
"""A reply is being written, complete, cut off, or refused by the engine. A user's message is "done" or "failed"."""

_MOST_DIGITS = 9


@dataclass(frozen=True, slots=True)
class StoredChat:
    """A chat in the list."""

    id: str  # short readable name, such as "k3f9ab"
    title: str  # first words of the first message, or a title given by the user
    created: float  # seconds since 1970
    updated: float  # time of its newest message
    model: str  # name of the model that replied last, or empty
    pinned: bool = False  # whether it stays on top of the list


Run = tuple[int, Origin, str]  # number of characters, their origin, and their drafter, or empty


def joined_runs(runs: Iterable[Run]) -> list[Run]:
    """Merges neighbouring runs of the same origin and drafter."""
    found: list[Run] = []
    for size, origin, source in runs:
        if found and found[-1][1:] == (origin, source):
            found[-1] = (found[-1][0] + size, origin, source)
        elif size:
            found.append((size, origin, source))
    return found


@dataclass(frozen=True, slots=True)
class Figures:
    """Speed and acceptance of a reply; the fields are those of ``protocol.events.Done``."""

    speed: Speed = field(default_factory=Speed)
    by_depth: list[list[int]] = field(default_factory=list)
    by_drafter: dict[str, dict[str, int]] = field(default_factory=dict)
    prompt_tokens: int = 0
    prefilled_tokens: int = 0
    dropped_messages: int = 0
    ttft_ms: float = 0.0
    exact: bool = True
    dropped_tokens: int = 0
    drafter_depths: dict[str, list[list[int]]] = field(default_factory=dict)
    origins: list[Run] = field(default_factory=list)  # origins of consecutive stretches of the text
    thoughts_closed: int = -1  # as in ``protocol.events.Done``

    @staticmethod
    def of(done: Done) -> Figures:
        return Figures(
            done.speed,
            done.by_depth,
            done.by_drafter,
            done.prompt_tokens,
            done.prefilled_tokens,
            done.dropped_messages,
            done.ttft_ms,
            done.exact,
            done.dropped_tokens,
            done.drafter_depths,
            thoughts_closed=done.thoughts_closed,
        )

    def packed(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    def followed_by(self, rest: Figures) -> Figures:
        """Combines the figures of a reply's first part with those of its continuation."""
        return Figures(
            _joined(self.speed, rest.speed),
            _deeper(self.by_depth, rest.by_depth),
            _added(self.by_drafter, rest.by_drafter),
            self.prompt_tokens or rest.prompt_tokens,
            self.prefilled_tokens + rest.prefilled_tokens,
            max(self.dropped_messages, rest.dropped_messages),
            self.ttft_ms or rest.ttft_ms,
            self.exact and rest.exact,
            max(self.dropped_tokens, rest.dropped_tokens),
            {
                name: _deeper(self.drafter_depths.get(name, []), rest.drafter_depths.get(name, []))
                for name in self.drafter_depths | rest.drafter_depths
            },
            [*self.origins, *rest.origins],
            self.thoughts_closed if self.thoughts_closed >= 0 else rest.thoughts_closed,
        )

    @staticmethod
    def unpacked(text: str) -> Figures | None:
        """Reads ``packed`` back, ignoring fields of other versions; None for an empty text."""
        fields: dict[str, Any] = json.loads(text) if text else {}
        if not fields:
            return None
        known = {name: value for name, value in fields.items() if name in Figures.__slots__}
        speed = {name: value for name, value in known.pop("speed", {}).items() if name in Speed.__slots__}
        known["origins"] = [(int(size), origin, source) for size, origin, source in known.get("origins", [])]
        return Figures(speed=Speed(**speed), **known)


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message of a chat."""

    id: int  # its number
    chat: str
    # the message that it answers or follows, or None for the first; two children of one message are two branches
    parent: int | None
    role: str  # "system", "user" or "assistant"
    content: str  # its raw text, not cleaned for a screen
    tokens: list[int]  # token ids of a reply, valid only for the model of this fingerprint
    model: str  # fingerprint of the model that wrote it
    status: Status
    drafter: str  # the drafter, "none" for plain decoding; empty for a user's message
    seed: int | None  # seed of the reply, or None
    figures: Figures | None  # speed and acceptance, or None until the reply is over
    reason: str  # why the reply ended, as in ``protocol.events.Done``, or empty
    created: float  # seconds since 1970

    @property
    def summary(self) -> bool:
        """Whether it replaces messages before it, see ``compaction``."""
        return self.role == "user" and self.reason.startswith(SUMMARY)

    @property
    def keeps(self) -> int:
        """The number of messages directly before a summary that it does not replace."""
        count = self.reason.removeprefix(SUMMARY).strip()
        return int(count) if count.isascii() and count.isdigit() and len(count) < _MOST_DIGITS else 0

    @property
    def unfinished(self) -> bool:
        """Whether it is a reply that was cut short and can be continued."""
        return self.role == "assistant" and (self.status == "interrupted" or self.reason in UNFINISHED)


def _joined(first: Speed, second: Speed) -> Speed:
    timed, steps = first.timed + second.timed, first.steps + second.steps
    drafted, accepted = first.drafted + second.drafted, first.accepted + second.accepted
    seconds = first.seconds + second.seconds
    parts = [part for part in (first, second) if part.timed]
    plain = [part.timed / part.plain_tok_per_s for part in parts if part.plain_tok_per_s]
    return Speed(
        tok_per_s=timed / seconds if seconds else 0.0,
        acceptance=accepted / drafted if drafted else None,
        tokens_per_step=timed / steps if steps else 0.0,
        plain_tok_per_s=timed / sum(plain) if plain and len(plain) == len(parts) else None,
        busy=first.busy or second.busy,
        drafted=drafted,
        accepted=accepted,
        steps=steps,
        tokens=first.tokens + second.tokens,
        earlier=first.earlier + second.earlier,
        thought=first.thought + second.thought,
        thought_ms=first.thought_ms + second.thought_ms,
    )


def _added(first: dict[str, dict[str, int]], second: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    counts = {name: dict(count) for name, count in first.items()}
    for name, count in second.items():
        own = counts.setdefault(name, {})
        for key, value in count.items():
            own[key] = own.get(key, 0) + value
    return counts


def _deeper(first: list[list[int]], second: list[list[int]]) -> list[list[int]]:
    both = zip_longest(first, second, fillvalue=[0, 0])
    return [[a + b for a, b in zip(*pair, strict=True)] for pair in both]


def pack_tokens(tokens: list[int]) -> bytes:
    """Packs each token into four bytes, little-endian."""
    return struct.pack(f"<{len(tokens)}i", *tokens)


def unpack_tokens(blob: bytes) -> list[int]:
    """Reads ``pack_tokens`` back, without an incomplete last token."""
    whole = len(blob) // 4
    return list(struct.unpack(f"<{whole}i", blob[: whole * 4]))


def message_of_row(row: tuple[Any, ...]) -> StoredMessage:
    number, chat, parent, role, content, tokens, model, status, drafter, seed, speed, reason, created = row
    return StoredMessage(
        id=number,
        chat=chat,
        parent=parent,
        role=role,
        content=content,
        tokens=unpack_tokens(tokens),
        model=model,
        status=status,
        drafter=drafter,
        seed=int(seed) if seed else None,
        figures=Figures.unpacked(speed),
        reason=reason,
        created=created,
    )


def row_of_message(message: StoredMessage) -> tuple[Any, ...]:
    return (
        message.id,
        message.chat,
        message.parent,
        message.role,
        storable(message.content),
        pack_tokens(message.tokens),
        message.model,
        message.status,
        message.drafter,
        "" if message.seed is None else str(message.seed),
        message.figures.packed() if message.figures else "",
        message.reason,
        message.created,
    )


def storable(text: str) -> str:
    """Replaces lone surrogates: UTF-8 cannot encode them, so the whole write would fail."""
    return text.encode("utf-8", "replace").decode("utf-8")


def bounded(title: str) -> str:
    """A title cut to ``TITLE_LIMIT``."""
    return title if len(title) <= TITLE_LIMIT else title[: TITLE_LIMIT - 1] + "…"


def readable(raw: bytes) -> str:
    """Decodes a text of the database; invalid bytes become replacement characters."""
    return raw.decode("utf-8", "replace")


def new_id() -> str:
    return "".join(ALPHABET[byte % len(ALPHABET)] for byte in os.urandom(ID_LENGTH))  # unbiased: 256 % 32 is 0


class Tree:
    """The branches of a chat, as message numbers; of several siblings, the one picked last is shown."""

    def __init__(self, nodes: Iterable[tuple[int, int | None, int]]) -> None:
        """``nodes`` are ``(number, parent, picked)`` of every message, without refused ones, in order of the number."""
        self._children: dict[int | None, list[int]] = defaultdict(list)
        self._parent: dict[int, int | None] = {}
        self._picked: dict[int, int] = {}
        for number, parent, picked in nodes:
            self._children[parent].append(number)
            self._parent[number] = parent
            self._picked[number] = picked

    def shown(self) -> list[int]:
        """The shown branch, from the first message on."""
        branch: list[int] = []
        at: int | None = None
        while siblings := self._children.get(at):
            at = max(siblings, key=lambda number: (self._picked[number], number))
            branch.append(at)
        return branch

    def siblings(self, message: int) -> list[int]:
        """The message and its siblings, oldest first."""
        return self._children[self._parent[message]]

    def above(self, message: int) -> list[int]:
        """The message and its ancestors, the chat's first message last; empty if it is not in the tree."""
        branch: list[int] = []
        at: int | None = message
        while at is not None and at in self._parent:
            branch.append(at)
            at = self._parent[at]
        return branch
