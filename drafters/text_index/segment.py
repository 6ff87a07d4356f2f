"""The immutable files of an index, each a text with its sorted contexts and documents, and a search over them."""

from __future__ import annotations

import json
import mmap
import struct
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Final

import numpy as np

from slipstream.drafters.text_index.text import DEPTH, PADDING, SEPARATOR, Document, Ids, Text
from slipstream.models.errors import SlipstreamError
from slipstream.models.files import write_file
from slipstream.models.outside import shown_path
from slipstream.models.types import Token

_MAGIC: Final = b"SLIPTXT1"
_HEAD: Final = struct.Struct("=8sIIQQQ")  # magic, byte order, unused; lengths: stream, contexts, bytes of documents
_SAME_ORDER: Final = 0x01020304
_CONTEXT: Final = 4 * DEPTH
_AHEAD: Final = struct.Struct(f">{DEPTH}i")
_BEHIND_ALL: Final = b"\xff" * (_CONTEXT + 4)


@dataclass(frozen=True, slots=True)
class Matches:
    """The continuations of the longest match."""

    matched: int = 0  # length of the match
    # for each match that was read, the ``DEPTH`` tokens after it, the next one *last*; -1 marks the end of the piece,
    # and the entries before it belong to another piece
    ahead: tuple[tuple[Token, ...], ...] = ()


def context_key(tail: tuple[Token, ...]) -> bytes:
    """The last tokens of a text, at most ``DEPTH``, as a key that sorts like the contexts: nearest token first."""
    return struct.pack(f">{len(tail)}I", *reversed(tail)).ljust(_CONTEXT, b"\xff")


def write_segment(path: Path, text: Text, contexts: Ids) -> None:
    """Writes a segment: 8 bytes a slot, and about 40 bytes and its name for each document."""
    table = json.dumps([astuple(document) for document in text.documents]).encode()
    head = _HEAD.pack(_MAGIC, _SAME_ORDER, 0, len(text.stream), len(contexts), len(table))
    write_file(path, [head, _raw(text.stream), _raw(contexts), table])


