"""The values of the chat store, and the tree of a chat's branches.

Values from the file or an export are checked where they become objects: other programs and failing disks write them,
too. A bad value costs only itself.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import zip_longest
from typing import Any, Final, Literal, TypeGuard, get_args

from slipstream.app.protocol.events import Done, Origin
from slipstream.app.speed import Speed

MESSAGE_COLUMNS = (
    "id, chat, parent, role, content, tokens, model, status, drafter, seed, speed, reason, created, writer"
)
ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # no i, l, o, u: nothing to misread
ID_LENGTH = 6
readable: Final = partial(str, encoding="utf-8", errors="replace")  # decodes a text of the database
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")  # a valid id of a chat; its kept state is a file of that name
SUMMARY = "summary"  # prefix of a summary's ``reason``; the number of messages that it keeps follows
UNFINISHED = ("cancelled", "length", "context")  # reasons that cut a reply short
MESSAGE_LIMIT = 10_000_000  # maximum characters of an imported message; no model reads more
TITLE_LIMIT = 200  # maximum characters of a title; a longer one is cut when it is imported or read
TOKEN_LIMIT = 1 << 31
ROLES = ("system", "user", "assistant")
Status = Literal["streaming", "done", "interrupted", "failed"]
"""A reply is being written, complete, cut off, or refused by the engine. A user's message is "done" or "failed"."""
Run = tuple[int, Origin, str]  # number of characters, their origin, and their drafter, or empty
_PROMISES: Final = ("same_text", "same_odds", "", "changed")  # the weakest last, unknown before typical acceptance
_MOST_DIGITS: Final = 9
_NEWEST: Final = 253e9  # seconds since 1970; later times are after the year 9999, which no calendar here can show
_MOST_PICKS: Final = 1 << 53
_NAME_LIMIT: Final = 100  # characters of a drafter's name
_COUNTS: Final = ("prompt_tokens", "prefilled_tokens", "dropped_messages", "dropped_tokens", "ttft_ms")
_SPEED: Final = tuple(name for name in Speed.__slots__ if name != "busy")


@dataclass(frozen=True, slots=True)
class StoredChat:
    id: str  # short readable name, such as "k3f9ab"
    title: str  # first words of the first message, or a title given by the user
    created: float  # seconds since 1970
    updated: float  # time of its newest message
    model: str  # name of the model that replied last, or empty
    pinned: bool = False  # whether it stays on top of the list


