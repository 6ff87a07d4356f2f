"""Repositories, files and quantizations on the hub."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final, Literal

Sort = Literal["downloads", "likes", "trending", "updated"]  # order of search results, descending


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
    """A file on the hub in one commit."""

    repo: str  # ``owner/name``
    revision: str  # the commit, or a branch if the hub names none
    name: str  # its path in the repository, with ``/``; checked to stay inside a folder
    size: int  # length in bytes
    sha256: str | None = None  # hash of the content in hex; None if unknown

    def path_in(self, folder: Path) -> Path:
        """Its path below the folder of all models: ``<owner>/<repository>/<name>``."""
        return folder.joinpath(*self.repo.split("/"), *self.name.split("/"))


_PROJECTOR: Final = re.compile(r"(^|[-_.])mmproj([-_.])", re.IGNORECASE)
_PRECISIONS: Final = ("f16", "bf16", "q8_0", "f32")  # types of one projector, best first: most makers test F16


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
