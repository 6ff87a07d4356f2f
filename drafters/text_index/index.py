"""The index: adds, removes and finds text, keeps its folder consistent, and finds the index of a model."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from slipstream.drafters.text_index.segment import Matches, Segment, search, write_segment
from slipstream.drafters.text_index.storage import (
    MANIFEST,
    Manifest,
    due,
    explained,
    is_ours,
    locked,
    make_private,
    read_manifest,
    write_manifest,
)
from slipstream.drafters.text_index.text import Document, Ids, Piece, Text, combined, sorted_contexts
from slipstream.models.errors import SlipstreamError
from slipstream.models.files import sync_folder
from slipstream.models.gguf.reader import Header
from slipstream.models.outside import shown_path
from slipstream.models.types import Token

_AT_ONCE: Final = 1 << 15  # most tokens that ``add`` merges while its caller waits; larger merges are left to ``tidy``

_LARGEST: Final = 1 << 31  # tokens of a segment
_TOKENIZER: Final = "tokenizer.ggml."
_SPECIAL: Final = ("_token", "_token_id")  # keys of BOS, EOS and padding, which differ between uploads of one model


@dataclass(frozen=True, slots=True)
class Size:
    """The size of an index."""

    tokens: int  # indexed tokens
    documents: int
    segments: int  # number of files that hold them
    bytes: int  # bytes on disk: 8 for each token and about 40 for each document


class TextIndex:
    """Token ids of one vocabulary in one folder; threads and processes may share it.

    Searching takes no lock: segments never change, and the tuple of live segments is replaced as a whole. A change
    sorts contexts before it takes the folder's lock, and holds the lock only while it writes, so that no process waits
    for a large merge. The manifest is replaced last: if a process is killed, the index has either its old or its new
    state, and the next process that opens or changes the index deletes leftover files.

    A search reads log2(n) + 3 contexts in each segment, twice log2(n) more in those that hold the longest match, and
    ``most`` continuations; its time does not depend on the length of ``tail``.
    """

    def __init__(self, folder: Path, vocabulary: str, n_vocab: int) -> None:
        """Opens an index, or makes an empty one.

        Args:
            folder: Its folder; it should hold nothing else.
            vocabulary: Fingerprint of the ids' vocabulary.

        Raises:
            SlipstreamError: If it is damaged, of another vocabulary, locked for too long, or cannot be written.
        """
        self._folder = folder
        self._manifest = Manifest(vocabulary, n_vocab)
        self._loaded: tuple[int, int, int] | None = None  # signature of the loaded manifest
        self._live: tuple[Segment, ...] = ()
        self._reloading = threading.Lock()  # so that no thread replaces a newer state by an older one
        with explained(folder):
            make_private(folder)
            with locked(folder):
                if not (folder / MANIFEST).exists():
                    write_manifest(folder, self._manifest)
                self.refresh()
                self._clean()

    @staticmethod
    def existing(folder: Path) -> TextIndex | None:
        """Opens an index of any vocabulary; None if there is none.

        Raises:
            SlipstreamError: As the constructor does.
        """
        try:
            manifest = read_manifest(folder)
        except FileNotFoundError:
            return None
        return TextIndex(folder, manifest.vocabulary, manifest.n_vocab)

    @property
    def segments(self) -> Sequence[Segment]:
        return self._live

    @property
    def empty(self) -> bool:
        return not any(document.tokens for segment in self._live for document in segment.documents)

    def search(self, tail: Sequence[Token], least: int = 2, most: int = 64) -> Matches:
        """Finds what followed the longest match of a text's end.

        Args:
            tail: The text; only its last 16 tokens are used.
            least: Fewest tokens of a match.
            most: Most matches whose continuation is read; of more, an evenly spread sample is read.

        Returns:
            The continuations; empty if no match is long enough.
        """
        return search(self._live, tail, least, most)

    def add(self, pieces: Iterable[Piece], still_wanted: Callable[[], bool] = lambda: True) -> bool:
        """Adds text to existing or new documents; searches find it at once.

        A reply makes one small segment, merged with earlier small ones. Add many documents in few calls, each of up to
        some million tokens, then call ``tidy``.

        Args:
            still_wanted: Called under the folder's lock just before writing; if it returns False, nothing is written.
                So text that was meanwhile deleted, first at its source and then here, is not added again.

        Returns:
            Whether it was still wanted.

        Raises:
            ValueError: If an id is not of the vocabulary, or the text has 2^31 tokens or more.
            SlipstreamError: If it cannot be written; nothing is added then.
        """
        given = list(pieces)
        for piece in given:
            if piece.tokens and not 0 <= min(piece.tokens) <= max(piece.tokens) < self._manifest.n_vocab:
                raise ValueError(f"{piece.name!r} has tokens that the vocabulary lacks")
        fresh = Text.of(given)
        if len(fresh.body) >= _LARGEST:
            raise ValueError("too much text for one call")
        while given:
            self.refresh()
            live = self._live
            merged = [live[i] for i in due([segment.slots for segment in live], _AT_ONCE, len(fresh.body))]
            done = self._merge(merged, [fresh], still_wanted)
            if done is not None:
                return done
        return True

    def tidy(self) -> None:
        """Merges segments until n tokens are in at most log2(n) + 1; may be slow, but blocks no other process.

        Raises:
            SlipstreamError: If it cannot be written; the index then stays unchanged.
        """
        while True:
            self.refresh()
            live = self._live
            group = due([segment.slots for segment in live], _LARGEST)
            if not group:
                return
            self._merge([live[i] for i in group], [])

    def remove(self, names: Collection[str]) -> int:
        """Removes documents: when this returns, no file of the folder holds their tokens.

        The segments that held them are rewritten, in time linear in their length. Another process that has the
        index open keeps the old segments until its next ``refresh``.

        Returns:
            Number of tokens removed.

        Raises:
            SlipstreamError: If it cannot be written; some documents may remain, so call again.
        """
        wanted = frozenset(names)
        with self._changing():
            return self._remove(wanted)

    def documents(self) -> dict[str, Document]:
        found: dict[str, Document] = {}
        for segment in self._live:
            for document in segment.documents:
                found[document.name] = combined(found.get(document.name), document)
        return found

    def size(self) -> Size:
        live, documents = self._live, self.documents()
        tokens = sum(document.tokens for document in documents.values())
        return Size(tokens, len(documents), len(live), sum(segment.file_size for segment in live))

    def refresh(self) -> None:
        """Loads changes by other processes; costs one ``stat`` if there are none.

        Raises:
            SlipstreamError: If the index was damaged or its vocabulary changed; the open segments stay open.
        """
        with self._reloading:
            if self._loaded is None or self._loaded != self._signature():
                self._reload()

    def close(self) -> None:
        self._live, self._loaded = (), None

    def _signature(self) -> tuple[int, int, int] | None:
        try:
            stat = (self._folder / MANIFEST).stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_ino, stat.st_size

    def _reload(self) -> None:
        for _ in range(9):  # between reading the manifest and opening a segment, another process may replace both
            try:
                signature, manifest = self._signature(), read_manifest(self._folder)
                self._check_vocabulary(manifest)
                known = {segment.name: segment for segment in self._live}
                live = [
                    known[name] if name in known else Segment(self._folder / name, manifest.n_vocab)
                    for name in manifest.segments
                ]
            except FileNotFoundError:
                continue
            self._manifest, self._live, self._loaded = manifest, tuple(live), signature
            return
        raise SlipstreamError(
            f"the text index in {shown_path(self._folder)} is damaged: a file is missing.",
            "Delete that folder and index the text again; chats and files are not touched by that.",
        )

    def _check_vocabulary(self, manifest: Manifest) -> None:
        mine = self._manifest
        if (manifest.vocabulary, manifest.n_vocab) != (mine.vocabulary, mine.n_vocab):
            raise SlipstreamError(
                f"the text index in {shown_path(self._folder)} is of another vocabulary than this model's.",
                "Keep one folder for each vocabulary, or delete that one and index the text again.",
            )

    def _merge(
        self, old: list[Segment], fresh: list[Text], still_wanted: Callable[[], bool] = lambda: True
    ) -> bool | None:
        """Merges live segments and new text into one segment.

        Returns:
            Whether the text was still wanted; None if an old segment is no longer live: the caller tries again.
        """
        text = Text.joined([*(segment.text for segment in old), *fresh])
        contexts = sorted_contexts(text.stream)
        with self._changing():
            if not set(old) <= set(self._live):
                return None
            if not still_wanted():
                return False
            self._commit(old, [(text, contexts)])
            return True

    def _remove(self, names: frozenset[str]) -> int:
        held = [segment for segment in self._live if any(document.name in names for document in segment.documents)]
        rest = [segment.without(names) for segment in held]
        gone = sum(document.tokens for s in held for document in s.documents if document.name in names)
        if held:
            self._commit(held, [(text, contexts) for text, contexts in rest if text.documents])
        return gone

    def _commit(self, old: list[Segment], new: list[tuple[Text, Ids]]) -> None:
        """Replaces old segments by new ones."""
        names = [self._manifest.name(offset) for offset in range(len(new))]
        for name, (text, contexts) in zip(names, new, strict=True):
            write_segment(self._folder / name, text, contexts)
        kept = [segment.name for segment in self._live if segment not in old]
        changed = replace(self._manifest, segments=(*kept, *names), next=self._manifest.next + len(new))
        write_manifest(self._folder, changed)
        with self._reloading:
            self._reload()

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Holds the folder's lock; reloads the live segments before the change, and deletes unused files after it."""
        with explained(self._folder), locked(self._folder):
            with self._reloading:
                self._reload()
            yield
            self._clean()

    def _clean(self) -> None:
        """Deletes files that the manifest does not list: replaced ones, and those that a killed process left."""
        unused = [
            path for path in self._folder.iterdir() if is_ours(path.name) and path.name not in self._manifest.segments
        ]
        for path in unused:
            path.unlink()
        sync_folder(self._folder)


