"""Separates reasoning from answer.

Models write their reasoning first: between marks (see ``slipstream.models.chat_template``), or in a separate
channel (gpt-oss). Some prompts end with the opening mark, so the reply begins inside the reasoning. Marks after the
first words of the answer count as plain text, since the answer may be about them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from slipstream.app.protocol.events import Divided, Piece
from slipstream.app.protocol.requests import Message
from slipstream.models.chat_template import ANSWER_CHANNEL, CLOSING

_CHANNEL: Final = "<|channel>"  # the channel's name follows
_NEXT: Final = "<|start|>"  # ends a channel; part of the mark that opens the next one
_HARMONY: Final = ("<|end|>", _NEXT)  # llama.cpp omits the first. Source: OpenAI's harmony format
_OPENING: Final = re.compile(
    rf"\s*(?:(?P<mark>{'|'.join(re.escape(mark) for mark in CLOSING if mark != _CHANNEL)})"
    r"|(?P<named><\|channel>)[a-z]{0,16}\n"
    r"|(?:<\|start\|>assistant)?<\|channel\|>(?P<channel>[a-z]{1,16})[^<]{0,64}<\|message\|>)"
)
_BEGINNINGS: Final = (*CLOSING, "<|channel|>", "<|start|>assistant<|channel|>")
_LONGEST: Final = 120  # maximum characters of an opening mark with the name of its channel


class Thinking:
    """Splits a reply that arrives in pieces."""

    def __init__(self, opened: bool | str = False) -> None:
        """``opened`` says whether the prompt ended with an opening mark, or is the closing mark if that is known."""
        self.under_way = bool(opened)  # whether the text so far ends inside the reasoning
        self._closing = (opened,) if isinstance(opened, str) else tuple(CLOSING.values())
        self.over = False  # whether all further text is the answer
        self.thought = bool(opened)  # whether there was an opening mark
        self._held = ""  # text that may be the beginning of a mark

    @classmethod
    def none(cls) -> Thinking:
        thinking = cls()
        thinking.over = True
        return thinking

    @classmethod
    def after(cls, messages: Sequence[Message], opened: bool | str) -> Thinking:
        """Begins the reply to a chat; if the reply continues the last message, it starts with that text."""
        thinking = cls(opened)
        if messages[-1].role == "assistant":
            thinking.feed(messages[-1].content)
        return thinking

    @property
    def answers_next(self) -> bool:
        """Whether the next words begin the answer, unless they open more reasoning."""
        return not (self.under_way or self.over or self._held.strip()) and self._closing != _HARMONY

    @property
    def amid_mark(self) -> bool:
        return any(_overlap(self._held, mark) for mark in self._closing)

    @property
    def closing(self) -> str:
        return ANSWER_CHANNEL if self._closing == _HARMONY else self._closing[0]

    def divide(self, pieces: Sequence[Piece]) -> Divided | None:
        """Divides the new text of a step; None if all of it is the answer."""
        if self.over:
            return None
        fed = [(*self.feed(piece.text), piece) for piece in pieces]
        reasoning = "".join(thought for thought, _, _ in fed)
        answer = [replace(piece, text=text) for _, text, piece in fed if text]
        return None if answer == list(pieces) else Divided(reasoning, answer, self.under_way)

    def divide_rest(self, pieces: Sequence[Piece]) -> Divided | None:
        """Divides the last text of a reply and the text held back; None if all of it is the answer."""
        divided, (thoughts, text) = self.divide(pieces), self.finish()
        if not thoughts and not text:
            return divided
        last = divided or Divided("", list(pieces), False)
        held = [Piece(text, "plain")] if text else []
        return Divided(last.reasoning + thoughts, last.answer + held, False)

    def feed(self, text: str) -> tuple[str, str]:
        """Adds text; returns the new reasoning and the new answer, and holds back text that may become a mark."""
        if self.over:
            return "", text
        self._held += text
        thoughts = ""
        while self._held and not self.over:
            if self.under_way:
                thought, closed = self._until_closed()
                thoughts += thought
                if not closed:
                    break
            elif opening := _OPENING.match(self._held):
                self._open(opening)
            elif _may_open(self._held):
                break
            else:
                self.over = True
        return thoughts, self._take() if self.over else ""

    def finish(self) -> tuple[str, str]:
        return (self._take(), "") if self.under_way else ("", self._take())

    def _open(self, opening: re.Match[str]) -> None:
        self._held = self._held[opening.end() :]
        self.thought = True
        if opening["channel"] == "final":
            self.over = True
        else:
            self.under_way = True
            mark = opening["mark"] or opening["named"]
            self._closing = (CLOSING[mark],) if mark else _HARMONY

    def _until_closed(self) -> tuple[str, bool]:
        found = [(at, mark) for mark in self._closing if (at := self._held.find(mark)) >= 0]
        if found:
            at, mark = min(found)
            thought, self._held = self._held[:at], self._held[at + (0 if mark == _NEXT else len(mark)) :]
            self.under_way = False
            return thought, True
        keep = max(_overlap(self._held, mark) for mark in self._closing)
        cut = len(self._held) - keep
        thought, self._held = self._held[:cut], self._held[cut:]
        return thought, False

    def _take(self) -> str:
        text, self._held = self._held, ""
        return text.lstrip() if self.thought and not self.under_way else text


@dataclass(frozen=True, slots=True)
class Parts:
    """A whole reply."""

    thoughts: str  # its reasoning, without marks; may be empty
    answer: str


def split(text: str, opened: bool = False) -> Parts:
    """Splits a whole reply, see ``divided``; strips the reasoning."""
    thoughts, answer = divided(text, opened)
    return Parts(thoughts.strip(), answer)


def divided(text: str, opened: bool = False) -> tuple[str, str]:
    """Divides a whole reply into reasoning and answer exactly as its steps are divided; keeps the space around them."""
    thinking = Thinking(opened)
    thoughts, answer = thinking.feed(text)
    rest = thinking.finish()
    return thoughts + rest[0], answer + rest[1]


def begins_inside(text: str, thought: int) -> bool:
    """Whether the prompt of a reply ended with an opening mark: it has tokens of reasoning, but no opening mark."""
    return thought > 0 and not _OPENING.match(text)


def in_channels(text: str) -> bool:
    """Whether a reply has gpt-oss's channels; its template takes only the answer."""
    return text.startswith("<|channel|>")


def _may_open(text: str) -> bool:
    begun = text.lstrip()
    if any(mark.startswith(begun) for mark in _BEGINNINGS):
        return True
    named = begun.startswith(("<|channel>", "<|channel|>", "<|start|>assistant<|channel|>"))
    return named and len(begun) < _LONGEST and "\n" not in begun and "<|message|>" not in begun


def _overlap(text: str, mark: str) -> int:
    """Length of the longest suffix of the text that is a prefix of the mark."""
    return next((size for size in range(min(len(mark) - 1, len(text)), 0, -1) if mark.startswith(text[-size:])), 0)
