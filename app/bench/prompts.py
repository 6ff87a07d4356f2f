"""Prompts for the parts ``drafters`` and ``check``: built-in sets, and files in common formats."""

from __future__ import annotations

import gzip
import json
import lzma
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

from slipstream.app.platform.safe_text import one_line
from slipstream.app.protocol.requests import Message
from slipstream.models.errors import SlipstreamError, UsageError, reason_of
from slipstream.models.outside import parsed, read_limited

_OPENERS: Final[Mapping[str, Callable[..., Any]]] = MappingProxyType({"": open, ".xz": lzma.open, ".gz": gzip.open})
_MOST_BYTES: Final = 64 << 20
_FIELDS: Final = ("messages", "turns", "prompt", "question", "text")
_ROLES: Final = ("system", "user", "assistant")
BUILT_IN: Final = ("chat", "story", "copy")
"""Sets that are measured unless others are named: small talk, stories, and texts and code to be copied with changes."""
CODE: Final = "code"  # a set of requests for short programs
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """A chat that ends with a message of the user, and the user's later turns."""

    messages: tuple[Message, ...]  # the chat so far
    later: tuple[str, ...] = ()  # the user's turns after that reply, as in MT-bench
    category: str = ""  # its category, as in Spec-Bench; else empty

    @property
    def turns(self) -> int:
        return 1 + len(self.later)

    def after(self, reply: Message) -> BenchPrompt:
        """The prompt of the next turn, after a reply; ``later`` must not be empty."""
        asked_next = Message("user", self.later[0])
        return replace(self, messages=(*self.messages, reply, asked_next), later=self.later[1:])


def asked(*texts: str) -> BenchPrompt:
    return BenchPrompt((Message("user", texts[0]),), texts[1:])


def read_prompts(path: Path) -> list[BenchPrompt]:
    """Reads a file of prompts: ``.jsonl`` has an object per line, ``.txt`` a prompt per line; plain or compressed."""
    kind = Path(path.stem).suffix if path.suffix in _OPENERS else path.suffix
    if kind not in (".jsonl", ".txt"):
        raise UsageError(
            f"{path} is no file of prompts by its name.",
            "Give .txt (one a line) or .jsonl, plain or packed (.xz, .gz).",
        )
    text = unpacked(path, "Give --prompts another file's name, or one of: chat, story, copy.")
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise UsageError(f"{path} is empty.", "Give a file with at least one prompt.")
    if kind == ".txt":
        return [asked(line.strip()) for _, line in lines]
    return [_of_json(line, f"{path}, line {number}") for number, line in lines]


def unpacked(path: Path, hint: str) -> str:
    """The text of a file, plain or compressed (.xz, .gz); ``hint`` says what to try if it cannot be read."""
    try:
        return read_limited(path, _MOST_BYTES, _OPENERS.get(path.suffix, open)).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8.", "Convert it first, for example with iconv -t UTF-8.") from error
    except (lzma.LZMAError, zlib.error, EOFError, gzip.BadGzipFile) as error:
        raise SlipstreamError(
            f"{path} cannot be unpacked: it is damaged or cut short.", "Get the file again."
        ) from error
    except OSError as error:
        raise SlipstreamError(f"cannot read {path}: {reason_of(error)}.", hint) from error


def _of_json(line: str, place: str) -> BenchPrompt:
    try:
        row = parsed(line, json.loads)
    except ValueError as error:
        raise UsageError(f"{place}: not JSON.", "Each line of a .jsonl file is one object.") from error
    prompt = _asked(row, place)
    category = row.get("category")
    return replace(prompt, category=category) if isinstance(category, str) else prompt


def _asked(row: Any, place: str) -> BenchPrompt:
    """``messages`` count up to the user's last one; ``turns`` are messages of the user, each after a reply."""
    name = next((name for name in _FIELDS if isinstance(row, dict) and row.get(name)), None)
    if name is None:
        raise UsageError(f"{place}: no prompt.", f"A line is an object with one of: {', '.join(_FIELDS)}.")
    value = row[name]
    if name == "messages":
        return _chat(value, place)
    texts = value if name == "turns" and isinstance(value, list) else [value]
    if not all(isinstance(text, str) and text.strip() for text in texts):
        raise UsageError(f"{place}: {name} holds no text.", f"Lines have one of: {', '.join(_FIELDS)}.")
    return asked(*texts)


def _chat(value: Any, place: str) -> BenchPrompt:
    try:
        messages = [Message(str(said["role"]), said["content"]) for said in value]
    except (TypeError, KeyError) as error:
        raise UsageError(f"{place}: messages without role and content.", "Each is an object with both.") from error
    while messages and messages[-1].role != "user":
        messages.pop()  # the benchmark writes the reply
    fits = all(message.role in _ROLES and isinstance(message.content, str) for message in messages)
    if not messages or not fits:
        raise UsageError(f"{place}: messages that are no chat.", f"Roles: {', '.join(_ROLES)}; one must be the user's.")
    return BenchPrompt(tuple(messages))


@dataclass(frozen=True, slots=True)
class PromptSet:
    """Prompts of one kind of text."""

    name: str
    prompts: tuple[BenchPrompt, ...]


def prompt_sets(names: Sequence[str], limit: int, by_category: bool = False) -> tuple[PromptSet, ...]:
    """Reads sets of prompts: built-in ones and files, or all built-in ones.

    A file's set is named by its folder and name, such as "gsm8k/test". Of each set, ``limit`` prompts are chosen
    evenly, 0 for all. With ``by_category``, each category of a file becomes a separate set, as in Spec-Bench.
    """
    if limit < 0:
        raise UsageError(f"limit is {limit}; it must be 0 (all prompts) or more.")
    own = (*BUILT_IN, CODE)
    paths = [_built_in(name) if name in own else Path(name).expanduser() for name in names or BUILT_IN]
    for path, times in Counter(path.resolve() for path in paths).items():
        if times > 1:
            raise UsageError(f"{path} is given {times} times.", "Give each set of prompts once.")
    short = Counter(map(_short_name, paths))
    sets = list[PromptSet]()
    for path in paths:
        name, prompts = _short_name(path) if short[_short_name(path)] == 1 else str(path), read_prompts(path)
        for category in dict.fromkeys(prompt.category for prompt in prompts) if by_category else [None]:
            kept = [prompt for prompt in prompts if category in (None, prompt.category)]
            sets.append(PromptSet(one_line(f"{name} {category}" if category else name), evenly(kept, limit)))
    return tuple(sets)


def evenly(prompts: Sequence[_Item], limit: int) -> tuple[_Item, ...]:
    """Takes ``limit`` of the prompts at equal distances; all if it is 0 or exceeds their number."""
    count = min(limit or len(prompts), len(prompts))
    return tuple(prompts[at * len(prompts) // count] for at in range(count))


def _built_in(name: str) -> Path:
    return Path(str(resources.files("slipstream.app.bench"))) / "sets" / f"{name}.jsonl"


def _short_name(path: Path) -> str:
    stem = path.name.split(".", 1)[0] or path.name
    if path == _built_in(stem):
        return stem
    return f"{path.parent.name}/{stem}" if path.parent.name else stem
