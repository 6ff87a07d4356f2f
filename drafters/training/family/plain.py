"""Plain chats written for this project."""

import re
from collections.abc import Iterator
from pathlib import Path

from slipstream.drafters.training.family.sources import Message, Row

_FOLDER = Path(__file__).with_name("plain")
_TURN = re.compile(r"^([UA]): ", re.MULTILINE)
_ROLES = {"U": "user", "A": "assistant"}


def rows() -> Iterator[Row]:
    """Every chat of ``plain/*.txt``; the source is named after the file: ``words_1.txt`` holds ``plain_words``.

    Chats stand between lines of three hyphens; a message begins with ``U: `` or ``A: ``.

    Raises:
        ValueError: If a chat does not go from user to assistant and so on; names the file.
    """
    for path in sorted(_FOLDER.glob("*.txt")):
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
