"""Texts that people or large models wrote, with what they answer: read from a folder, for part ``replay``."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from slipstream.app.bench.prompts import unpacked
from slipstream.app.protocol.requests import Message
from slipstream.models.errors import UsageError

DOMAINS: Final = ("prose", "code", "mathematics")
_DOMAIN_OF: Final = MappingProxyType(
    {"coding": "code", "code": "code", "math": "mathematics", "mathematics": "mathematics"}
)
_SOLVED: Final = re.compile(r"<<[^>]*>>")  # GSM8K's notes for a calculator, which nobody says aloud


@dataclass(frozen=True, slots=True)
class RealText:
    """A reply that was really written."""

    domain: str  # one of ``DOMAINS``
    messages: tuple[Message, ...]  # what was said before; the last message is the user's
    reply: str  # the text


@dataclass(frozen=True, slots=True)
class TextFile:
    """A file of such texts."""

    name: str  # its path below the folder
    sha256: str  # its checksum
    source: str  # what a ``SOURCE.txt`` beside it says: upstream repository and commit; empty where there is none
    texts: tuple[RealText, ...]  # its texts


def read_texts(folder: Path) -> list[TextFile]:
    """Reads every ``.jsonl`` (an object a line) and ``.txt`` below a folder, plain or packed (.xz, .gz).

    A line has ``turns`` and ``replies`` (and a ``category``), ``question`` and ``answer``, ``prompt`` and
    ``canonical_solution``, or ``prompt`` and ``reply`` (and a ``domain``); other lines are passed over. A ``.txt`` is
    one text of prose: its first paragraph is asked to be continued.

    Raises:
        UsageError: If the folder holds no texts.
        SlipstreamError: If a file cannot be read.
    """
    found = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "SOURCE.txt"):
        kind = Path(path.stem).suffix if path.suffix in (".xz", ".gz") else path.suffix
        if kind not in (".jsonl", ".txt"):
            continue
        text = unpacked(path, "Give --texts another folder.")
        texts = tuple(_of_lines(text, path) if kind == ".jsonl" else _of_prose(text))
        if texts:
            beside = path.with_name("SOURCE.txt")
            source = " ".join(beside.read_text(encoding="utf-8").split()) if beside.exists() else ""
            checksum = hashlib.sha256(path.read_bytes()).hexdigest()
            found.append(TextFile(path.relative_to(folder).as_posix(), checksum, source, texts))
    if not found:
        raise UsageError(f"{folder} holds no texts to replay.", "python -m tests.bench --help says what it may hold.")
    return found


def _of_lines(text: str, path: Path) -> Iterator[RealText]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                row = json.loads(line)
            except ValueError as error:
                raise UsageError(f"{path}, line {number}: not JSON.", "Each line is one object.") from error
            if isinstance(row, dict):
                yield from _of_row(row)


def _of_row(row: Mapping[str, Any]) -> Iterator[RealText]:
    match row:
        case {"turns": list(turns), "replies": list(replies)}:
            said: tuple[Message, ...] = ()
            for turn, reply in zip(turns, replies, strict=False):
                said = (*said, Message("user", turn))
                yield RealText(_DOMAIN_OF.get(str(row.get("category")), "prose"), said, reply)
                said = (*said, Message("assistant", reply))
        case {"question": str(question), "answer": str(answer)}:
            yield RealText("mathematics", (Message("user", question),), _SOLVED.sub("", answer))
        case {"prompt": str(prompt), "canonical_solution": str(solution)}:
            yield RealText("code", (Message("user", f"Complete this function:\n\n{prompt}"),), solution)
        case {"prompt": str(prompt), "reply": str(reply)}:
            yield RealText(_DOMAIN_OF.get(str(row.get("domain")), "prose"), (Message("user", prompt),), reply)


def _of_prose(text: str) -> Iterator[RealText]:
    first, _, rest = text.strip().partition("\n\n")
    if rest.strip():
        yield RealText("prose", (Message("user", f"Continue this text:\n\n{first}"),), rest.strip())
