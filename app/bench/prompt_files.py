"""Reads files of prompts, as people and the usual benchmarks write them."""

from __future__ import annotations

import gzip
import json
import lzma
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from slipstream.app.bench.conversations import Prompt, asked
from slipstream.app.engine.requests import Message
from slipstream.models.errors import SlipstreamError, UsageError, reason_of

_PACKED: Final[Mapping[str, Callable[[bytes], bytes]]] = MappingProxyType(
    {".xz": lzma.decompress, ".gz": gzip.decompress}
)
_FIELDS: Final = ("messages", "turns", "prompt", "question", "text")
_ROLES: Final = ("system", "user", "assistant")


def read_prompts(path: Path) -> list[Prompt]:
    """Reads all prompts of a file: ``.jsonl``, an object a line, or ``.txt``, a prompt a line; plain or packed.

    Raises:
        UsageError: If it has no prompts, or is no file of prompts; names the line.
        SlipstreamError: If it cannot be read.
    """
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
        reason = reason_of(error)
        raise SlipstreamError(
            f"cannot read {path}: {reason}.", "Give --prompts another file's name, or one of: chat, story, copy."
        ) from error
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise UsageError(f"{path} is empty.", "Give a file with at least one prompt.")
    if kind == ".txt":
        return [asked(line.strip()) for _, line in lines]
    return [_of_json(line, f"{path}, line {number}") for number, line in lines]


def _of_json(line: str, place: str) -> Prompt:
    """The prompt of one line of JSON, with its category."""
    try:
        row = json.loads(line)
    except ValueError as error:
        raise UsageError(f"{place}: not JSON.", "Each line of a .jsonl file is one object.") from error
    prompt = _asked(row, place)
    category = row.get("category")
    return replace(prompt, category=category) if isinstance(category, str) else prompt


def _asked(row: Any, place: str) -> Prompt:
    """What a line asks.

    Of ``messages`` it is all up to the user's last; ``turns`` are what the user says, the later ones after a reply.
    """
    name = next((name for name in _FIELDS if isinstance(row, dict) and row.get(name)), None)
    if name is None:
        raise UsageError(f"{place}: no prompt.", f"A line is an object with one of: {', '.join(_FIELDS)}.")
    value = row[name]
    if name == "messages":
        return _said(value, place)
    texts = value if name == "turns" and isinstance(value, list) else [value]
    if not all(isinstance(text, str) and text.strip() for text in texts):
        raise UsageError(f"{place}: {name} holds no text.", f"Lines have one of: {', '.join(_FIELDS)}.")
    return asked(*texts)


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
    return Prompt(tuple(messages))
