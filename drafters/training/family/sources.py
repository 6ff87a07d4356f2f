"""Reads the source files and the recipe's own chats, drops rows that do not suit a small model, and holds rows out."""

import hashlib
import json
import lzma
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

RUN_WORDS = 12  # a training row that shares a run of this many words with a held-out row is dropped

HELD_OUT_EVERY = 200  # one row in this many is held out, chosen by a hash of its text

_MEDICAL = re.compile(
    r"\b(medic(al|in|at)|disease|symptom|diagnos|dosage|cancer|vaccin|surg(ery|ical)|therap|illness|pharma|physician"
    r"|infect|anatom|uter(us|ine)|genital|tumou?r)",
    re.IGNORECASE,
)
_UNFILTERED = frozenset({"fairytaleqa_stories", "fairytaleqa_qa", "african_storybook", "pratham_books", "tldr"})
_WORD = re.compile(r"\w+")


class Message(TypedDict):
    """One turn of a chat: ``role`` is system, user or assistant."""

    role: str
    content: str


def pairs_as_chats(pairs: Iterable[tuple[str, str]]) -> list[list[Message]]:
    """Turns each pair of a question and its answer into a chat."""
    return [[Message(role="user", content=ask), Message(role="assistant", content=answer)] for ask, answer in pairs]


def upper_first(text: str) -> str:
    """The text with its first letter in upper case."""
    return text[0].upper() + text[1:]


@dataclass(frozen=True)
class Row:
    """One line of a source file: a chat, or a running text (then ``messages`` is empty)."""

    source: str
    text: str
    messages: tuple[Message, ...]

    def words(self) -> list[str]:
        """All words of the row in order, lower case."""
        whole = self.text + "\n" + "\n".join(m["content"] for m in self.messages)
        return _WORD.findall(whole.lower())


def read(folder: Path) -> Iterator[Row]:
    """Yields every usable row of every ``*.jsonl.xz`` in ``folder``, in a fixed order.

    Args:
        folder: of the source files; each line is ``{"source", "messages"}`` or ``{"source", "text"}``.
    """
    for path in sorted(folder.glob("*.jsonl.xz")):
        with lzma.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                raw = json.loads(line)
                messages = tuple(Message(role=m["role"], content=m["content"].strip()) for m in raw.get("messages", ()))
                row = Row(raw["source"], raw.get("text", "").strip(), messages)
                if _usable(row):
                    yield row


def _usable(row: Row) -> bool:
    if not row.text and (len(row.messages) < 2 or not all(m["content"] for m in row.messages)):
        return False
    if row.source in _UNFILTERED:
        return True
    return not any(_MEDICAL.search(m["content"]) for m in row.messages)


def held_out(row: Row) -> bool:
    """Whether the hash of the row's words puts it in the held-out split."""
    digest = hashlib.sha256(" ".join(row.words()).encode()).digest()
    return int.from_bytes(digest[:8], "big") % HELD_OUT_EVERY == 0


def split(rows: list[Row]) -> tuple[list[Row], list[Row]]:
    """Splits the rows into (training, held out); training rows that overlap a held-out row are dropped."""
    kept_back = [row for row in rows if held_out(row)]
    seen = {run for row in kept_back for run in _runs(row)}
    train = [row for row in rows if not held_out(row) and seen.isdisjoint(_runs(row))]
    return train, kept_back


def _runs(row: Row) -> set[int]:
    words = row.words()
    if len(words) <= RUN_WORDS:
        return {hash(tuple(words))}
    return {hash(tuple(words[i : i + RUN_WORDS])) for i in range(len(words) - RUN_WORDS + 1)}


_PLAIN = Path(__file__).with_name("plain")
_TURN = re.compile(r"^([UA]): ", re.MULTILINE)
_ROLES = {"U": "user", "A": "assistant"}


def plain_rows() -> Iterator[Row]:
    """Every chat of ``plain/*.txt``; the source is named after the file: ``words_1.txt`` has ``plain_words``.

    Chats are separated by lines of three hyphens; a message begins with ``U: `` or ``A: ``.

    Raises:
        ValueError: If the turns of a chat do not alternate, from user to assistant; the error names the file.
    """
    for path in sorted(_PLAIN.glob("*.txt")):
        source = f"plain_{path.stem.rpartition('_')[0]}"
        for text in re.split(r"^---$", path.read_text(encoding="utf-8"), flags=re.MULTILINE):
            if text.strip():
                yield Row(source, "", tuple(_messages(text.strip(), path.name)))


def _messages(text: str, name: str) -> Iterator[Message]:
    _, *parts = _TURN.split(text)
    for i, (mark, content) in enumerate(zip(parts[::2], parts[1::2], strict=True)):
        if mark != "UA"[i % 2] or not content.strip():
            raise ValueError(f"{name}: turns out of order in {text[:60]!r}")
        yield Message(role=_ROLES[mark], content=content.strip())
    if not parts or parts[-2] != "A":
        raise ValueError(f"{name}: a chat without an answer: {text[:60]!r}")
