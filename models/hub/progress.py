"""The data types of a download (progress, tuning, state of a job), and the errors that end it."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from slipstream.models.errors import DownloadError, reason_of
from slipstream.models.hub.types import RemoteFile
from slipstream.models.hub.words import duration
from slipstream.models.outside import shown_path

State = Literal["queued", "running", "paused", "done", "failed", "cancelled"]  # state of a queued download

Phase = Literal["checking", "connecting", "downloading", "waiting", "finishing"]
"""The phase of a running download: checking the bytes on disk, connecting to the hub, downloading, waiting before
another try, or moving complete files into place."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a download."""

    done: int  # bytes on disk, over all files; if it decreases, ``note`` gives the reason
    total: int  # bytes of all files
    speed: float = 0.0  # bytes per second over the last seconds; 0.0 while none arrive
    phase: Phase = "downloading"
    quiet: float = 0.0  # seconds since the last byte; 0.0 while bytes arrive or none are expected
    note: str = ""  # a message for the screen, such as the reason for a wait; may be empty

    @property
    def left(self) -> float | None:
        """Estimated seconds until the end; None if unknown."""
        return (self.total - self.done) / self.speed if self.speed > 0 else None


@dataclass(frozen=True, slots=True)
class Tuning:
    """Limits and intervals of a download; tests make them small."""

    connections: int = 4  # ranges fetched at once
    segment: int = 32 << 20  # maximum bytes of one request
    interval: int = 32 << 20  # maximum bytes that a kill loses, over all connections; at least one per connection
    interval_s: float = 2.0  # seconds after which progress is recorded even for fewer bytes
    stall_s: float = 30.0  # seconds after which the connection of a stalled transfer is replaced
    tries: int = 8  # failures in a row before giving up; fewer if hardly any bytes arrived
    backoff_s: float = 0.5  # seconds before the second try; doubles each time, with jitter
    backoff_most_s: float = 30.0  # longest pause between two tries
    reserve: int = 512 << 20  # bytes that must stay free on the disk
    report_s: float = 0.2  # seconds between two reports of progress


@dataclass(frozen=True, slots=True)
class Partial:
    """An unfinished download."""

    files: tuple[RemoteFile, ...]  # all files of its job; the parts of a split model in order
    folder: Path
    done: int  # bytes on disk, not verified
    total: int  # bytes of all files
    changed: float  # time of the last write, in seconds since 1970


@dataclass(frozen=True, slots=True)
class Discarded:
    """The result of discarding a download."""

    freed: int  # bytes freed on the disk
    kept: tuple[Path, ...]  # complete files of the same job, which stay


@dataclass(frozen=True, slots=True)
class Job:
    """A snapshot of a queued download."""

    id: str  # its key in the queue
    files: tuple[RemoteFile, ...]  # its files; the parts of a split model in order
    folder: Path
    state: State
    progress: Progress
    path: Path  # final path of its first file
    error: tuple[str, str] | None = None  # title and hint of the error that ended it, else None


_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_KEPT: Final = "What was fetched is kept"


def gigabytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 100_000_000 else f"{count / 1e6:.1f} MB"


def disk_error(path: Path, error: OSError) -> DownloadError:
    """The error for a file or folder that cannot be written."""
    reason = reason_of(error)
    hint = "Check the folder and its permissions, or choose another."
    if error.errno in _FULL:
        return disk_full(path)
    if error.errno == errno.EFBIG:
        reason, hint = "the disk takes no files that large", "Choose a folder on another disk; FAT32 ends at 4 GiB."
    elif error.errno == errno.ENOENT:
        reason, hint = "its folder was removed or renamed meanwhile", "Start the download again."
    elif error.errno == errno.ELOOP:
        reason, hint = "another program put a link in its place", "Remove the link, then start the download again."
    elif error.errno == errno.EISDIR:
        hint = "Rename or remove the folder, then start the download again."
    elif error.errno == errno.ENAMETOOLONG:
        hint = "Choose a folder with a shorter path."
    return DownloadError(f"cannot write {shown_path(path)}: {reason}.", hint)


def disk_full(path: Path) -> DownloadError:
    return DownloadError(
        f"the disk with {shown_path(path.parent)} is full.", f"{_KEPT}: free some room there, then resume."
    )


def interfered(part: Path) -> DownloadError:
    return DownloadError(
        f"{shown_path(part)} was removed, replaced or shortened by another program while it was fetched.",
        "Start the download again; only the lost part is fetched again.",
    )


def too_little_room(folder: Path, needed: int, free: int, reserve: int) -> DownloadError:
    short = needed + reserve - free
    return DownloadError(
        f"not enough room in {shown_path(folder)}: {gigabytes(needed)} to fetch, {gigabytes(free)} free.",
        f"Free {gigabytes(short)} there ({gigabytes(reserve)} are kept free), or choose a smaller quantization.",
    )


def held(file: RemoteFile, holder: str) -> DownloadError:
    return DownloadError(
        f"{shown_path(file.name)} is being downloaded by {holder}.", "Wait until that is done, or stop it there."
    )


def damaged(file: RemoteFile, wanted: str, got: str) -> DownloadError:
    return DownloadError(
        f"{shown_path(file.name)} arrived damaged: its sha256 is {got[:12]}…, not {wanted[:12]}….",
        "It was removed. Download it again; if it happens again, a proxy or the connection alters it.",
    )


def changed(file: RemoteFile) -> DownloadError:
    return DownloadError(
        f"{shown_path(file.name)} was changed on the hub after it was listed.",
        "Look up the repository again, then download what it has now.",
    )


def gave_up(file: RemoteFile, why: str, tries: int) -> DownloadError:
    return DownloadError(
        f"{shown_path(file.name)}: {why}, {tries} times in a row.", f"{_KEPT}: check the network, then resume."
    )


def asked_to_wait(file: RemoteFile, why: str, seconds: int) -> DownloadError:
    """The error for a hub that demands a long wait."""
    return DownloadError(f"{shown_path(file.name)}: {why}.", f"{_KEPT}: resume in {duration(seconds)}.")


def keeps_changing(file: RemoteFile) -> DownloadError:
    return DownloadError(
        f"{shown_path(file.name)} changes on the hub while it is fetched.", "Wait until its publisher is done."
    )
