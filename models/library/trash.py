"""Removes models: into the system's trash, or for good.

A model's record stays beside the place of its file, so that a file that comes back, by ``undo`` or from a desktop's
trash, is the model that it was.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from slipstream.models.errors import SlipstreamError, UsageError, reason_of
from slipstream.models.files import remove_empty, replace_file
from slipstream.models.library.records import RemovedModel, record_path
from slipstream.models.outside import count_of, read_json, read_limited, shown_path

_NOTE: Final = ".removed.json"  # the model that was removed last: its files, and the targets of those that are links
_MOST_BYTES: Final = 1 << 20


class Trash:
    """The system's trash, and a note of what went there last."""

    def __init__(self, root: Path) -> None:
        self._root, self._note = root, root / _NOTE  # the folder of models

    def put(self, name: str, files: Sequence[Path]) -> RemovedModel:
        """Moves a model's files to the trash, all or none; links are deleted, what they name stays."""
        from send2trash import send2trash  # seldom needed

        removed = RemovedModel(name, freed_by(files), tuple(files))
        links = {self._key(file): os.readlink(file) for file in files if file.is_symlink()}
        note = {"name": name, "freed": removed.freed, "files": list(map(self._key, files)), "links": links}
        gone: list[Path] = []
        try:
            replace_file(self._note, [json.dumps(note).encode()])  # first: a kill loses no file
            for file in files:
                file.unlink() if file.is_symlink() else send2trash(file)
                gone.append(file)
        except OSError as error:
            with suppress(SlipstreamError, OSError):
                self._bring_back(name, gone, links)
                self._note.unlink()
            raise SlipstreamError(
                f"{name} cannot be moved to the trash: {reason_of(error)}.",
                f"Delete it for good: slipstream models rm {name} --now.",
            ) from error
        for file in files:
            remove_empty(file.parent, self._root)
        return removed

    def skip(self, name: str, files: Sequence[Path]) -> RemovedModel:
        """Deletes a model's files for good, and the folders that become empty."""
        removed = RemovedModel(name, freed_by(files), tuple(files))
        try:
            for file in files:
                file.unlink(missing_ok=True)
                record_path(file).unlink(missing_ok=True)
        except OSError as error:
            hint = f"Check the rights of {shown_path(error.filename or self._root)}."
            raise SlipstreamError(f"cannot remove {name}: {reason_of(error)}.", hint) from error
        for file in files:
            remove_empty(file.parent, self._root)
        return removed

    def undo(self) -> RemovedModel:
        removed, links = self._last()
        if not (lost := [file for file in removed.files if not os.path.lexists(file)]):
            at = shown_path(removed.files[0])
            raise UsageError(f"{removed.name} cannot come back: {at} is there again.", "Remove that one first.")
        self._bring_back(removed.name, lost, links)
        with suppress(OSError):
            self._note.unlink()
        return removed

    def _last(self) -> tuple[RemovedModel, dict[str, str]]:
        try:
            note: dict[str, Any] = read_json(self._note, _MOST_BYTES)
            freed, links = count_of(note["freed"]), {str(file): str(to) for file, to in note["links"].items()}
            if freed is None or any(".." in Path(file).parts or Path(file).is_absolute() for file in note["files"]):
                raise ValueError
            return RemovedModel(str(note["name"]), freed, tuple(self._root / file for file in note["files"])), links
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            raise UsageError("there is nothing to bring back.", "Look into the system's trash.") from None

    def _bring_back(self, name: str, files: Sequence[Path], links: Mapping[str, str]) -> None:
        for file in files:
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                if target := links.get(self._key(file)):
                    file.symlink_to(target)
                    continue
                kept, info = max(_in_trash(file), key=lambda place: place[1].stat().st_mtime_ns, default=(None, None))
                if kept is None or info is None:
                    raise SlipstreamError(
                        f"{name} is in the system's trash, or was deleted there.",
                        f"Put it back with the system's own means, to {shown_path(file)}.",
                    )
                shutil.move(kept, file)
                info.unlink()
            except OSError as error:
                raise SlipstreamError(
                    f"cannot bring back {name}: {reason_of(error)}.", f"Check the rights of {shown_path(file.parent)}."
                ) from error

    def _key(self, file: Path) -> str:
        return str(file.relative_to(self._root))


def _in_trash(file: Path) -> Iterator[tuple[Path, Path]]:
    """Yields what the trash holds of a file, and its note; only the trash that freedesktop.org defines has notes."""
    if not hasattr(os, "getuid"):
        return
    home = Path(os.environ.get("XDG_DATA_HOME") or "~/.local/share").expanduser()
    places = [(home / "Trash", home)]
    places += [(top / name, top) for top in file.parents for name in (f".Trash/{os.getuid()}", f".Trash-{os.getuid()}")]
    for trash, top in places:
        for info in trash.glob("info/*.trashinfo"):
            with suppress(OSError):
                path = re.search(rb"^Path=(.*)$", read_limited(info), re.MULTILINE)
                kept = trash / "files" / info.stem
                if path and top / unquote(path[1].decode("utf-8", "replace")) == file and kept.exists():
                    yield kept, info


def freed_by(files: Sequence[Path]) -> int:
    """Bytes that deleting files frees; symbolic links and files with other hard links free none."""
    size = 0
    for file in files:
        with suppress(OSError):
            found = file.lstat()
            size += found.st_size if not file.is_symlink() and found.st_nlink == 1 else 0
    return size
