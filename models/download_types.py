"""How far a download is, and how it goes about it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from slipstream.models.hub_types import RemoteFile

State = Literal["queued", "running", "paused", "done", "failed", "cancelled"]
"""Where a download of the queue stands."""

Phase = Literal["checking", "connecting", "downloading", "waiting", "finishing"]
"""What a running download does: reading what is on disk, asking the hub, fetching, pausing before another try, or
moving whole files into place."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a download is.

    Attributes:
        done: Bytes on disk, those of all files of a split model; never goes back but where ``note`` says why.
        total: Bytes in all.
        speed: Bytes per second over the last seconds; 0.0 while nothing comes.
        phase: What it does.
        quiet: Seconds since the last byte came; 0.0 while bytes come or none are awaited.
        note: What a person should know, such as why it waits; may be empty.
    """

    done: int
    total: int
    speed: float = 0.0
    phase: Phase = "downloading"
    quiet: float = 0.0
    note: str = ""

    @property
    def left(self) -> float | None:
        """Seconds until the end at this speed; None while nobody can tell."""
        return (self.total - self.done) / self.speed if self.speed > 0 else None


@dataclass(frozen=True, slots=True)
class Tuning:
    """How a download goes about it; tests make these small.

    Attributes:
        connections: Ranges fetched at once.
        segment: Bytes asked for in one request, at most.
        interval: Bytes that a kill may cost at most, over all connections; 0 < connections <= interval.
        interval_s: Seconds after which what came is noted even if it is less.
        stall_s: Seconds without a byte after which a connection is given up and made anew.
        tries: How often it is tried in a row without one new byte; fewer times where none came at all.
        backoff_s: Seconds before the second try; doubles each time, with jitter.
        backoff_most_s: Longest pause between two tries.
        reserve: Bytes that must stay free on the disk.
        report_s: Seconds between two reports of progress.
    """

    connections: int = 4
    segment: int = 32 << 20
    interval: int = 32 << 20
    interval_s: float = 2.0
    stall_s: float = 30.0
    tries: int = 8
    backoff_s: float = 0.5
    backoff_most_s: float = 30.0
    reserve: int = 512 << 20
    report_s: float = 0.2


@dataclass(frozen=True, slots=True)
class Partial:
    """A download that was begun and is not whole.

    Attributes:
        files: All files of its job, a split model's parts in order.
        folder: The folder of all models.
        done: Bytes on disk, not verified yet.
        total: Bytes in all.
        changed: When it last grew, in seconds since 1970.
    """

    files: tuple[RemoteFile, ...]
    folder: Path
    done: int
    total: int
    changed: float


@dataclass(frozen=True, slots=True)
class Discarded:
    """What giving up a download did.

    Attributes:
        freed: Bytes that were removed from the disk.
        removed: The unfinished files that are gone.
        kept: Whole files of the same job that stay.
    """

    freed: int
    removed: tuple[Path, ...]
    kept: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class Job:
    """A download of the queue, as it stands at one moment.

    Attributes:
        id: Names it while the program runs.
        files: What it fetches, a split model's parts in order.
        folder: The folder of all models.
        state: Where it stands.
        progress: How far it is.
        path: Its file, or the first of several; there once it is done.
        error: Why it failed, else None: a ``SlipstreamError``'s title and hint.
    """

    id: str
    files: tuple[RemoteFile, ...]
    folder: Path
    state: State
    progress: Progress
    path: Path
    error: tuple[str, str] | None = None
