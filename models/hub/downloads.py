"""Downloads models from the hub: a queue runs a few at once; any thread can pause, resume and cancel them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from slipstream.models.errors import SlipstreamError
from slipstream.models.hub.address import disable_telemetry
from slipstream.models.hub.journal import ENDING, Ranges, Written, read
from slipstream.models.hub.part_file import PART, PartFile
from slipstream.models.hub.progress import Discarded, Job, Partial, Progress, State, Tuning, disk_error
from slipstream.models.hub.repositories import Hub
from slipstream.models.hub.types import RemoteFile

__all__ = ["Discarded", "Download", "Downloads", "Job", "Partial", "Progress", "Tuning", "partials"]

_USUAL: Final = Tuning()


class Download:
    """Downloads a file, or all parts of a split model, into the folder of all models.

    While it runs, ``<file>.part`` contains the bytes and ``<file>.journal`` lists the ranges that are on the disk. The
    files are renamed, the first one last, only when all are complete and their sha256 is right.
    """

    def __init__(
        self,
        hub: Hub,
        files: Sequence[RemoteFile],
        folder: Path,
        tuning: Tuning = _USUAL,
        promised: Callable[[], int] = lambda: 0,
    ) -> None:
        """Only stores the arguments; ``run`` starts the download.

        Args:
            files: The file, or the parts of a split model in order.
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
            cancelled: Polled several times a second; True stops the download and keeps the fetched bytes.

        Returns:
            The file, or the first of several files; None if the download was stopped.

        Raises:
            OfflineError: If offline mode is on.
            HubError: If the hub refuses.
            DownloadError: If the disk is full, another process downloads the same file, the file changed or arrived
                damaged, or the network failed too often.
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


@dataclass
class _Entry:
    """A job and its thread."""

    id: str
    files: tuple[RemoteFile, ...]
    folder: Path
    progress: Progress
    state: State = "queued"
    error: tuple[str, str] | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None

    def snapshot(self) -> Job:
        path = self.files[0].path_in(self.folder)
        return Job(self.id, self.files, self.folder, self.state, self.progress, path, self.error)


