"""Downloads one model: a file, or all parts of a split one; lists and discards unfinished downloads."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

from slipstream.models.hub.address import disable_telemetry
from slipstream.models.hub.journal import ENDING, Ranges, Written, read
from slipstream.models.hub.part_file import PART, PartFile
from slipstream.models.hub.progress import Discarded, Partial, Progress, Tuning, disk_error
from slipstream.models.hub.repositories import Hub
from slipstream.models.hub.types import RemoteFile

_USUAL: Final = Tuning()


class Download:
    """Downloads a file, or all parts of a split model, into the folder of all models.

    While it runs, ``<file>.part`` holds the bytes and ``<file>.journal`` lists the ranges that are on the disk. Files
    get their names, the first one last, only when all are complete and their sha256 is right.
    """

    def __init__(
        self,
        hub: Hub,
        files: Sequence[RemoteFile],
        folder: Path,
        tuning: Tuning = _USUAL,
        promised: Callable[[], int] = lambda: 0,
    ) -> None:
        """Sends and creates nothing yet.

        Args:
            files: The file, or the parts of a split one in order.
            folder: The folder of all models; see ``RemoteFile.path_in``.
            promised: Returns the bytes that other downloads still have to write to the same disk.
        """
        self.files = tuple(files)
        self.folder = folder
        self._hub = hub
        self._tuning = tuning
        self._promised = promised

    @property
    def path(self) -> Path:
        """Final path of the file, or of the first part."""
        return self.files[0].path_in(self.folder)

    def run(
        self,
        on_progress: Callable[[Progress], None] = lambda progress: None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Path | None:
        """Fetches the missing bytes; blocks until the end.

        Args:
            on_progress: Called with the progress several times a second, in the calling thread.
            cancelled: Polled as often; True stops the download and keeps every byte.

        Returns:
            The file, or the first of several; None if it was stopped.

        Raises:
            OfflineError: If offline mode is on.
            HubError: If the hub refuses.
            DownloadError: If the disk is full, another process has the job, the file changed or arrived damaged,
                or the network failed too often.
        """
        self._hub.check_online()
        disable_telemetry()
        from slipstream.models.hub.transfer import RunningJob

        with ExitStack() as opened:
            parts = [
                opened.enter_context(closing(PartFile(self.files, index, self.folder, self._tuning)))
                for index in range(len(self.files))
            ]
            job = RunningJob(parts, self._hub.endpoint, self._tuning, self._promised, on_progress, cancelled)
            return self.path if job.run(self.folder) else None

    def discard(self) -> Discarded:
        """Removes the unfinished files.

        Raises:
            DownloadError: If another process is downloading it, or it cannot be removed.
        """
        freed, kept = 0, list[Path]()
        for index, file in enumerate(self.files):
            path = file.path_in(self.folder)
            if path.is_file():
                kept.append(path)
            if any(path.with_name(path.name + ending).exists() for ending in (PART, ENDING)):
                with closing(PartFile(self.files, index, self.folder, self._tuning)) as part:
                    freed += part.discard()
            self._remove_empty(path.parent)
        return Discarded(freed, tuple(kept))

    def _remove_empty(self, folder: Path) -> None:
        with contextlib.suppress(OSError):  # not empty, or already removed
            while folder != self.folder and folder.is_relative_to(self.folder):
                folder.rmdir()
                folder = folder.parent


def partials(folder: Path) -> list[Partial]:
    """Unfinished downloads below a folder, newest first.

    Raises:
        DownloadError: If the folder cannot be read.
    """
    jobs: dict[tuple[str, tuple[str, ...]], list[tuple[Path, Written]]] = {}
    try:
        for path in sorted(folder.rglob(f"*{ENDING}")):
            written = read(path)
            if written and written.file.path_in(folder) == path.with_name(path.name.removesuffix(ENDING)):
                names = tuple(file.name for file in written.files)
                jobs.setdefault((written.file.repo, names), []).append((path, written))
    except OSError as error:
        raise disk_error(folder, error) from error
    found = [_partial(folder, journals) for journals in jobs.values()]
    return sorted(found, key=lambda partial: -partial.changed)


def _partial(folder: Path, journals: list[tuple[Path, Written]]) -> Partial:
    files = journals[0][1].files
    done, changed = 0, 0.0
    for path, written in journals:
        ranges = Ranges()
        for start, end, _ in written.ranges:
            ranges.add(start, end)
        done += ranges.total
        with contextlib.suppress(OSError):  # it may have finished meanwhile
            changed = max(changed, path.stat().st_mtime)
    begun = {written.file.name for _, written in journals}
    for file in files:
        if file.name not in begun and file.path_in(folder).is_file():
            done += file.size
    return Partial(files, folder, done, sum(file.size for file in files), changed)
