"""The trash: removed models are moved here, so that they can be restored."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final

from slipstream.models.errors import SlipstreamError, UsageError, reason_of
from slipstream.models.files import make_folder
from slipstream.models.gguf.writer import replacing
from slipstream.models.library.records import Removed, record_path
from slipstream.models.outside import count_of, number_in, read_json, shown_path

_NOTE: Final = "removed.json"
_MOST_BYTES: Final = 1 << 20


class Trash:
    """A folder with a numbered folder for each removed model; its files keep their relative paths."""

    def __init__(self, root: Path) -> None:
        """Puts the trash inside ``root``, the folder of models, so that a move is a rename."""
        self._root, self._folder = root, root / ".trash"

    def put(self, name: str, files: Sequence[Path]) -> Removed:
        """Moves a model's files to the trash and removes the folders that become empty.

        Raises:
            SlipstreamError: If they cannot be moved; files that were moved are moved back.
        """
        removed = Removed(name, freed_by(files), tuple(files))
        try:
            place = self._new_place()
        except OSError as error:
            raise _refused(name, error, self._folder) from error
        try:
            with replacing(place / _NOTE) as part:  # written first, so that a kill during the moves loses no file
                paths = [str(file.relative_to(self._root)) for file in files]
                part.write_text(json.dumps({"name": name, "freed": removed.freed, "files": paths}), "utf-8")
            for file in files:
                _move(file, self._in(place, file))
                _move(record_path(file), record_path(self._in(place, file)))
        except (OSError, SlipstreamError) as error:
            self._bring_back(place, files)
            shutil.rmtree(place, ignore_errors=True)
            raise _refused(name, error, self._root) if isinstance(error, OSError) else error from error
        _sweep(files, self._root)
        return removed

    def skip(self, name: str, files: Sequence[Path]) -> Removed:
        """Deletes a model's files permanently and removes the folders that become empty."""
        removed = Removed(name, freed_by(files), tuple(files))
        try:
            for file in files:
                file.unlink(missing_ok=True)
                record_path(file).unlink(missing_ok=True)
        except OSError as error:
            raise _refused(name, error, self._root) from error
        _sweep(files, self._root)
        return removed

    def undo(self) -> Removed:
        """Restores the model that was removed last.

        Raises:
            UsageError: If the trash is empty, or a file exists at the old path.
            SlipstreamError: If a file cannot be moved.
        """
        numbers = self._numbers()
        if not numbers:
            raise UsageError("there is nothing to bring back.", "The trash is emptied whenever the chat starts.")
        place = self._folder / str(numbers[-1])
        removed = self._read(place)
        taken = [file for file in removed.files if os.path.lexists(file) and self._in(place, file).exists()]
        if taken:
            raise UsageError(
                f"{removed.name} cannot come back: {shown_path(taken[0])} is there again.", "Remove that one first."
            )
        try:
            self._bring_back(place, removed.files)
            if any(not os.path.lexists(file) for file in removed.files):
                raise FileNotFoundError(2, "some of its files are gone")
        except OSError as error:
            raise SlipstreamError(
                f"cannot bring back {removed.name}: {reason_of(error)}.",
                f"Look for it in {shown_path(place)}.",
            ) from error
        shutil.rmtree(place, ignore_errors=True)
        return removed

    def empty(self) -> int:
        """Deletes everything in it; returns the bytes freed."""
        size = self.size()
        shutil.rmtree(self._folder, ignore_errors=True)
        return size

    def size(self) -> int:
        """Bytes that emptying it frees."""
        size = 0
        for number in self._numbers():
            with suppress(SlipstreamError):
                size += self._read(self._folder / str(number)).freed
        return size

    def _new_place(self) -> Path:
        """Creates the next numbered folder; retries if another process takes the number first."""
        make_folder(self._folder)
        for number in count(1 + max(map(_number, self._folder.glob("[0-9]*")), default=0)):
            with suppress(FileExistsError):
                (self._folder / str(number)).mkdir(mode=0o700)
                return self._folder / str(number)
        raise AssertionError("numbers do not end")

    def _numbers(self) -> list[int]:
        """The numbered folders, oldest first; a folder without a note is empty, left by a kill."""
        with suppress(OSError):
            return sorted(filter(None, (_number(note.parent) for note in self._folder.glob(f"[0-9]*/{_NOTE}"))))
        return []

    def _read(self, place: Path) -> Removed:
        try:
            note = read_json(place / _NOTE, _MOST_BYTES)
            freed = count_of(note["freed"])
            if freed is None or any(".." in Path(file).parts or Path(file).is_absolute() for file in note["files"]):
                raise ValueError
            return Removed(str(note["name"]), freed, tuple(self._root / file for file in note["files"]))
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise SlipstreamError(
                f"{shown_path(place / _NOTE)} is damaged, so the original place of its files is unknown.",
                f"Take them out of {shown_path(place)}, and import them.",
            ) from error

    def _in(self, place: Path, file: Path) -> Path:
        return place / file.relative_to(self._root)

    def _bring_back(self, place: Path, files: Sequence[Path]) -> None:
        for file in files:
            kept = self._in(place, file)
            _move(record_path(kept), record_path(file))
            _move(kept, file)


def _number(place: Path) -> int:
    """The number in a folder's name; 0 if it has none."""
    return number_in(place.name) or 0


def _refused(name: str, error: OSError, folder: Path) -> SlipstreamError:
    reason = reason_of(error)
    return SlipstreamError(
        f"cannot remove {name}: {reason}.", f"Check the rights of {shown_path(error.filename or folder)}."
    )


def _move(file: Path, to: Path) -> None:
    """Moves a file or link, if it exists."""
    if os.path.lexists(file):
        make_folder(to.parent)
        os.replace(file, to)


def freed_by(files: Sequence[Path]) -> int:
    """Bytes that deleting files frees; symbolic links and files with other hard links free none."""
    size = 0
    for file in files:
        with suppress(OSError):
            found = file.lstat()
            size += found.st_size if not file.is_symlink() and found.st_nlink == 1 else 0
    return size


def _sweep(files: Sequence[Path], root: Path) -> None:
    for file in files:
        for parent in file.parents:
            if parent == root:
                break
            with suppress(OSError):
                parent.rmdir()
