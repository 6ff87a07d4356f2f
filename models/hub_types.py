"""What the model hub tells of its repositories and files."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

Sort = Literal["downloads", "likes", "trending", "updated"]
"""How found repositories are ordered, the most of it first."""


@dataclass(frozen=True, slots=True)
class RepoSummary:
    """A repository that a search found; its texts are a stranger's and not fit for a terminal as they are.

    Attributes:
        id: ``owner/name``.
        downloads: In the last 30 days.
        likes: How many people like it.
        gated: Whether its licence has to be accepted on its page before anything can be fetched.
        license: Short name of the licence; empty if it states none.
        updated: When it last changed; None if the hub does not say.
        architecture: Of its GGUF files, such as ``qwen3``; empty if the hub does not say.
        context: Tokens of context that the model was trained with; 0 if the hub does not say.
        total_params: Number of parameters; 0 if the hub does not say.
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
        revision: The commit; a branch where the hub does not name commits.
        name: Its path in the repository, with ``/``; checked to stay inside a folder.
        size: Bytes.
        sha256: Of its content, in hex; None where the hub does not say.
    """

    repo: str
    revision: str
    name: str
    size: int
    sha256: str | None = None

    def path_in(self, folder: Path) -> Path:
        """Where it is kept below the folder of all models: ``<owner>/<repository>/<name>``."""
        return folder.joinpath(*self.repo.split("/"), *self.name.split("/"))


@dataclass(frozen=True, slots=True)
class Quant:
    """One quantization of a model: what a person downloads as one thing.

    Attributes:
        label: As people write it, such as ``Q4_K_M``; unique in its repository, a file's name where that has no label.
        files: Its file, or the parts of a split one in order.
        size: Bytes of all of them.
        drafts: Whether it is no model to chat with but one that only drafts: heads for MTP, EAGLE-3, DFlash.
    """

    label: str
    files: tuple[RemoteFile, ...]
    size: int
    drafts: bool = False

    @property
    def repo(self) -> str:
        """The repository that it is in."""
        return self.files[0].repo

    @property
    def revision(self) -> str:
        """The commit that it is of."""
        return self.files[0].revision
