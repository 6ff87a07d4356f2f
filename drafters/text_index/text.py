"""Documents as one backward stream of ids, and the sorted order of its contexts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

import numpy as np
from numpy.typing import NDArray

from slipstream.models.types import Token

Ids = NDArray[np.uint32]

DEPTH: Final = 16
"""Tokens of a context that are compared; also the longest match (REST's longest is 16 too)."""

SEPARATOR: Final = 0xFFFF_FFFF  # ends each piece; -1 as a signed number, sorts after every token

PADDING: Final = (
    DEPTH  # separators before the first and after the last document, so that reading from any place stays inside
)

_ORDER: Final = np.dtype(">u4")  # big-endian numbers compared as bytes are in numeric order


@dataclass(frozen=True, slots=True)
class Piece:
    """Text to be indexed; one document may come in many pieces."""

    name: str  # the document: a chat's id, a file's path
    tokens: Sequence[Token]  # the text; no match crosses its ends
    stamp: int = 0  # a number of the caller that grows with changes: the last message, a file's time


@dataclass(frozen=True, slots=True)
class Document:
    """The part of a document in an index."""

    name: str
    stamp: int  # the greatest stamp of its pieces
    tokens: int
    slots: int  # length of its part of the stream: the tokens and a separator for each piece


@dataclass(frozen=True, slots=True)
class Text:
    """Documents in a stream that runs backwards, so that the context of a token is what follows it in the stream."""

    documents: tuple[Document, ...]  # in the order of the stream
    stream: Ids  # [slots + 2 paddings] big-endian ids: each piece from its last token to its first, then a separator

    @property
    def body(self) -> Ids:
        """The stream without its paddings."""
        return self.stream[PADDING : len(self.stream) - PADDING]

    @staticmethod
    def of(pieces: Iterable[Piece]) -> Text:
        """Lays out pieces; those of one document are adjacent."""
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
        """Joins texts; the parts of a document become adjacent."""
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
        """Removes documents, in time linear in the text.

        Args:
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
    """Adds up two parts of one document."""
    if known is None:
        return more
    return Document(more.name, max(known.stamp, more.stamp), known.tokens + more.tokens, known.slots + more.slots)


def _separators(count: int) -> Ids:
    return np.full(count, SEPARATOR, _ORDER)


def _padded(parts: Iterable[Ids]) -> Ids:
    return np.concatenate([_separators(PADDING), *parts, _separators(PADDING)], dtype=_ORDER)


def sorted_contexts(stream: Ids) -> Ids:
    """Sorts the places of a stream by the ``DEPTH`` ids that begin there; ties keep the order of the stream.

    The stream runs backwards (see ``Text``), so the ids that begin at a place are the context of the token before it,
    nearest token first. Comparing stops at a separator. So the order of a document's places does not depend on the
    documents around it, and the other places stay sorted when a document is removed.

    This is prefix doubling (Manber and Myers, 1990) that skips finished groups (Larsson and Sadakane, 2007) and ends at
    16 ids. The first 64-bit key holds two ids, or four if they fit 16 bits; so three or two more rounds follow. Each is
    one argsort of the places that still tie. It takes O(n log n) time, and 70 bytes of memory for each id.

    Args:
        stream: [n] ids, the last one a separator, n below 2^32.

    Returns:
        The places of tokens that have a token before them in the stream, which is the continuation to draft.
    """
    ids = stream.astype(np.uint32)
    packed = 4 if np.max(ids, where=ids != SEPARATOR, initial=0) < 0xFFFF else 2
    keys = _packed_keys(ids, packed)
    order = np.argsort(keys, kind="stable")
    slots = np.arange(len(ids))
    first, alone = _groups(keys[order], slots)
    del keys
    ranks = np.empty(len(ids), np.uint32)
    ranks[order] = first
    left = _left_in_document(ids)
    depth = packed
    while depth < DEPTH:
        slots = slots[~alone & (left[order[slots]] >= depth)]
        places = order[slots]
        pairs = ranks[places].astype(np.uint64) << np.uint64(32) | ranks[places + depth]
        resorted = np.argsort(pairs, kind="stable")
        places = places[resorted]
        order[slots] = places  # groups keep their slots: their rank is the key's upper half
        first, alone = _groups(pairs[resorted], slots)
        ranks[places] = first
        depth *= 2
    useful = (ids[order] != SEPARATOR) & (ids[order - 1] != SEPARATOR)  # index -1 is the last id, a separator
    return np.asarray(order[useful], np.uint32)


def _packed_keys(ids: Ids, packed: int) -> NDArray[np.uint64]:
    """The first ids of every place in one number; after a separator there are only separators."""
    bits = 64 // packed
    mask = np.uint32((1 << bits) - 1)  # the separator becomes all ones
    keys = (ids & mask).astype(np.uint64)
    last = ids
    for ahead in range(1, packed):
        following = np.full_like(ids, SEPARATOR)
        following[:-ahead] = ids[ahead:]
        following[last == SEPARATOR] = SEPARATOR
        keys = keys << np.uint64(bits) | (following & mask)
        last = following
    return keys


def _groups(keys: NDArray[np.uint64], slots: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Per slot of sorted keys: the first slot of its group of equal keys, and whether it is a group of one."""
    begins = np.ones(len(keys) + 1, np.bool_)
    np.not_equal(keys[1:], keys[:-1], out=begins[1:-1])
    first = np.maximum.accumulate(np.where(begins[:-1], slots, 0))
    return first, begins[:-1] & begins[1:]


def _left_in_document(ids: Ids) -> NDArray[np.uint8]:
    """Per place, the ids before the next separator, at most ``DEPTH``."""
    ends = np.flatnonzero(ids == SEPARATOR)
    next_end = np.repeat(ends, np.diff(ends, prepend=-1))
    return np.asarray(np.minimum(next_end - np.arange(len(ids)), DEPTH), np.uint8)
