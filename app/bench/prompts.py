"""The prompts of part ``drafters``: a few that are built in, or those of files, among them the usual benchmarks."""

from __future__ import annotations

import gzip
import json
import lzma
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from slipstream.app.engine.requests import Message
from slipstream.app.safe_text import one_line
from slipstream.models.errors import SlipstreamError, UsageError

Prompt = tuple[Message, ...]
"""What is replied to: the last message is the user's."""

_PACKED: Final[Mapping[str, Callable[[bytes], bytes]]] = MappingProxyType(
    {".xz": lzma.decompress, ".gz": gzip.decompress}
)
_FIELDS: Final = ("messages", "turns", "prompt", "question", "text")
_ROLES: Final = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True)
class PromptSet:
    """Prompts of one kind of text.

    Attributes:
        name: What tables call it.
        prompts: The prompts.
    """

    name: str
    prompts: tuple[Prompt, ...]


def asked(text: str) -> Prompt:
    """The prompt that is one message of the user."""
    return (Message("user", text),)


BUILT_IN: Final = (
    PromptSet("chat", (asked("What is a good way to spend a rainy afternoon at home?"),)),
    PromptSet("story", (asked("Tell me a story about a little girl and a boat on the sea."),)),
    PromptSet(
        "copy",
        (
            asked(
                "Repeat this text, word for word: The old man walked to the sea every day. He looked at the boats and"
                " the birds. One day he saw a small boat with a red sail, and he walked to the boat with the red sail."
            ),
        ),
    ),
)
"""Kinds of text and a prompt for each."""


def prompt_sets(files: Sequence[str], limit: int) -> tuple[PromptSet, ...]:
    """Reads files of prompts.

    Args:
        files: Their paths; the built-in prompts where there are none.
        limit: Prompts of each file, chosen evenly from its first to its last; 0 for all.

    Returns:
        A set a file, named by its folder and name, such as "gsm8k/test".

    Raises:
        UsageError: If a file has no prompts or is none of prompts, or is given twice.
        SlipstreamError: If one cannot be read.
    """
    if limit < 0:
        raise UsageError(f"limit is {limit}; it must be 0 (all prompts) or more.")
    paths = [Path(file).expanduser() for file in files]
    for path, times in Counter(path.resolve() for path in paths).items():
        if times > 1:
            raise UsageError(f"{path} is given {times} times.", "Give each file of prompts once.")
    names = Counter(map(_short_name, paths))
    return (
        tuple(
            PromptSet(
                one_line(_short_name(path) if names[_short_name(path)] == 1 else str(path)),
                evenly(_read(path), limit),
            )
            for path in paths
        )
        or BUILT_IN
    )


def evenly(prompts: Sequence[Prompt], limit: int) -> tuple[Prompt, ...]:
    """Takes ``limit`` of the prompts at equal distances; all where it is 0 or there are no more."""
    count = min(limit or len(prompts), len(prompts))
    return tuple(prompts[at * len(prompts) // count] for at in range(count))


def _short_name(path: Path) -> str:
    stem = path.name.split(".", 1)[0] or path.name
    return f"{path.parent.name}/{stem}" if path.parent.name else stem


def _read(path: Path) -> list[Prompt]:
    """All prompts of a file."""
    packed = path.suffix if path.suffix in _PACKED else ""
    kind = path.with_suffix("").suffix if packed else path.suffix
    if kind not in (".jsonl", ".txt"):
        raise UsageError(
            f"{path} is no file of prompts by its name.",
            "Give .txt (one a line) or .jsonl, plain or packed (.xz, .gz).",
        )
    try:
        raw = path.read_bytes()
        text = (_PACKED[packed](raw) if packed else raw).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8.", "Convert it first, for example with iconv -t UTF-8.") from error
    except (lzma.LZMAError, zlib.error, EOFError, gzip.BadGzipFile) as error:
        raise SlipstreamError(
            f"{path} cannot be unpacked: it is damaged or cut short.", "Get the file again."
        ) from error
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise SlipstreamError(f"cannot read {path}: {reason}.", "Give --prompts another file's name.") from error
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise UsageError(f"{path} is empty.", "Give a file with at least one prompt.")
    if kind == ".txt":
        return [asked(line.strip()) for _, line in lines]
    return [_of_json(line, f"{path}, line {number}") for number, line in lines]


def _of_json(line: str, place: str) -> Prompt:
    """The prompt of one line of JSON.

    Of ``messages`` it is all up to the user's last; of ``turns`` the first, since the second answers a reply.
    """
    try:
        row = json.loads(line)
    except ValueError as error:
        raise UsageError(f"{place}: not JSON.", "Each line of a .jsonl file is one object.") from error
    name = next((name for name in _FIELDS if isinstance(row, dict) and row.get(name)), None)
    if name is None:
        raise UsageError(f"{place}: no prompt.", f"A line is an object with one of: {', '.join(_FIELDS)}.")
    value = row[name]
    if name == "messages":
        return _said(value, place)
    text = value[0] if name == "turns" and isinstance(value, list) else value
    if not isinstance(text, str) or not text.strip():
        raise UsageError(f"{place}: {name} holds no text.", f"Lines have one of: {', '.join(_FIELDS)}.")
    return asked(text)


def _said(value: Any, place: str) -> Prompt:
    try:
        messages = [Message(str(said["role"]), said["content"]) for said in value]
    except (TypeError, KeyError) as error:
        raise UsageError(f"{place}: messages without role and content.", "Each is an object with both.") from error
    while messages and messages[-1].role != "user":
        messages.pop()  # the reply is ours to write
    fits = all(message.role in _ROLES and isinstance(message.content, str) for message in messages)
    if not messages or not fits:
        raise UsageError(f"{place}: messages that are no chat.", f"Roles: {', '.join(_ROLES)}; one must be the user's.")
    return tuple(messages)
