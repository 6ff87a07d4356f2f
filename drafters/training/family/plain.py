"""Plain chats written for this project, and the prompts of the model card, which no training text may ask."""

import re
from collections.abc import Iterator
from pathlib import Path

from slipstream.drafters.training.family.sources import Message, Row

_FOLDER = Path(__file__).with_name("plain")
_EXAM = Path(__file__).with_name("development.txt")
_TURN = re.compile(r"^([UA]): ", re.MULTILINE)
_ROLES = {"U": "user", "A": "assistant"}
_ASKING_WORDS = """
a an and about all any between can could define describe difference different do does explain for from give hear how i
in is are it like list little make me mean meaning name named nice of our please s say short some tell that the this
to up us want was we what when who why word words would write you
"""
_ASKING = frozenset(_ASKING_WORDS.split())
_BY_HEART = frozenset({"greeting", "identity"})
"""Kinds of prompts that the model is meant to know by heart; only these may stand in training text."""


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


def exam() -> list[tuple[str, str]]:
    """The prompts of the model card as (kind, prompt), in order."""
    lines = _EXAM.read_text(encoding="utf-8").splitlines()
    return [(kind, prompt) for kind, _, prompt in (line.partition(": ") for line in lines if line)]


def exam_questions() -> frozenset[frozenset[str]]:
    """What no chat of the training text may ask, in any wording: the ``gist`` of all but what is known by heart."""
    return frozenset(gist(prompt) for kind, prompt in exam() if kind not in _BY_HEART)


def gist(text: str) -> frozenset[str]:
    """What a question is about: its words, in lower case, but for those that only ask."""
    words = re.findall(r"\w+", text.lower())
    return frozenset("story" if word == "tale" else word for word in words) - _ASKING
