"""The models on this machine: ours, and those that other programs have fetched."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from slipstream.models.store_types import Checked, Installed, Removed

__all__ = ["Checked", "Installed", "ModelStore", "Removed"]


class ModelStore:
    """Lists, adopts, checks and removes models; only what lies in its own folder is ever changed or removed."""

    def __init__(
        self, folder: Path, bundled: Mapping[str, Path] | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        """Keeps where to look; nothing is read or made yet.

        Args:
            folder: Ours: ``<owner>/<repository>/<file>.gguf``.
            bundled: Name to file of the models that ship with slipstream.
            environment: Says where other programs keep their models; None to look at none of them.
        """

    def installed(self) -> list[Installed]:
        """Every model there is, ours first, then by name; a broken file is listed with what is wrong with it."""
        raise NotImplementedError

    def find(self, name: str) -> Installed:
        """The model that a person means: its name, the beginning of one, or ``owner/repository:QUANT``; any case.

        Raises:
            UsageError: If there is none, or several; names them.
        """
        raise NotImplementedError

    def adopt(self, path: Path, repo: str, revision: str, sha256: Sequence[str | None]) -> Installed:
        """Takes in a model that was downloaded into the folder.

        Args:
            path: Its first file, at its place in the folder.
            repo: The repository that it is from.
            revision: The commit.
            sha256: Of each file, as the hub states it.

        Raises:
            ModelFileError: If it is no model.
        """
        raise NotImplementedError

    def import_file(self, path: Path, how: Literal["link", "copy"] = "link") -> Installed:
        """Makes a file from elsewhere one of ours, its header checked first.

        Args:
            path: The file, or the first of a split model.
            how: "link" takes no room: a hard link, or a symbolic one to another disk.

        Raises:
            ModelFileError: If it is no model.
            SlipstreamError: If there is no room or right to do it.
        """
        raise NotImplementedError

    def verify(
        self,
        name: str,
        on_progress: Callable[[int, int], None] = lambda done, size: None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Checked:
        """Reads every byte of a model and says what is wrong.

        Args:
            name: As :meth:`find` takes it.
            on_progress: Hears bytes read and bytes in all.
            cancelled: Asked often; True ends it with ``KeyboardInterrupt``.
        """
        raise NotImplementedError

    def remove(self, name: str) -> Removed:
        """Puts a model of ours into the trash.

        Raises:
            UsageError: If it is another program's, or ships with slipstream.
        """
        raise NotImplementedError

    def undo(self) -> Removed:
        """Brings back what was removed last.

        Raises:
            UsageError: If the trash is empty.
        """
        raise NotImplementedError

    def empty_trash(self) -> int:
        """Deletes what was removed, for good; returns the bytes that the disk gets back."""
        raise NotImplementedError

    def trash_size(self) -> int:
        """Bytes that emptying the trash gives back."""
        raise NotImplementedError
