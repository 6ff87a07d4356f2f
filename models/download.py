"""Downloads model files from the hub so that no verified byte is ever fetched twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from slipstream.models.download_types import Discarded, Job, Partial, Progress, Tuning
from slipstream.models.hub import Hub
from slipstream.models.hub_types import RemoteFile

__all__ = ["Discarded", "Download", "Downloads", "Job", "Partial", "Progress", "Tuning", "partials"]


class Download:
    """One job: a file, or all parts of a split model, from the hub into the folder of all models.

    While it runs, ``<file>.part`` holds what came and ``<file>.journal`` which ranges of it are good. A file gets its
    name only when all files of the job are whole and their sha256 is right; the first one last.
    """

    def __init__(self, hub: Hub, files: Sequence[RemoteFile], folder: Path, tuning: Tuning | None = None) -> None:
        """Keeps what to fetch; nothing is made or sent yet.

        Args:
            hub: Where from.
            files: The file, or the parts of a split one in order.
            folder: The folder of all models; see ``RemoteFile.path_in``.
            tuning: How to go about it.
        """
        raise NotImplementedError

    def run(
        self,
        on_progress: Callable[[Progress], None] = lambda progress: None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Path | None:
        """Fetches what is missing; blocks until the end.

        Args:
            on_progress: Hears how far it is, several times a second, in the calling thread.
            cancelled: Asked as often; True stops within a moment and keeps every byte that came.

        Returns:
            The file, or the first of several; None if it was stopped.

        Raises:
            OfflineError: If the network is not to be used.
            HubError: If the hub refuses.
            DownloadError: If the disk is full, another process has the job, the file changed or arrived damaged,
                or the network failed too often. Says what to do.
        """
        raise NotImplementedError

    def discard(self) -> Discarded:
        """Removes what was fetched and not finished.

        Raises:
            DownloadError: If another process is downloading it, or it cannot be removed.
        """
        raise NotImplementedError


class Downloads:
    """The queue: a few jobs at once, the others in line; safe to use from any thread.

    A job that is paused, or whose program was killed, is found again by :meth:`restore`.
    """

    def __init__(
        self,
        hub: Hub,
        at_once: int = 2,
        tuning: Tuning | None = None,
        on_change: Callable[[Job], None] = lambda job: None,
    ) -> None:
        """Starts nothing yet.

        Args:
            hub: Where from.
            at_once: Jobs that run at the same time.
            tuning: How each goes about it.
            on_change: Hears every change of a job's state and its progress, in the thread of the job.
        """
        raise NotImplementedError

    def add(self, files: Sequence[RemoteFile], folder: Path) -> Job:
        """Puts a job in line, or returns the one that fetches the same file already; a paused one goes on."""
        raise NotImplementedError

    def restore(self, folder: Path) -> list[Job]:
        """Finds what was begun and not finished below a folder, as paused jobs."""
        raise NotImplementedError

    def jobs(self) -> list[Job]:
        """All jobs of this run of the program, oldest first."""
        raise NotImplementedError

    def job(self, id: str) -> Job:
        """One job as it stands.

        Raises:
            KeyError: If there is none of that id.
        """
        raise NotImplementedError

    def pause(self, id: str) -> None:
        """Stops a job and keeps what came; returns before it has stopped."""
        raise NotImplementedError

    def resume(self, id: str) -> None:
        """Puts a paused or failed job in line again."""
        raise NotImplementedError

    def cancel(self, id: str) -> Discarded:
        """Stops a job and removes what it fetched; waits until that is done."""
        raise NotImplementedError

    def wait(self, id: str) -> Job:
        """Waits until a job is done, paused, failed or cancelled."""
        raise NotImplementedError

    def close(self) -> None:
        """Pauses every job and waits until all have stopped; to be called before the program ends."""
        raise NotImplementedError


def partials(folder: Path) -> list[Partial]:
    """What was begun and not finished below a folder, newest first."""
    raise NotImplementedError
