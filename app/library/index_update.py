"""Updates an index from folders: finds text files, reads new and changed ones, removes deleted ones."""

import os
import stat
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Final

from slipstream.app.platform.safe_text import plural
from slipstream.drafters.text_index import TextIndex, TextPiece
from slipstream.models.types import Token

LARGEST: Final = 2_000_000  # maximum bytes of a file: people seldom write larger ones
_LOOK: Final = 8_192  # first bytes of a file; most binary files have a zero among them
_SKIPPED_FOLDERS: Final = frozenset({"node_modules", "__pycache__", "bower_components"})
_MARKS: Final = ("CACHEDIR.TAG", "pyvenv.cfg")  # files that mark caches, Rust builds and virtual environments
_BATCH: Final = 4_000_000  # tokens that are written at once: each time, the whole index is sorted
_CHUNK: Final = 1 << 15  # characters that are tokenized at once: some tokenizers recurse over their input
_SHOW_EVERY: Final = 0.2  # seconds
_REASONS: Final = ("too large", "not text", "unreadable")  # for which files are skipped
Skipped = Counter[str]  # numbers of skipped files by reason


def text_files(path: Path, skipped: Skipped) -> Iterator[tuple[Path, int]]:
    """Finds the files below a folder, or a file, that may be text, with their last changes in nanoseconds.

    Skips hidden files and folders, links, caches and folders of installed packages, but not ``path`` itself.
    """

    def unreadable(_error: OSError) -> None:
        skipped["unreadable"] += 1

    for file in [path] if path.is_file() else _walk(path, unreadable):
        try:
            facts = file.stat()
        except OSError:
            skipped["unreadable"] += 1
            continue
        if stat.S_ISREG(facts.st_mode) and facts.st_size > LARGEST:
            skipped["too large"] += 1
        elif stat.S_ISREG(facts.st_mode):
            yield file, facts.st_mtime_ns


def read_text(file: Path, skipped: Skipped) -> str | None:
    """Reads a file; None if its content is not text, or it cannot be read."""
    try:
        with file.open("rb") as source:
            raw = source.read(_LOOK)
            if b"\0" not in raw:
                raw += source.read(LARGEST)
    except OSError:
        skipped["unreadable"] += 1
        return None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        skipped["not text"] += 1
        return None
    return text


def _walk(folder: Path, on_error: Callable[[OSError], None]) -> Iterator[Path]:
    for here, folders, files in os.walk(folder, onerror=on_error):
        at = Path(here)
        if at != folder and any(mark in files for mark in _MARKS):
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _SKIPPED_FOLDERS)
        for name in sorted(files):
            if not name.startswith(".") and not (at / name).is_symlink():
                yield at / name


class Update:
    """One run over some folders.

    A file counts as changed if its modification time differs. Each batch is written whole or not at all, so that a
    stopped run can be resumed.
    """

    def __init__(
        self, index: TextIndex, tokenize: Callable[[str, bool], list[Token]], progress: IO[str], lines: bool = False
    ) -> None:
        self._index, self._tokenize, self._progress, self._lines = index, tokenize, progress, lines
        self._known = {name: document.stamp for name, document in index.documents().items()}
        self._pieces: list[TextPiece] = []
        self._outdated = set[str]()
        self._size = self._tokens = self._new = self._changed = self._same = self._gone = 0
        self._skipped = Skipped()
        self._shown = 0.0

    def __str__(self) -> str:
        counts = f"{self._new:,} new, {self._changed:,} changed, {self._same:,} unchanged, {self._gone:,} gone"
        skipped = ", ".join(f"{self._skipped[why]:,} {why}" for why in _REASONS if self._skipped[why])
        return f"files: {counts}{skipped and f'; left out: {skipped}'}"

    def take(self, root: Path) -> None:
        """Indexes a folder, or a file; if the index cannot be written, earlier batches stay."""
        found = set[str]()
        for file, stamp in text_files(root, self._skipped):
            name = str(file)
            if self._known.get(name) == stamp:
                self._same += 1
            elif (text := read_text(file, self._skipped)) is not None:
                self._add(name, text, stamp)
            else:
                continue
            found.add(name)
            self._show()
        gone = {name for name in self._known if is_below(name, str(root))} - found
        if gone:
            self._index.remove(gone)
            self._gone += len(gone)

    def finish(self) -> None:
        self._write()
        self._show(last=True)

    def _add(self, name: str, text: str, stamp: int) -> None:
        if name in self._known:
            self._outdated.add(name)
        self._known[name] = stamp
        tokens = [token for chunk in chunks(text) for token in self._tokenize(chunk, False)]
        self._pieces.append(TextPiece(name, array("I", tokens), stamp))
        self._size += len(tokens)
        if self._size >= _BATCH:
            self._write()

    def _write(self) -> None:
        self._index.add(self._pieces, instead_of=[piece.name for piece in self._pieces])  # another may have added them
        self._changed += len(self._outdated)
        self._new += len(self._pieces) - len(self._outdated)
        self._tokens += self._size
        self._pieces, self._size, self._outdated = [], 0, set()

    def _show(self, last: bool = False) -> None:
        now = time.monotonic()
        silent = not self._lines and not self._progress.isatty()
        if silent or (now - self._shown < _SHOW_EVERY and not last):
            return
        self._shown = now
        files = self._new + self._changed + self._same + len(self._pieces)
        line = f"{plural(files, 'file')}, {plural(self._tokens + self._size, 'token')}"
        if self._lines:
            print(line, file=self._progress, flush=True)
        else:
            print("\r\x1b[K" if last else f"\r\x1b[K{line}", end="", file=self._progress, flush=True)


def is_below(name: str, place: str) -> bool:
    """Whether a path is ``place`` or below it; both absolute."""
    return name == place or name.startswith(place.rstrip(os.sep) + os.sep)


def chunks(text: str) -> Iterator[str]:
    """Cuts text into chunks, between lines if possible."""
    at = 0
    while at < len(text):
        end = at + _CHUNK
        if end < len(text):
            end = text.rfind("\n", at, end) + 1 or end
        yield text[at:end]
        at = end
