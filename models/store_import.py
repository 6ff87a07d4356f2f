"""Makes a model file from elsewhere one of ours, without taking room where that can be."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

from slipstream.models.errors import ModelFileError, SlipstreamError, UsageError, reason_of
from slipstream.models.gguf import read_header
from slipstream.models.gguf_write import replacing
from slipstream.models.quoting import shown_path
from slipstream.models.store_facts import role_of
from slipstream.models.store_names import split_name
from slipstream.models.store_records import Record, write_record
from slipstream.models.vocabulary import check_vocabulary

LOCAL: Final = "local"
"""Stands in place of a repository's owner for what was imported."""
_CHUNK: Final = 4 << 20
_RESERVE: Final = 512 << 20

How = Literal["link", "copy"]
OnProgress = Callable[[int, int], None]


def import_model(path: Path, folder: Path, how: How, on_progress: OnProgress, cancelled: Callable[[], bool]) -> Path:
    """Links or copies a model, all its parts, into the folder of models.

    Args:
        path: The file, or the first of a split model.
        folder: Of models.
        how: "link" makes hard links, or symbolic ones to another disk.
        on_progress: Hears bytes copied and bytes in all.
        cancelled: Asked often while copying; True ends it with ``KeyboardInterrupt``, and nothing is left behind.

    Returns:
        The first file at its new place.

    Raises:
        ModelFileError: If it is no model.
        UsageError: If a file of that name is there already.
        SlipstreamError: If there is no room or right to do it.
    """
    header = read_header(path.expanduser().absolute())
    if role_of(header) == "other":
        raise ModelFileError(
            f"{shown_path(path)} is a {header.architecture} file, which nobody can chat with.", "Import a chat model."
        )
    if role_of(header) == "chat":
        check_vocabulary(header)
    names = [part.name if part.suffix.lower() == ".gguf" else f"{part.name}.gguf" for part in header.parts]
    place = folder / LOCAL / split_name(Path(names[0]).stem)[0]
    made: list[Path] = []
    size = sum(part.stat().st_size for part in header.parts)
    for name in names:
        if os.path.lexists(place / name):
            raise UsageError(f"{shown_path(place / name)} is there already.", "Remove it first, or rename the file.")
    try:
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        if how == "copy":
            _check_room(place, size)
        for part, name in zip(header.parts, names, strict=True):
            source, target, sha256 = Path(os.path.realpath(part)), place / name, ""
            if how == "copy":
                before = sum(each.stat().st_size for each in made)
                sha256 = _copy(source, target, lambda done: on_progress(done, size), cancelled, before)
            else:
                _link(source, target)
            made.append(target)
            write_record(target, Record(sha256, source.stat().st_size, source=str(source)))
    except BaseException as error:
        for target in made:
            target.unlink(missing_ok=True)
        with suppress(OSError):
            place.rmdir()
        if isinstance(error, OSError):
            raise SlipstreamError(
                f"cannot import {shown_path(path)}: {reason_of(error)}.",
                f"Check the rights of {shown_path(error.filename or place)}, or the room on its disk.",
            ) from error
        raise
    return made[0]


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EACCES, errno.ENOTSUP, errno.ENOSYS):
            raise
        os.symlink(source, target)


def _copy(
    source: Path, target: Path, on_progress: Callable[[int], None], cancelled: Callable[[], bool], done: int
) -> str:
    """Copies a file, after ``done`` bytes of others, and returns the SHA-256 of what was written."""
    digest = hashlib.sha256()
    with replacing(target) as part, source.open("rb") as file, part.open("wb") as out:
        while chunk := file.read(_CHUNK):
            if cancelled():
                raise KeyboardInterrupt
            out.write(chunk)
            digest.update(chunk)
            done += len(chunk)
            on_progress(done)
    return digest.hexdigest()


def _check_room(folder: Path, size: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < size + _RESERVE:
        raise SlipstreamError(
            f"the copy takes {size / 1e9:.1f} GB, and only {free / 1e9:.1f} GB are free on its disk.",
            "Free some room, or link the file: import without --copy.",
        )
