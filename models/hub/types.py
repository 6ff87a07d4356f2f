"""Repositories, files and quantizations on the hub."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

Sort = Literal["downloads", "likes", "trending", "updated"]
"""How found repositories are ordered, the most of it first."""


@dataclass(frozen=True, slots=True)
class RepoSummary:
    """A search result; its texts are untrusted and must be cleaned before they are shown.

    Attributes:
        id: ``owner/name``.
        downloads: In the last 30 days.
        likes: Number of likes.
        gated: Whether its licence has to be accepted on its page before a download.
        license: Short name of the licence; empty if it states none.
        updated: Time of the last change; None if unknown.
        architecture: Architecture of its GGUF files, such as ``qwen3``; empty if unknown.
        context: Context that the model was trained with, in tokens; 0 if unknown.
        total_params: Number of parameters; 0 if unknown.
    """

    id: str
    downloads: int = 0
    likes: int = 0
    gated: bool = False
    license: str = ""
    updated: datetime | None = None
    architecture: str = ""
    context: int = 0
    total_params: int = 0


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file on the hub, of one commit.

    Attributes:
        repo: ``owner/name``.
        revision: The commit, or a branch if the hub names none.
        name: Its path in the repository, with ``/``; checked to stay inside a folder.
        size: Length in bytes.
        sha256: Hash of the content in hex; None if unknown.
    """

    repo: str
    revision: str
    name: str
    size: int
    sha256: str | None = None

    def path_in(self, folder: Path) -> Path:
        """Its path below the folder of all models: ``<owner>/<repository>/<name>``."""
        return folder.joinpath(*self.repo.split("/"), *self.name.split("/"))


@dataclass(frozen=True, slots=True)
class Quant:
    """One quantization of a model, which is downloaded as a whole.

    Attributes:
        label: Such as ``Q4_K_M``, else the file's name; unique in its repository.
        files: Its file, or the parts of a split one in order.
        size: Bytes of all files.
        drafts: Whether it only drafts: heads for MTP, EAGLE-3, DFlash.
    """

    label: str
    files: tuple[RemoteFile, ...]
    size: int
    drafts: bool = False

    @property
    def repo(self) -> str:
        """Its repository."""
        return self.files[0].repo

    @property
    def revision(self) -> str:
        """Its commit."""
        return self.files[0].revision
