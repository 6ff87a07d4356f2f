"""The data types of the hub: repositories, files and quantizations; and of downloads: progress, limits, state."""

import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final, Literal

Sort = Literal["downloads", "likes", "trending", "updated"]  # order of search results, descending
State = Literal["queued", "running", "paused", "done", "failed", "cancelled"]  # state of a queued download
Phase = Literal["checking", "connecting", "downloading", "waiting", "finishing"]
"""The phase of a running download: checking the bytes on disk, connecting to the hub, downloading, waiting before
another try, or moving complete files into place."""
_PROJECTOR: Final = re.compile(r"(^|[-_.])mmproj([-_.])", re.IGNORECASE)
_PRECISIONS: Final = ("f16", "bf16", "q8_0", "f32")  # types of one projector, best first: most makers test F16


@dataclass(frozen=True, slots=True)
class RepoSummary:
    """A search result; its texts are untrusted and must be cleaned before they are shown."""

    id: str  # ``owner/name``
    downloads: int = 0  # in the last 30 days
    likes: int = 0
    gated: bool = False  # whether a download needs its licence to be accepted on its page
    license: str = ""  # short name of the licence; empty if none is stated
    updated: datetime | None = None  # time of the last change; None if unknown
    architecture: str = ""  # architecture of its GGUF files, such as ``qwen3``; empty if unknown
    context: int = 0  # context that the model was trained with, in tokens; 0 if unknown
    total_params: int = 0  # number of parameters; 0 if unknown


@dataclass(frozen=True, slots=True)
class RemoteFile:
    repo: str  # ``owner/name``
    revision: str  # the commit, or a branch if the hub names none
    name: str  # its path in the repository, with ``/``; checked to stay inside a folder
    size: int  # length in bytes
    sha256: str | None = None  # hash of the content in hex; None if unknown

    def path_in(self, folder: Path) -> Path:
        """Its path below the folder of all models: ``<owner>/<repository>/<name>``."""
        return folder.joinpath(*self.repo.split("/"), *self.name.split("/"))


def is_projector(name: str) -> bool:
    """Whether a file has the name of an mmproj file, which encodes images for a model."""
    return name.lower().endswith(".gguf") and bool(_PROJECTOR.search(name.rpartition("/")[2]))


def projector_rank(name: str) -> tuple[int, str]:
    """Sort key for the files of one projector, best first."""
    words = re.split(r"[-.]", name.rpartition("/")[2].lower())
    return next((rank for rank, kind in enumerate(_PRECISIONS) if kind in words), len(_PRECISIONS)), name


@dataclass(frozen=True, slots=True)
class Quant:
    """One quantization of a model."""

    label: str  # such as ``Q4_K_M``, else the file's name; unique in its repository
    files: tuple[RemoteFile, ...]  # its file, or the parts of a split model in order
    size: int  # bytes of all files
    drafts: bool = False  # whether it only drafts: heads for MTP, EAGLE-3, DFlash
    projector: RemoteFile | None = None  # the mmproj file for images, downloaded with it

    @property
    def repo(self) -> str:
        return self.files[0].repo

    @property
    def revision(self) -> str:
        return self.files[0].revision


@dataclass(frozen=True, slots=True)
class Progress:
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
    idle_s: float = 60.0  # seconds without a byte over any connection after which the download ends
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
class QueuedDownload:
    """A snapshot of a queued download."""

    id: str  # its key in the queue
    files: tuple[RemoteFile, ...]  # its files; the parts of a split model in order
    folder: Path
    progress: Progress
    state: State = "queued"
    error: tuple[str, str] | None = None  # title and hint of the error that ended it, else None

    @property
    def path(self) -> Path:
        return self.files[0].path_in(self.folder)
