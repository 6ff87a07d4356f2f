"""One download: a file, or all parts of a split model, and what is left of downloads that were not finished."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

from slipstream.models.download_journal import ENDING, Written, read
from slipstream.models.download_part import PART, PartFile
from slipstream.models.download_ranges import Ranges
from slipstream.models.download_types import Discarded, Partial, Progress, Tuning
from slipstream.models.download_words import disk_error
from slipstream.models.hub import Hub
from slipstream.models.hub_address import quieten
from slipstream.models.hub_types import RemoteFile

_USUAL: Final = Tuning()


class Download:
    """One job: a file, or all parts of a split model, from the hub into the folder of all models.

    While it runs, ``<file>.part`` holds what came and ``<file>.journal`` which ranges of it are good. A file gets its
    name only when all files of the job are whole and their sha256 is right; the first one last.
    """

    def __init__(
        self,
        hub: Hub,
        files: Sequence[RemoteFile],
        folder: Path,
        tuning: Tuning = _USUAL,
        promised: Callable[[], int] = lambda: 0,
    ) -> None:
        """Keeps what to fetch; nothing is made or sent yet.

        Args:
            hub: Where from.
            files: The file, or the parts of a split one in order.
            folder: The folder of all models; see ``RemoteFile.path_in``.
            tuning: How to go about it.
            promised: Bytes that others are about to write to the same disk.
        """
        self.files = tuple(files)
        self.folder = folder
        self._hub = hub
        self._tuning = tuning
        self._promised = promised

    @property
    def path(self) -> Path:
        """Where the file, or the first of several, comes to lie."""
        return self.files[0].path_in(self.folder)

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
        self._hub.check_online()
        quieten()
        from slipstream.models.download_job import RunningJob

        with ExitStack() as opened:
            parts = [
                opened.enter_context(closing(PartFile(self.files, index, self.folder, self._tuning)))
                for index in range(len(self.files))
            ]
            job = RunningJob(parts, self._hub.endpoint, self._tuning, self._promised, on_progress, cancelled)
            return self.path if job.run(self.folder) else None

    def discard(self) -> Discarded:
        """Removes what was fetched and not finished.

        Raises:
            DownloadError: If another process is downloading it, or it cannot be removed.
        """
        freed, removed, kept = 0, [], []
        for index, file in enumerate(self.files):
            path = file.path_in(self.folder)
            if path.is_file():
                kept.append(path)
            if any(path.with_name(path.name + ending).exists() for ending in (PART, ENDING)):
                part = PartFile(self.files, index, self.folder, self._tuning)
                with closing(part):
                    freed += part.discard()
                removed.append(part.part)
            self._remove_empty(path.parent)
        return Discarded(freed, tuple(removed), tuple(kept))

    def _remove_empty(self, folder: Path) -> None:
        with contextlib.suppress(OSError):  # not empty, or gone already
            while folder != self.folder and folder.is_relative_to(self.folder):
                folder.rmdir()
                folder = folder.parent


def partials(folder: Path) -> list[Partial]:
    """What was begun and not finished below a folder, newest first.

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
        with contextlib.suppress(OSError):  # it may be done and gone by now
            changed = max(changed, path.stat().st_mtime)
    begun = {written.file.name for _, written in journals}
    for file in files:
        if file.name not in begun and file.path_in(folder).is_file():
            done += file.size
    return Partial(files, folder, done, sum(file.size for file in files), changed)
