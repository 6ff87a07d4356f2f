"""Turns tokens into text for the screen: whole characters only, and no part of a stop string."""

import codecs
from collections.abc import Sequence
from typing import Protocol

from slipstream.app.chats.reasoning import Thinking
from slipstream.app.protocol.events import Origin, Piece
from slipstream.models.types import Token


class ChatVocabulary(Protocol):
    """The part of a vocabulary that turns tokens into text."""

    @property
    def ends(self) -> frozenset[Token]:
        """The tokens that end a reply."""

    def piece(self, token: Token) -> bytes:
        """The bytes of a token."""


def reusable(tokens: list[Token], text: str, vocabulary: ChatVocabulary) -> list[Token]:
    """The tokens that spell exactly this text, without end tokens; empty if the text ends inside a token."""
    size, wanted = 0, text.encode()
    for count, token in enumerate(tokens):
        piece = vocabulary.piece(token)
        if size == len(wanted) and (piece or token in vocabulary.ends):
            tokens = tokens[:count]
            break
        size += len(piece)
    return tokens if b"".join(map(vocabulary.piece, tokens)) == wanted else []


class TextStream:
    """Turns the bytes of tokens into pieces of text with their origin.

    It holds back the bytes of an unfinished character, and a suffix that may begin a stop string. A piece has the
    origin of the token that completed its first character.
    """

    def __init__(
        self, stops: Sequence[str] = (), *, marks: Sequence[str] = (), thinking: Thinking | None = None
    ) -> None:
        self._stops, self._marks, self._thinking = tuple(stops), tuple(marks), thinking or Thinking.none()
        self._thought = 0  # number of held characters that are not the answer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held: list[Piece] = []
        self._ended = False
        self._parts: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._parts)

    def feed(self, raw: bytes, origin: Origin, source: str = "") -> list[Piece]:
        return self._take(self._decoder.decode(raw), origin, source)

    def finish(self, stopped: bool = False) -> list[Piece]:
        """Returns the text held back; an unfinished character becomes U+FFFD, or is dropped if ``stopped``."""
        released = [] if stopped else self._take(self._decoder.decode(b"", True), "plain")
        if not self._ended:
            released += self._release(sum(len(piece.text) for piece in self._held))
        return released

    def _take(self, text: str, origin: Origin, source: str = "") -> list[Piece]:
        if self._ended or not text:
            return []
        self._held.append(Piece(text, origin, source))
        if not (self._stops or self._marks):
            return self._release(len(text))
        held = "".join(piece.text for piece in self._held)
        if not self._thinking.over:
            self._thought = len(held) - len(self._thinking.feed(text)[1])
        found = [held.find(stop, self._thought) for stop in self._stops] + [held.find(mark) for mark in self._marks]
        if ends := [at for at in found if at >= 0]:
            self._ended = True
            return self._release(min(ends))
        begun = max(_begun(held[self._thought :], self._stops), _begun(held, self._marks))
        self._thought = max(0, self._thought - len(held) + begun)
        return self._release(len(held) - begun)

    def _release(self, size: int) -> list[Piece]:
        """Returns the first ``size`` held characters; joins neighbouring pieces of the same origin."""
        released: list[Piece] = []
        while size > 0 and self._held:
            piece = self._held.pop(0)
            if len(piece.text) > size:
                self._held.insert(0, Piece(piece.text[size:], piece.origin, piece.source))
                piece = Piece(piece.text[:size], piece.origin, piece.source)
            size -= len(piece.text)
            if released and (released[-1].origin, released[-1].source) == (piece.origin, piece.source):
                piece = Piece(released.pop().text + piece.text, piece.origin, piece.source)
            released.append(piece)
        self._parts.extend(piece.text for piece in released)
        return released


def _begun(text: str, strings: Sequence[str]) -> int:
    longest = max(map(len, strings), default=1) - 1
    sizes = range(min(len(text), longest), 0, -1)
    return next((size for size in sizes if any(string.startswith(text[-size:]) for string in strings)), 0)