class Segment:
    """A segment, memory-mapped.

    The contexts are sorted by their last token, then by the one before it, and so on. So for every m, all places that
    share m tokens with the end of a text are adjacent, and those that share the most are next to the position where the
    text itself would be inserted. One binary search finds the longest match; a suffix array of the forward text, as in
    REST, needs one search for each length.

    Attributes:
        name: Its file's name.
        documents: Its documents, in the order of the stream.
    """

    def __init__(self, path: Path, n_vocab: int) -> None:
        """Opens a segment, reads it once and checks every place and every id in it.

        Raises:
            FileNotFoundError: If there is none.
            SlipstreamError: If it is damaged or not a segment.
        """
        self.name = path.name
        self._path = path
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            raise
        except (OSError, ValueError) as error:  # an empty file cannot be mapped
            raise self._damaged(str(error)) from error
        if len(self._map) < _HEAD.size:
            raise self._damaged("it is too short")
        magic, order, _, slots, contexts, table = _HEAD.unpack_from(self._map)
        if magic != _MAGIC or order != _SAME_ORDER:
            raise self._damaged("it is no segment of this machine")
        if len(self._map) != _HEAD.size + 4 * (slots + contexts) + table or slots < 2 * PADDING:
            raise self._damaged("its length is wrong")
        start = _HEAD.size + 4 * slots
        self._stream = np.frombuffer(self._map, ">u4", slots, _HEAD.size)
        self._places = np.frombuffer(self._map, np.uint32, contexts, start)
        self._positions = memoryview(self._map)[start : start + 4 * contexts].cast("I")
        self.documents = self._read_documents(bytes(self._map[start + 4 * contexts :]))
        self._check(n_vocab)

    @property
    def slots(self) -> int:
        """Length of its documents in the stream."""
        return len(self._stream) - 2 * PADDING

    @property
    def file_size(self) -> int:
        return len(self._map)

    @property
    def text(self) -> Text:
        """Its text, without a copy."""
        return Text(self.documents, self._stream)

    def without(self, names: frozenset[str]) -> tuple[Text, Ids]:
        """Its text without the named documents, and the sorted places of the rest."""
        return self.text.without(names, self._places)

    def find(self, key: bytes) -> tuple[int, int]:
        """Finds the longest match, reading log2(n) + 3 contexts.

        Returns:
            The index where the key would be inserted, and how many tokens it shares with its best neighbour.
        """
        at = bisect_left(self._positions, key, key=self.context_at)
        shared = 0
        for neighbour in range(max(at - 1, 0), min(at + 1, len(self._positions))):
            context = self.context_at(self._positions[neighbour])
            differ = int.from_bytes(key) ^ int.from_bytes(context)
            shared = max(shared, (8 * _CONTEXT - differ.bit_length()) // 32)
        return at, shared

    def matching(self, key: bytes, at: int, matched: int) -> tuple[int, int]:
        """The places that share ``matched`` tokens with the key, whose index is ``at``; reads 2 log2(n) contexts."""
        prefix = key[: 4 * matched]
        low = bisect_left(self._positions, prefix, hi=at, key=self.context_at)
        return low, bisect_left(self._positions, prefix + _BEHIND_ALL, lo=at, key=self.context_at)

    def ahead(self, index: int) -> tuple[Token, ...]:
        """The ``DEPTH`` tokens that followed a place, the next one last; -1 is the end of a piece."""
        ahead: tuple[Token, ...] = _AHEAD.unpack_from(self._map, _HEAD.size + 4 * (self._positions[index] - DEPTH))
        return ahead

    def context_at(self, place: int) -> bytes:
        start = _HEAD.size + 4 * place
        return self._map[start : start + _CONTEXT]

    def _read_documents(self, table: bytes) -> tuple[Document, ...]:
        try:
            rows = json.loads(table)
            documents = tuple(Document(str(name), int(s), int(t), int(n)) for name, s, t, n in rows)
        except (ValueError, TypeError) as error:
            raise self._damaged("its list of documents cannot be read") from error
        if sum(document.slots for document in documents) != self.slots or any(d.slots < 0 for d in documents):
            raise self._damaged("its documents have another length than its text")
        return documents

    def _check(self, n_vocab: int) -> None:
        ids, places = self._stream, self._places
        if np.max(ids, where=ids != SEPARATOR, initial=0) >= n_vocab:
            raise self._damaged("it holds ids that the vocabulary lacks")
        if len(places) and (places.min() < PADDING or places.max() >= len(ids) - PADDING):
            raise self._damaged("it points outside its text")

    def _damaged(self, why: str) -> SlipstreamError:
        return SlipstreamError(
            f"the text index in {shown_path(self._path.parent)} is damaged: {self.name}: {why}.",
            "Delete that folder and index the text again; chats and files are not touched by that.",
        )


def search(segments: Iterable[Segment], tail: Sequence[Token], least: int, most: int) -> Matches:
    """Finds the longest match, then reads what followed it.

    Args:
        tail: The text; only its last ``DEPTH`` tokens are used.
        least: Fewest tokens of a match.
        most: Most matches whose continuation is read; of more, an evenly spread sample is read.
    """
    recent = tuple(tail[-DEPTH:])
    key = context_key(recent)
    matched, spots = max(least, 1), list[tuple[Segment, int]]()
    for segment in segments:
        at, shared = segment.find(key)
        shared = min(shared, len(recent))  # a short key is padded with separators
        if shared > matched:
            matched, spots = shared, []
        if shared == matched:
            spots.append((segment, at))
    ranges = [(segment, *segment.matching(key, at, matched)) for segment, at in spots]
    places = sum(high - low for _, low, high in ranges)
    if not places:
        return Matches()
    wanted = iter(range(places) if places <= most else [(2 * i + 1) * places // (2 * most) for i in range(most)])
    ahead, passed, place = list[tuple[Token, ...]](), 0, next(wanted, places)
    for segment, low, high in ranges:
        while place < passed + high - low:
            ahead.append(segment.ahead(low + place - passed))
            place = next(wanted, places)
        passed += high - low
    return Matches(matched, tuple(ahead))


def _raw(values: Ids) -> memoryview:
    return np.ascontiguousarray(values).data
