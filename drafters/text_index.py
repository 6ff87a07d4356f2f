"""An index on disk over the token ids of past chats and of folders, which finds the continuations of the last words.

One folder holds the text of one vocabulary, in one file: the text, the sorted array of its contexts, and the list of
its documents. A change sorts the whole text anew, writes the file aside and renames it, under one lock.
"""

import json
import os
import stat
import struct
import sys
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass
from itertools import compress
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.models.errors import SlipstreamError, reason_of
from slipstream.models.files import locked, make_folder, replace_file, sync_folder
from slipstream.models.gguf.reader import Header
from slipstream.models.gguf.vocabulary import tokenizer_digest
from slipstream.models.outside import shown_path
from slipstream.models.types import Token

DEPTH: Final = 16  # tokens of a context that are compared; also the longest match, as in REST
FILE: Final = "text.index"
LOCK: Final = "lock"
_HEAD: Final = struct.Struct("=8sIIQQ")  # magic, byte order, length of the table; lengths of stream and contexts
_MAGIC: Final = b"SLIPTXT2"
_SAME_ORDER: Final = 0x01020304
_LOCK_SECONDS: Final = 60.0  # longest wait for the lock: a million tokens are sorted in about a second
_SEPARATOR: Final = 0xFFFF_FFFF  # ends each piece; -1 as a signed number, sorts after every token
_ORDER: Final = np.dtype(">u4")  # big-endian numbers compared as bytes are in numeric order
_PADDING: Final = np.full(DEPTH, _SEPARATOR, _ORDER)  # around the text, so that reading from any place stays inside
_CONTEXT: Final = 4 * DEPTH
_AHEAD: Final = struct.Struct(f">{DEPTH}i")
_BEHIND_ALL: Final = b"\xff" * (_CONTEXT + 4)
_UNFINISHED: Final = f".{FILE}.*"  # what ``replace_file`` leaves behind if its process is killed
Ids = NDArray[np.uint32]
Names = Collection[str]


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Text to be indexed; one document may come in many pieces."""

    name: str  # the document: a chat's id, a file's path
    tokens: Sequence[Token]  # the text; no match crosses its ends
    stamp: int = 0  # a number of the caller that grows with changes: the last message, a file's time


@dataclass(frozen=True, slots=True)
class Document:
    """A document, or a piece of one, in an index."""

    name: str
    stamp: int  # the greatest stamp of its pieces
    tokens: int
    slots: int  # length of its part of the stream: the tokens and a separator for each piece


class Matches(NamedTuple):
    """The continuations of the longest match."""

    matched: int = 0  # length of the match
    # for each match that was read, the ``DEPTH`` tokens after it, the next one *last*; -1 marks the end of the piece,
    # and the entries before it belong to another piece
    ahead: tuple[tuple[Token, ...], ...] = ()


class IndexSize(NamedTuple):
    tokens: int
    documents: int
    bytes: int


def sorted_contexts(stream: Ids) -> Ids:
    """Sorts the places of a stream by the ``DEPTH`` ids that begin there, in about 1.2 s for a million.

    The stream runs backwards: the ids that begin at a place are the context of the token before it, nearest token
    first. Places without such a token, the continuation to draft, are left out.
    """
    ids = stream.astype(np.uint64)
    pairs = ids[:-1] << np.uint64(32) | ids[1:]
    count = len(ids) - DEPTH
    order = np.lexsort([pairs[at : at + count] for at in range(DEPTH - 2, -1, -2)])
    useful = (ids[order] != _SEPARATOR) & (ids[order - 1] != _SEPARATOR)  # index -1 is the last id, a separator
    return np.asarray(order[useful], np.uint32)


class _Contents:
    """What a file of an index holds.

    The contexts are sorted by their last token, then by the one before it, and so on: those that share the most tokens
    with a text's end are next to where it would be inserted. So one binary search finds them; REST needs one a length.
    """

    def __init__(self, raw: bytes) -> None:
        """Reads a file, and checks every place and every id in it; raises ``ValueError`` if it is damaged."""
        magic, order, table, slots, contexts = _HEAD.unpack_from(raw.ljust(_HEAD.size))
        start = _HEAD.size + 4 * slots
        if magic != _MAGIC or order != _SAME_ORDER or len(raw) != start + 4 * contexts + table or slots < 2 * DEPTH:
            raise ValueError("it is no index of this machine and version, or cut short")
        self._raw, self.bytes = raw, len(raw)
        self._stream = np.frombuffer(raw, _ORDER, slots, _HEAD.size)
        self._positions = memoryview(raw)[start : start + 4 * contexts].cast("I")
        try:
            self.vocabulary, self.n_vocab, rows = json.loads(raw[start + 4 * contexts :])
            self.documents = [Document(str(name), int(s), int(t), int(n)) for name, s, t, n in rows]
        except (TypeError, RecursionError) as error:
            raise ValueError("its list of documents cannot be read") from error
        lengths, places = [document.slots for document in self.documents], np.asarray(self._positions)
        if min(lengths, default=0) < 0 or sum(lengths) != slots - 2 * DEPTH:
            raise ValueError("its documents have another length than its text")
        most = np.max(self._stream, where=self._stream != _SEPARATOR, initial=0)
        if most >= self.n_vocab or (len(places) and (places.min() < DEPTH or places.max() >= slots - DEPTH)):
            raise ValueError("it points outside its text or vocabulary")

    @staticmethod
    def packed(vocabulary: str, n_vocab: int, documents: Sequence[Document] = (), bodies: Sequence[Ids] = ()) -> bytes:
        """Makes a file of documents and their parts of the stream."""
        stream = np.concatenate([_PADDING, *bodies, _PADDING], dtype=_ORDER)
        places = sorted_contexts(stream)
        table = json.dumps([vocabulary, n_vocab, [astuple(document) for document in documents]]).encode()
        head = _HEAD.pack(_MAGIC, _SAME_ORDER, len(table), len(stream), len(places))
        return b"".join((head, stream.tobytes(), places.tobytes(), table))

    @property
    def body(self) -> Ids:
        return self._stream[DEPTH : len(self._stream) - DEPTH]

    def search(self, recent: tuple[Token, ...], least: int, most: int) -> Matches:
        """Finds the longest match, then reads what followed it; see ``TextIndex.search``."""
        key = struct.pack(f">{len(recent)}I", *reversed(recent)).ljust(_CONTEXT, b"\xff")  # sorts like the contexts
        at, matched = bisect_left(self._positions, key, key=self._context), 0
        for neighbour in self._positions[max(at - 1, 0) : at + 1]:
            differ = int.from_bytes(key) ^ int.from_bytes(self._context(neighbour))
            matched = max(matched, (8 * _CONTEXT - differ.bit_length()) // 32)
        matched = min(matched, len(recent))  # a short key is padded with separators
        if matched < least:
            return Matches()
        prefix = key[: 4 * matched]
        low = bisect_left(self._positions, prefix, hi=at, key=self._context)
        count = bisect_left(self._positions, prefix + _BEHIND_ALL, lo=at, key=self._context) - low
        read = range(count) if count <= most else [(2 * i + 1) * count // (2 * most) for i in range(most)]
        starts = (_HEAD.size + 4 * (self._positions[low + i] - DEPTH) for i in read)
        return Matches(matched, tuple(_AHEAD.unpack_from(self._raw, start) for start in starts))

    def _context(self, place: int) -> bytes:
        start = _HEAD.size + 4 * place
        return self._raw[start : start + _CONTEXT]


class TextIndex:
    """Token ids of one vocabulary in a folder, shared by threads and processes; searching takes no lock."""

    def __init__(self, folder: Path, vocabulary: str, n_vocab: int) -> None:
        """Opens an index, or makes one; raises ``SlipstreamError`` if it is damaged or of another vocabulary."""
        self._folder, self._vocabulary, self._n_vocab = folder, vocabulary, n_vocab
        self._signature: tuple[int, int, int] | None = None
        self.close()
        with _explained(folder):
            make_folder(folder)
            if sys.platform != "win32" and folder.stat().st_mode & 0o077:
                os.chmod(folder, 0o700)
            self.refresh()

    @staticmethod
    def existing(folder: Path) -> "TextIndex | None":
        """Opens an index of any vocabulary; None if there is none; errors as in the constructor."""
        found = _read(folder)
        return TextIndex(folder, found.vocabulary, found.n_vocab) if found else None

    @property
    def empty(self) -> bool:
        return not self.size().tokens

    def search(self, tail: Sequence[Token], least: int = 2, most: int = 64) -> Matches:
        """Finds what followed the longest match of a text's end; of more than ``most``, reads an even sample."""
        return self._contents.search(tuple(tail[-DEPTH:]), max(least, 1), most)

    def add(
        self, pieces: Sequence[TextPiece], still_wanted: Callable[[], bool] = lambda: True, instead_of: Names = ()
    ) -> bool:
        """Adds text to documents, ``instead_of`` others; add much text in one call, since each sorts the whole index.

        ``still_wanted`` is called under the folder's lock; if it returns False, as this then does, nothing is written:
        so text that was meanwhile deleted, first at its source and then here, is not added again.
        """
        for piece in pieces:
            if len(piece.tokens) and not 0 <= min(piece.tokens) <= max(piece.tokens) < self._n_vocab:
                raise ValueError(f"{piece.name!r} has tokens that the vocabulary lacks")
        fresh = [Document(p.name, p.stamp, len(p.tokens), len(p.tokens) + 1) for p in pieces]
        bodies = [np.array([*reversed(piece.tokens), _SEPARATOR], _ORDER) for piece in pieces]
        if not pieces:
            return True
        with self._changing():
            if wanted := still_wanted():
                self._write(instead_of, fresh, bodies)
        return wanted

    def remove(self, names: Names) -> int:
        """Removes documents from the files; returns their tokens. Open indexes keep them until ``refresh``."""
        with self._changing():
            gone = [part.tokens for part in self._contents.documents if part.name in names]
            if gone:
                self._write(names)
            return sum(gone)

    def documents(self) -> dict[str, Document]:
        found: dict[str, Document] = {}
        for part in self._contents.documents:
            one = found.get(part.name, Document(part.name, part.stamp, 0, 0))
            sums = max(one.stamp, part.stamp), one.tokens + part.tokens, one.slots + part.slots
            found[part.name] = Document(part.name, *sums)
        return found

    def size(self) -> IndexSize:
        documents = self.documents()
        return IndexSize(sum(each.tokens for each in documents.values()), len(documents), self._contents.bytes)

    def refresh(self) -> None:
        """Loads changes by other processes; costs one ``stat`` if there are none, and changes nothing if it fails."""
        signature = self._signature
        with suppress(FileNotFoundError):
            facts = (self._folder / FILE).stat()
            signature = facts.st_mtime_ns, facts.st_ino, facts.st_size
        if signature == self._signature or not (found := _read(self._folder)):
            return
        if (found.vocabulary, found.n_vocab) != (self._vocabulary, self._n_vocab):
            raise SlipstreamError(
                f"the text index in {shown_path(self._folder)} is of another vocabulary than this model's.",
                "Keep one folder for each vocabulary, or delete that one and index the text again.",
            )
        self._contents, self._signature = found, signature

    def close(self) -> None:
        self._contents = _Contents(_Contents.packed(self._vocabulary, self._n_vocab))
        self._signature = None

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Holds the folder's lock, with all that others have changed; deletes what a killed process left."""
        with _explained(self._folder), locked(self._folder / LOCK, _LOCK_SECONDS):
            for left in self._folder.glob(_UNFINISHED):
                left.unlink()
            self.refresh()
            yield

    def _write(self, without: Names, fresh: Sequence[Document] = (), bodies: Sequence[Ids] = ()) -> None:
        parts, body, unwanted = self._contents.documents, self._contents.body, frozenset(without)
        stays = np.array([part.name not in unwanted for part in parts], bool)
        body = body[np.repeat(stays, [part.slots for part in parts])]
        packed = _Contents.packed(self._vocabulary, self._n_vocab, [*compress(parts, stays), *fresh], [body, *bodies])
        replace_file(self._folder / FILE, [packed])
        sync_folder(self._folder)
        self.refresh()


def _read(folder: Path) -> _Contents | None:
    """The contents of a folder's file; None if there is none. Raises ``SlipstreamError`` if it is damaged."""
    try:
        if not stat.S_ISREG((folder / FILE).stat().st_mode):
            raise ValueError("it is no file")
        return _Contents((folder / FILE).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise SlipstreamError(
            f"the text index in {shown_path(folder)} is damaged: {FILE}: {error}.",
            "Delete that folder and index the text again; chats and files are not touched by that.",
        ) from error


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SlipstreamError(
            f"cannot write the text index in {shown_path(folder)}: {reason_of(error)}.",
            "Free some room there, or check the folder and its permissions.",
        ) from error


def folder_of(root: Path, header: Header) -> Path:
    """The folder of a model's index, below ``root``."""
    return root / tokenizer_digest(header)[:16]


def open_index(root: Path, header: Header) -> TextIndex:
    """Opens the index of a model, or makes an empty one; errors as in ``TextIndex``."""
    return TextIndex(folder_of(root, header), tokenizer_digest(header), header.n_vocab)
