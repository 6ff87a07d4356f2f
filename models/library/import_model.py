"""Imports model files by link or copy, and verifies models byte by byte."""

import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import Final, Literal

from slipstream.models.errors import ModelFileError, SlipstreamError, UsageError, reason_of
from slipstream.models.files import HeldError, make_folder, open_locked, write_file
from slipstream.models.gguf.file_name import split_name
from slipstream.models.gguf.reader import read_header
from slipstream.models.gguf.tensors import replacing
from slipstream.models.gguf.vocabulary import check_vocabulary, role_of
from slipstream.models.hub.address import safe_name
from slipstream.models.library.records import (
    InstalledModel,
    Record,
    Verification,
    read_facts,
    record_path,
    size_of,
    write_record,
)
from slipstream.models.outside import read_limited, shown_path

LOCAL: Final = "local"  # folder of imported models, in place of a repository's owner
_CHUNK: Final = 4 << 20  # bytes between two polls of ``cancelled``
_RESERVE: Final = 512 << 20  # bytes that a copy leaves free on the disk
_STAGING: Final = ".import-"
_LOCK: Final = "lock"
_PLACE: Final = "place"  # names the folder of a model whose files are all there
_LONGEST_NAME: Final = 1000
How = Literal["link", "copy"]
OnProgress = Callable[[int, int], None]


def import_model(
    path: Path,
    folder: Path,
    how: How,
    on_progress: OnProgress,
    cancelled: Callable[[], bool],
    changing: Callable[[], AbstractContextManager[None]],
) -> Path:
    """Links or copies all parts of a model into the models folder: all of them, or after a kill none.

    The parts are collected in a hidden folder and moved when all are there, the first one last: the library finds a
    model by it.
    """
    header = read_header(path.expanduser().absolute())
    if role_of(header) == "other":
        raise ModelFileError(
            f"{shown_path(path)} is a {header.architecture} file, not a model to chat with.", "Import a chat model."
        )
    if role_of(header) == "chat":
        check_vocabulary(header)
    names = [part.name if part.suffix.lower() == ".gguf" else f"{part.name}.gguf" for part in header.parts]
    subdir = folder / LOCAL / split_name(Path(names[0]).stem)[0]
    with changing():
        _check_absent(subdir / names[0])
    try:
        with _staging(folder) as staging:
            _stage(dict(zip(names, header.parts, strict=True)), staging, how, on_progress, cancelled)
            with changing():
                _check_absent(subdir / names[0])
                make_folder(subdir)
                write_file(staging / _PLACE, [subdir.name.encode()])  # from here on a kill leaves all of the model
                _place(staging, subdir)
        return subdir / names[0]
    except OSError as error:
        raise SlipstreamError(
            f"cannot import {shown_path(path)}: {reason_of(error)}.",
            f"Check the permissions of {shown_path(error.filename or subdir)}, or the free space on its disk.",
        ) from error


def recover_imports(folder: Path) -> None:
    """Completes imports that were killed while their files were moved, and removes the files of others."""
    for lock in folder.glob(f"{_STAGING}*/{_LOCK}"):
        with suppress(HeldError, OSError, SlipstreamError):
            handle = open_locked(lock)
            try:
                with suppress(FileNotFoundError):
                    name = read_limited(lock.with_name(_PLACE), _LONGEST_NAME).decode()
                    if safe_name(name) and "/" not in name:
                        _place(lock.parent, folder / LOCAL / name)
                shutil.rmtree(lock.parent, ignore_errors=True)
            finally:
                os.close(handle)


def _check_absent(path: Path) -> None:
    if os.path.lexists(path):
        raise UsageError(f"{shown_path(path)} is there already.", "Remove it first, or rename the file.")


@contextmanager
def _staging(folder: Path) -> Iterator[Path]:
    make_folder(folder)
    staging = Path(mkdtemp(prefix=_STAGING, dir=folder))
    handle = open_locked(staging / _LOCK)
    try:
        yield staging
    finally:
        os.close(handle)
        recover_imports(folder)


def _stage(
    parts: Mapping[str, Path], staging: Path, how: How, on_progress: OnProgress, cancelled: Callable[[], bool]
) -> None:
    size, copied = sum(part.stat().st_size for part in parts.values()), 0
    if how == "copy":
        free = shutil.disk_usage(staging).free
        if free < size + _RESERVE:
            raise SlipstreamError(
                f"the copy needs {size / 1e9:.1f} GB, but only {free / 1e9:.1f} GB are free on the disk.",
                "Free some room, or link the file: import without --copy.",
            )
    for name, part in parts.items():
        source, target, sha256 = Path(os.path.realpath(part)), staging / name, ""
        if how == "copy":
            length = source.stat().st_size
            sha256 = _copy(source, target, lambda done: on_progress(done, size), cancelled, copied)
            if not length == target.stat().st_size == source.stat().st_size:
                raise ModelFileError(
                    f"{shown_path(source)} changed while it was copied.",
                    "Wait until no program writes to it, then import it again.",
                )
            copied += length
        else:
            _link(source, target)
        write_record(target, Record(sha256, source.stat().st_size, source=str(source)))


def _place(staging: Path, folder: Path) -> None:
    for file in sorted(staging.glob("[!.]*.[gG][gG][uU][fF]"), reverse=True):
        with suppress(FileNotFoundError):
            os.replace(record_path(file), record_path(folder / file.name))
        os.replace(file, folder / file.name)


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
    """Copies a file and returns the SHA-256 of the copy; ``done`` is the number of bytes copied before."""
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


def check(
    model: InstalledModel,
    expected: Sequence[str | None],
    on_progress: Callable[[int, int], None],
    cancelled: Callable[[], bool],
) -> Verification:
    """Reads the header of a model and hashes all its files."""
    facts = read_facts(model.path)
    if facts.problem:
        return Verification(model, (), tuple(expected), facts.problem, facts.hint)
    hashes: list[str] = []
    done, size = 0, sum(size_of(file) for file in model.files)
    for file in model.files:
        digest = hashlib.sha256()
        try:
            with file.open("rb") as opened:
                while chunk := opened.read(_CHUNK):
                    if cancelled():
                        raise KeyboardInterrupt
                    digest.update(chunk)
                    done += len(chunk)
                    on_progress(done, size)
        except OSError as error:
            reason = reason_of(error)
            return Verification(model, tuple(hashes), tuple(expected), f"{shown_path(file)} cannot be read: {reason}.")
        hashes.append(digest.hexdigest())
    problem = hint = ""
    wrong = [file for file, want, got in zip(model.files, expected, hashes, strict=True) if want and want != got]
    if wrong:
        problem = f"{shown_path(wrong[0])} differs from the published file: its bytes have changed."
        hint = _repair_hint(model)
    return Verification(model, tuple(hashes), tuple(expected), problem, hint)


def _repair_hint(model: InstalledModel) -> str:
    if model.foreign:
        return f"It belongs to {model.origin}: fetch it again there."
    if model.repo:
        label = f":{model.quant}" if model.quant else ""
        return f"Remove it and fetch it again: slipstream models pull {model.repo}{label}."
    return "Remove it and import a good copy."