def joined_runs(runs: Iterable[Run]) -> list[Run]:
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
    promise: str = ""  # as in ``protocol.events.Done``; empty if unknown
    dropped_tokens: int = 0
    drafter_depths: dict[str, list[list[int]]] = field(default_factory=dict)
    origins: list[Run] = field(default_factory=list)  # origins of consecutive stretches of the text
    thoughts_closed: int = -1  # as in ``protocol.events.Done``

    @staticmethod
    def of(done: Done) -> Figures:
        return Figures(**{name: getattr(done, name) for name in Figures.__slots__ if name != "origins"})

    def packed(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    def followed_by(self, rest: Figures) -> Figures:
        return Figures(
            speed=_joined(self.speed, rest.speed),
            by_depth=deeper(self.by_depth, rest.by_depth),
            by_drafter=_added(self.by_drafter, rest.by_drafter),
            prompt_tokens=self.prompt_tokens or rest.prompt_tokens,
            prefilled_tokens=self.prefilled_tokens + rest.prefilled_tokens,
            dropped_messages=max(self.dropped_messages, rest.dropped_messages),
            ttft_ms=self.ttft_ms or rest.ttft_ms,
            promise=max(self.promise, rest.promise, key=_PROMISES.index),
            dropped_tokens=max(self.dropped_tokens, rest.dropped_tokens),
            drafter_depths={
                name: deeper(self.drafter_depths.get(name, []), rest.drafter_depths.get(name, []))
                for name in self.drafter_depths | rest.drafter_depths
            },
            origins=[*self.origins, *rest.origins],
            thoughts_closed=self.thoughts_closed if self.thoughts_closed >= 0 else rest.thoughts_closed,
        )

    @staticmethod
    def unpacked(text: object) -> Figures | None:
        try:
            return Figures.of_values(json.loads(text)) if isinstance(text, str) and text else None
        except (ValueError, RecursionError):
            return None

    @staticmethod
    def of_values(values: Any) -> Figures | None:
        """Figures of a file; ignores fields of other versions. None if the types are not those of this one."""
        if not isinstance(values, dict) or not isinstance(values.get("speed"), dict):
            return None
        speed = {name: value for name in _SPEED if (value := values["speed"].get(name)) is not None}
        counts = {name: values.get(name, 0) for name in _COUNTS}
        depths, drafters = values.get("by_depth", []), values.get("by_drafter", {})
        drafter_depths, closed = values.get("drafter_depths", {}), values.get("thoughts_closed", -1)
        # files of earlier versions have ``exact``, false after typical acceptance
        promise = values.get("promise", "" if values.get("exact", True) else "changed")
        if not (
            _are_numbers((*speed.values(), *counts.values()))
            and _are_depths(depths)
            and isinstance(drafters, dict)
            and all(isinstance(count, dict) and _are_numbers(count.values()) for count in drafters.values())
            and isinstance(drafter_depths, dict)
            and all(map(_are_depths, drafter_depths.values()))
        ):
            return None
        return Figures(
            speed=Speed(**speed, busy=values["speed"].get("busy") is True),
            by_depth=depths,
            by_drafter=drafters,
            **counts,
            promise=promise if promise in _PROMISES else "",
            drafter_depths=drafter_depths,
            origins=_origins(values.get("origins")),
            thoughts_closed=closed if type(closed) is int and abs(closed) < TOKEN_LIMIT else -1,
        )


@dataclass(frozen=True, slots=True)
class StoredMessage:
    id: int  # its number
    chat: str
    # the message that it answers or follows, or None for the first; two children of one message are two branches
    parent: int | None
    role: str  # "system", "user" or "assistant"
    content: str  # its raw text, not cleaned for a screen
    tokens: list[int] = field(default_factory=list)  # of a reply, valid only for the model of this fingerprint
    model: str = ""  # fingerprint of the model that wrote it
    status: Status = "done"
    drafter: str = ""  # the drafter, "none" for plain decoding; empty for a user's message
    seed: int | None = None  # seed of the reply
    figures: Figures | None = None  # speed and acceptance, or None until the reply is over
    reason: str = ""  # why the reply ended, as in ``protocol.events.Done``, or empty
    created: float = 0.0  # seconds since 1970
    writer: str = ""  # name of the model that wrote it, or empty

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
    counts = {name: Counter(count) for name, count in first.items()}
    for name, count in second.items():
        counts.setdefault(name, Counter()).update(count)
    return {name: dict(count) for name, count in counts.items()}


def deeper(first: list[list[int]], second: list[list[int]]) -> list[list[int]]:
    both = zip_longest(first, second, fillvalue=[0, 0])
    return [[a + b for a, b in zip(*pair, strict=True)] for pair in both]


def pack_tokens(tokens: list[int]) -> bytes:
    return struct.pack(f"<{len(tokens)}i", *tokens)


def unpack_tokens(blob: object) -> list[int]:
    """Reads ``pack_tokens`` back, without an incomplete last token; empty for what is none."""
    if not isinstance(blob, bytes):
        return []
    whole = len(blob) // 4
    return list(struct.unpack(f"<{whole}i", blob[: whole * 4]))


def text_of(value: object) -> str:
    return value if isinstance(value, str) else readable(value) if isinstance(value, bytes) else str(value or "")


def moment(value: object, otherwise: float = 0.0) -> float:
    """A time of the file, if it is one that calendars have."""
    return float(value) if is_number(value) and 0 <= value < _NEWEST else otherwise


def pick_of(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < _MOST_PICKS else 0


def is_number(value: object) -> TypeGuard[float]:
    return type(value) in (int, float) and -1e15 < value < 1e15  # type: ignore[operator]


def _are_numbers(values: Iterable[object]) -> bool:
    return not [each for each in values if type(each) not in (int, float) or not -1e15 < each < 1e15]  # type: ignore[operator]


def _are_depths(depths: object) -> bool:
    return isinstance(depths, list) and all(
        isinstance(pair, list) and len(pair) == 2 and _are_numbers(pair) for pair in depths
    )


def _origins(values: object) -> list[Run]:
    """Where the characters of a reply come from; empty if that is not as in this version."""
    if not isinstance(values, list) or not all(isinstance(run, list) and len(run) == 3 for run in values):
        return []
    known = all(
        type(size) is int
        and 0 <= size <= MESSAGE_LIMIT
        and origin in get_args(Origin)
        and isinstance(source, str)
        and len(source) <= _NAME_LIMIT
        for size, origin, source in values
    )
    return [(size, origin, storable(source)) for size, origin, source in values] if known else []


def message_of_row(row: tuple[Any, ...]) -> StoredMessage:
    number, chat, parent, role, content, tokens, model, status, drafter, seed, speed, reason, created, writer = row
    texts = (chat, content, model, drafter, seed, reason, writer)  # nearly all are: calls would be most of the work
    chat, content, model, drafter, seed, reason, writer = [
        each if type(each) is str else text_of(each) for each in texts
    ]
    return StoredMessage(
        id=number,
        chat=chat,
        parent=parent if isinstance(parent, int) else None,
        role=role if role in ROLES else "user",
        content=content,
        tokens=unpack_tokens(tokens),
        model=model,
        status=status if status in get_args(Status) else "done",
        drafter=drafter,
        seed=int(seed) if seed.isascii() and seed.isdigit() and len(seed) < 2 * _MOST_DIGITS else None,
        figures=Figures.unpacked(speed),
        reason=reason,
        created=moment(created),
        writer=writer,
    )


def row_of_message(message: StoredMessage) -> tuple[Any, ...]:
    seed = "" if message.seed is None else str(message.seed)
    figures = message.figures.packed() if message.figures else ""
    return (
        *(message.id, message.chat, message.parent, message.role, storable(message.content)),
        *(pack_tokens(message.tokens), message.model, message.status, message.drafter),
        *(seed, figures, message.reason, message.created, message.writer),
    )


def changes_of_writer(messages: Iterable[StoredMessage]) -> dict[int, str]:
    """The names of the models of a branch, by the reply with which each begins."""
    found: dict[int, str] = {}
    before = ""
    for message in messages:
        if message.role == "assistant" and message.writer and message.writer != before:
            found[message.id] = before = message.writer
    return found


def storable(text: str) -> str:
    """Replaces lone surrogates: UTF-8 cannot encode them, so the whole write would fail."""
    return text.encode("utf-8", "replace").decode("utf-8")


def bounded(title: str) -> str:
    return title if len(title) <= TITLE_LIMIT else title[: TITLE_LIMIT - 1] + "…"


def new_id(seed: str | None = None) -> str:
    """A random id, or that of a text."""
    found = os.urandom(ID_LENGTH) if seed is None else hashlib.sha256(storable(seed).encode()).digest()[:ID_LENGTH]
    return "".join(ALPHABET[byte % len(ALPHABET)] for byte in found)  # unbiased: 256 % 32 is 0


class Tree:
    """The branches of a chat, as message numbers; of several siblings, the one picked last is shown."""

    def __init__(self, nodes: Iterable[tuple[int, object, object]]) -> None:
        """``nodes`` are ``(number, parent, picked)`` of every message, without refused ones, in order of the number."""
        self._children: dict[int | None, list[int]] = defaultdict(list)
        self._parent: dict[int, int | None] = {}
        self._picked: dict[int, int] = {}
        for number, parent, picked in nodes:
            self._parent[number] = parent if isinstance(parent, int) else None
            self._children[self._parent[number]].append(number)
            self._picked[number] = pick_of(picked)

    def shown(self) -> list[int]:
        branch: list[int] = []
        at: int | None = None
        while siblings := self._children.get(at):
            at = siblings[0]
            if len(siblings) > 1:
                at = max(siblings, key=lambda number: (self._picked[number], number))
            branch.append(at)
        return branch

    def siblings(self, message: int) -> list[int]:
        return self._children[self._parent[message]]

    def above(self, message: int) -> list[int]:
        """The message and its ancestors, the chat's first message last; empty if it is not in the tree."""
        branch: dict[int, None] = {}
        at: int | None = message
        while at is not None and at in self._parent and at not in branch:  # a damaged file may have circles
            branch[at] = None
            at = self._parent[at]
        return list(branch)
