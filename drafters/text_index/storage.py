"""The folder of an index: private files, one lock, and the manifest of the live segments."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from slipstream.models.errors import SlipstreamError, reason_of
from slipstream.models.files import make_folder, write_file
from slipstream.models.outside import shown_path

LOCK: Final = "lock"
_LOCK_SECONDS: Final = 10.0  # longest wait for the lock, which is never held while contexts are sorted
MANIFEST: Final = "index.json"
_NEW_MANIFEST: Final = f"{MANIFEST}.part"
_FORMAT: Final = 1
_GROWTH: Final = 2
_SEGMENT: Final = re.compile(r"[0-9]{1,15}\.segment")


def make_private(folder: Path) -> None:
    """Makes a folder that only its owner can enter, or restricts an existing one."""
    make_folder(folder)
    if sys.platform != "win32" and folder.stat().st_mode & 0o077:
        os.chmod(folder, 0o700)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Locks a folder against changes by other processes and threads; the lock ends with its process.

    Raises:
        SlipstreamError: If another one holds it for more than ten seconds.
    """
    from filelock import FileLock, Timeout  # slow to load, and only changes need a lock

    lock = FileLock(folder / LOCK, timeout=_LOCK_SECONDS, mode=0o600, poll_interval=0.005)
    try:
        lock.acquire()
    except Timeout as error:
        raise SlipstreamError(
            f"the text index in {shown_path(folder)} is being changed by another slipstream.", "Try again later."
        ) from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Converts errors of the disk to a ``SlipstreamError``."""
    try:
        yield
    except OSError as error:
        reason = reason_of(error)
        raise SlipstreamError(
            f"cannot write the text index in {shown_path(folder)}: {reason}.",
            "Free some room there, or check the folder and its permissions.",
        ) from error


@dataclass(frozen=True, slots=True)
class Manifest:
    """The live segments and the vocabulary of an index."""

    vocabulary: str  # fingerprint of the vocabulary of the ids
    n_vocab: int  # size of that vocabulary
    segments: tuple[str, ...] = ()  # file names
    next: int = 1  # number of the next file; numbers are never used twice

    def name(self, ahead: int = 0) -> str:
        """Name of the next file, or of one after it."""
        return f"{self.next + ahead}.segment"


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Replaces the manifest atomically."""
    part = folder / _NEW_MANIFEST
    write_file(part, [json.dumps({"format": _FORMAT, **asdict(manifest)}).encode()])
    os.replace(part, folder / MANIFEST)


def read_manifest(folder: Path) -> Manifest:
    """Reads the manifest.

    Raises:
        FileNotFoundError: If there is none.
        SlipstreamError: If it is damaged, foreign, or a newer slipstream wrote it.
    """
    try:
        found = json.loads((folder / MANIFEST).read_bytes())
        if found["format"] != _FORMAT:
            raise SlipstreamError(
                f"the text index in {shown_path(folder)} has a format that this slipstream does not know.",
                "Update slipstream, or delete that folder and index the text again.",
            )
        segments = tuple(found["segments"])
        if not all(isinstance(name, str) and is_segment(name) for name in segments):
            raise ValueError("a segment has a strange name")
        return Manifest(str(found["vocabulary"]), int(found["n_vocab"]), segments, int(found["next"]))
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise SlipstreamError(
            f"the text index in {shown_path(folder)} is damaged: {MANIFEST} cannot be read.",
            "Delete that folder and index the text again; chats and files are not touched by that.",
        ) from error


def is_segment(name: str) -> bool:
    return _SEGMENT.fullmatch(name) is not None


def is_ours(name: str) -> bool:
    """Whether a file is a segment or an unfinished manifest; such a file is unused if the manifest does not list it."""
    return is_segment(name) or name == _NEW_MANIFEST


def due(sizes: Sequence[int], limit: int, fresh: int = 0) -> list[int]:
    """Chooses the segments to merge, so that each is at least twice as long as the next smaller one.

    n tokens are then in at most log2(n) + 1 segments. Each merge makes a token's segment at least half as long again,
    so a token is written at most log(n) / log(1.5) times (O'Neil et al., "The log-structured merge-tree", 1996).

    Args:
        limit: Most tokens of the merged segment.
        fresh: Tokens of a new segment, which may be merged as well.

    Returns:
        Indices into ``sizes``; empty if nothing should be merged (with ``fresh``, if it should stay alone).
    """
    order = sorted(range(len(sizes)), key=lambda index: sizes[index])
    if fresh:
        return _run(order, sizes, fresh, limit)
    for start, index in enumerate(order):
        if group := _run(order[start + 1 :], sizes, sizes[index], limit):
            return [index, *group]
    return []


def _run(order: Sequence[int], sizes: Sequence[int], total: int, limit: int) -> list[int]:
    """The segments, smallest first, that a segment of size ``total`` absorbs; its size grows with each."""
    group: list[int] = []
    for index in order:
        if sizes[index] >= _GROWTH * total or total + sizes[index] > limit:
            break
        total += sizes[index]
        group.append(index)
    return group