def fingerprint(header: Header) -> str:
    """SHA-256, in hex, of the metadata that decide how plain text is tokenized."""
    digest = hashlib.sha256()
    for key in sorted(header.metadata):
        if key.startswith(_TOKENIZER) and not key.endswith(_SPECIAL):
            digest.update(repr((key, header.metadata[key])).encode())
    return digest.hexdigest()


def folder_of(root: Path, header: Header) -> Path:
    """The folder of a model's index, below ``root``."""
    return root / fingerprint(header)[:16]


def open_index(root: Path, header: Header) -> TextIndex:
    """Opens the index of a model, or makes an empty one.

    Raises:
        SlipstreamError: If it is damaged, locked for too long, or cannot be written.
    """
    with explained(root):
        make_private(root)
    return TextIndex(folder_of(root, header), fingerprint(header), header.n_vocab)


def forget(root: Path, unwanted: Callable[[str], bool]) -> set[str]:
    """Removes documents from every index in the folders of ``root``.

    Args:
        unwanted: Whether to remove the document of this name.

    Returns:
        The names of the removed documents.

    Raises:
        SlipstreamError: If an index cannot be read or written; the others are still processed.
    """
    removed, failure = set[str](), None
    for folder in sorted(root.iterdir()) if root.is_dir() else []:
        try:
            index = TextIndex.existing(folder) if folder.is_dir() else None
            names = set(filter(unwanted, index.documents())) if index else set()
            if index and names:
                index.remove(names)
            removed |= names
        except SlipstreamError as error:
            failure = error
    if failure:
        raise failure
    return removed
