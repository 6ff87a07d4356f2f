"""Documents as one backward stream of ids."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

import numpy as np

from slipstream.drafters.text_index.suffix_array import DEPTH, SEPARATOR, Ids
from slipstream.models.types import Token

PADDING: Final = DEPTH
"""Separators before the first and behind the last document: reading from any place stays inside."""

_ORDER: Final = np.dtype(">u4")  # compared as bytes, big-endian numbers have their own order


@dataclass(frozen=True, slots=True)
class Piece:
    """Text to be indexed; one document may come in many pieces.

    Attributes:
        name: The document: a chat's id, a file's path.
        tokens: The text; nothing is matched across its ends.
        stamp: A number of the caller's that grows: the last message, the time of a file.
    """

    name: str
    tokens: Sequence[Token]
    stamp: int = 0


@dataclass(frozen=True, slots=True)
class Document:
    """What an index holds of a document.

    Attributes:
        name: Its name.
        stamp: The greatest stamp of its pieces.
        tokens: Number of tokens.
        slots: Length of its part of the stream: the tokens and a separator for each piece.
    """

    name: str
    stamp: int
    tokens: int
    slots: int


@dataclass(frozen=True, slots=True)
class Text:
    """Documents in a stream that runs backwards, so that the context of a token is what follows it in the stream.

    Attributes:
        documents: In the order of the stream.
        stream: [slots + 2 paddings] big-endian ids: each piece from its last token to its first, then a separator.
    """

    documents: tuple[Document, ...]
    stream: Ids

    @property
    def body(self) -> Ids:
        """The stream without its paddings."""
        return self.stream[PADDING : len(self.stream) - PADDING]

    @staticmethod
    def of(pieces: Iterable[Piece]) -> Text:
        """Lays out pieces, those of one document side by side."""
        texts = [
            Text(
                (Document(piece.name, piece.stamp, len(piece.tokens), len(piece.tokens) + 1),),
                _padded([np.array(piece.tokens, _ORDER)[::-1], _separators(1)]),
            )
            for piece in pieces
        ]
        return Text.joined(texts)

    @staticmethod
    def joined(texts: Sequence[Text]) -> Text:
        """Makes one of many; the parts of a document come together."""
        parts: dict[str, list[Ids]] = {}
        found: dict[str, Document] = {}
        for text in texts:
            start = 0
            for document in text.documents:
                parts.setdefault(document.name, []).append(text.body[start : start + document.slots])
                start += document.slots
        for document in chain.from_iterable(text.documents for text in texts):
            found[document.name] = combined(found.get(document.name), document)
        return Text(tuple(found[name] for name in parts), _padded(chain.from_iterable(parts.values())))

    def without(self, names: Collection[str], positions: Ids) -> tuple[Text, Ids]:
        """Leaves documents out, in time linear in the text.

        Args:
            names: The documents.
            positions: The sorted places of this text.

        Returns:
            The rest and its sorted places.
        """
        lengths = np.array([document.slots for document in self.documents], np.int64)
        kept_documents = np.array([document.name not in names for document in self.documents], np.bool_)
        kept = np.ones(len(self.stream), np.bool_)
        kept[PADDING : len(kept) - PADDING] = np.repeat(kept_documents, lengths)
        moved = (np.cumsum(kept) - 1).astype(np.uint32)
        rest = tuple(document for document in self.documents if document.name not in names)
        return Text(rest, self.stream[kept]), moved[positions[kept[positions]]]


def combined(known: Document | None, more: Document) -> Document:
    """Adds up what two places hold of one document."""
    if known is None:
        return more
    return Document(more.name, max(known.stamp, more.stamp), known.tokens + more.tokens, known.slots + more.slots)


def _separators(count: int) -> Ids:
    return np.full(count, SEPARATOR, _ORDER)


def _padded(parts: Iterable[Ids]) -> Ids:
    return np.concatenate([_separators(PADDING), *parts, _separators(PADDING)], dtype=_ORDER)