class Downloads:
    """Runs a few downloads at once and queues the others; thread-safe.

    :meth:`restore` adds jobs that were paused, or that a killed process left.
    """

    def __init__(
        self,
        hub: Hub,
        at_once: int = 2,
        tuning: Tuning = _USUAL,
        on_change: Callable[[Job], None] = lambda job: None,
    ) -> None:
        """Creates an empty queue.

        Args:
            at_once: Maximum number of jobs that run at the same time.
            on_change: Called when a job's state or progress changes, in the thread that changes it; that thread waits
                until the call returns.
        """
        self._hub = hub
        self._at_once = at_once
        self._tuning = tuning
        self._on_change = on_change
        self._changed = threading.Condition()
        self._entries: dict[str, _Entry] = {}
        self._unreported: set[str] = set()

    def add(self, files: Sequence[RemoteFile], folder: Path) -> Job:
        """Queues a download; if there is a job for the same file, resumes it if needed and returns it."""
        id = _id(files)
        with self._changing():
            entry = self._entries.get(id)
            if entry is None or entry.state in ("done", "cancelled"):
                total = sum(file.size for file in files)
                entry = self._entries[id] = _Entry(id, tuple(files), folder, Progress(0, total, phase="connecting"))
                self._set_state(entry, "queued")
            else:
                self._resume(entry)
        return self.job(id)

    def restore(self, folder: Path) -> list[Job]:
        """Adds unfinished downloads below a folder as paused jobs.

        Raises:
            DownloadError: If the folder cannot be read.
        """
        found = partials(folder)
        with self._changing():
            for partial in reversed(found):
                id = _id(partial.files)
                if id not in self._entries:
                    progress = Progress(partial.done, partial.total, phase="checking")
                    self._entries[id] = _Entry(id, partial.files, folder, progress)
                    self._set_state(self._entries[id], "paused")
            return [self._entries[_id(partial.files)].snapshot() for partial in found]

    def jobs(self) -> list[Job]:
        with self._changed:
            return [entry.snapshot() for entry in self._entries.values()]

    def job(self, id: str) -> Job:
        """A snapshot of one job.

        Raises:
            KeyError: If no job has that id.
        """
        with self._changed:
            return self._entries[id].snapshot()

    def pause(self, id: str) -> None:
        """Stops a job without waiting until it has stopped; keeps its bytes."""
        with self._changing():
            self._stop(self._entries[id])

    def resume(self, id: str) -> None:
        with self._changing():
            self._resume(self._entries[id])

    def cancel(self, id: str) -> Discarded:
        """Stops a job, waits for the stop and removes its unfinished files.

        Raises:
            DownloadError: If another process is downloading it, or it cannot be removed.
        """
        with self._changing():
            entry = self._entries[id]
            self._stop(entry)
        self.wait(id)
        with self._changing():
            gone = Download(self._hub, entry.files, entry.folder, self._tuning).discard()
            if entry.state != "done":
                entry.progress = Progress(0, entry.progress.total)
                self._set_state(entry, "cancelled")
        return gone

    def wait(self, id: str) -> Job:
        """Waits until a job is done, paused, failed or cancelled."""
        with self._changed:
            entry = self._entries[id]
            self._changed.wait_for(lambda: entry.state not in ("running", "queued"))
            return entry.snapshot()

    def close(self) -> None:
        """Pauses every job and waits until all have stopped; call it before the program ends."""
        with self._changing():
            for entry in self._entries.values():
                self._stop(entry)
            threads = [entry.thread for entry in self._entries.values() if entry.thread]
        for thread in threads:
            thread.join()

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Locks the queue for a change and starts queued jobs; then reports the changes without the lock."""
        with self._changed:
            yield
            self._start_next()
            changed = [id for id in self._entries if id in self._unreported]
            self._unreported.clear()
            self._changed.notify_all()
        for id in changed:
            self._on_change(self.job(id))

    def _stop(self, entry: _Entry) -> None:
        entry.stop.set()
        if entry.state == "queued":
            self._set_state(entry, "paused")

    def _resume(self, entry: _Entry) -> None:
        entry.stop.clear()  # a job that is still stopping is queued again when it has stopped
        if entry.state in ("paused", "failed"):
            entry.error = None
            self._set_state(entry, "queued")

    def _start_next(self) -> None:
        running = sum(entry.state == "running" for entry in self._entries.values())
        waiting = [entry for entry in self._entries.values() if entry.state == "queued"]
        for entry in waiting[: max(0, self._at_once - running)]:
            self._set_state(entry, "running")
            entry.thread = threading.Thread(target=self._run, args=(entry,), name=f"download {entry.id}", daemon=True)
            entry.thread.start()

    def _run(self, entry: _Entry) -> None:
        def report(progress: Progress) -> None:
            with self._changing():
                entry.progress = progress
                self._unreported.add(entry.id)

        download = Download(self._hub, entry.files, entry.folder, self._tuning, lambda: self._promised(entry))
        state: State
        try:
            state, error = ("done" if download.run(report, entry.stop.is_set) else "paused"), None
        except SlipstreamError as failure:
            state, error = "failed", (failure.title, failure.hint)
        except Exception as failure:  # if the thread ended silently, its job would stay "running"
            state, error = "failed", (f"the download ended with a fault of slipstream: {failure!r}.", "Report it.")
        with self._changing():
            entry.error = error
            self._set_state(entry, "queued" if state == "paused" and not entry.stop.is_set() else state)

    def _promised(self, running: _Entry) -> int:
        """Bytes that the other running jobs still have to write."""
        with self._changed:
            others = [entry for entry in self._entries.values() if entry.state == "running" and entry is not running]
            return sum(entry.progress.total - entry.progress.done for entry in others)

    def _set_state(self, entry: _Entry, state: State) -> None:
        entry.state = state
        entry.progress = replace(entry.progress, speed=0.0, quiet=0.0, note="")
        self._unreported.add(entry.id)


def _id(files: Sequence[RemoteFile]) -> str:
    return f"{files[0].repo}/{files[0].name}"
