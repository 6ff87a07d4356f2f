"""Downloads models from the hub: a queue runs a few at once; any thread can pause, resume and cancel them."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from slipstream.models.errors import DownloadError, SlipstreamError
from slipstream.models.files import HeldError, close_removed, open_locked, remove_empty
from slipstream.models.hub.address import disable_telemetry
from slipstream.models.hub.journal import ENDING, JournalContent, Ranges, read
from slipstream.models.hub.part_file import PART, PartFile
from slipstream.models.hub.repositories import Hub
from slipstream.models.hub.types import Partial, Phase, Progress, QueuedDownload, RemoteFile, State, Tuning
from slipstream.models.hub.words import disk_error, gigabytes
from slipstream.models.outside import shown_path

if TYPE_CHECKING:  # loads huggingface_hub
    from slipstream.models.hub.transfer import Transfer

_USUAL: Final = Tuning()
_WINDOW_S: Final = 5.0
_QUIET_S: Final = 1.0


class Download:
    """Downloads a file, or all parts of a split model, into the folder of all models.

    While it runs, ``<file>.part`` contains the bytes and ``<file>.journal`` lists the ranges that are on the disk. The
    files are renamed, the first one last, only when all are complete and their sha256 is right. What goes wrong is a
    ``HubError`` or a ``DownloadError``.
    """

    def __init__(
        self,
        hub: Hub,
        files: Sequence[RemoteFile],
        folder: Path,
        tuning: Tuning = _USUAL,
        promised: Callable[[], int] = lambda: 0,
        on_verified: Callable[[Sequence[RemoteFile]], None] = lambda files: None,
    ) -> None:
        """Only stores the arguments; ``promised`` returns the bytes that other downloads will write to the disk."""
        self.files = tuple(files)
        self.folder, self._hub, self._tuning, self._promised = folder, hub, tuning, promised
        self._on_verified = on_verified

    @property
    def path(self) -> Path:
        """Final path of the file, or of the first part."""
        return self.files[0].path_in(self.folder)

    def run(
        self,
        on_progress: Callable[[Progress], None] = lambda progress: None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Path | None:
        """Checks what is there, fetches the rest, verifies it and moves it into place; blocks until the end.

        Returns:
            The first file; None if ``cancelled``, polled several times a second, stopped it. Fetched bytes stay.
        """
        self._hub.check_online()
        disable_telemetry()
        from slipstream.models.hub.transfer import Transfer

        with ExitStack() as opened:
            parts = [
                opened.enter_context(closing(PartFile(self.files, index, self.folder, self._tuning)))
                for index in range(len(self.files))
            ]
            report = _Reports(parts, on_progress, self._tuning.report_s)
            for part in parts:
                for _ in part.check():
                    report.now_and_then("checking")
                    if cancelled():
                        return None
            self._check_room(parts)
            transfer = Transfer(parts, self._hub.endpoint, self._tuning)
            if not transfer.run(lambda: report.transfer(transfer), cancelled):
                return None
            for part in parts:
                while not (part.placed or part.hash_more()):
                    report.now_and_then("finishing")
                    if cancelled():
                        return None
            for part in parts:
                if not part.placed:
                    part.verify()
            self._on_verified(self.files)
            for part in reversed(parts):  # the library finds a model by its first file, so it is placed last
                part.place()
            report.now("finishing")
            return self.path

    def _check_room(self, parts: Sequence[PartFile]) -> None:
        needed, reserve = sum(part.size - part.done for part in parts), self._tuning.reserve
        free = shutil.disk_usage(parts[0].path.parent).free - self._promised()
        if needed and needed + reserve > free:
            free = max(0, free)
            raise DownloadError(
                f"not enough room in {shown_path(self.folder)}: {gigabytes(needed)} to fetch, {gigabytes(free)} free.",
                f"Free {gigabytes(needed + reserve - free)} there ({gigabytes(reserve)} are kept free), or choose a "
                "smaller quantization.",
            )

    def discard(self) -> int:
        """Removes its unfinished files, and returns the bytes that this frees; complete ones stay."""
        freed = 0
        for index, file in enumerate(self.files):
            path = file.path_in(self.folder)
            if any(path.with_name(path.name + ending).exists() for ending in (PART, ENDING)):
                with closing(PartFile(self.files, index, self.folder, self._tuning)) as part:
                    freed += part.discard()
            remove_empty(path.parent, self.folder)
        return freed


class _Reports:
    def __init__(self, parts: Sequence[PartFile], on_progress: Callable[[Progress], None], interval_s: float) -> None:
        self._parts, self._on_progress, self._interval_s = parts, on_progress, interval_s
        self._reported_at = 0.0
        self._seen: deque[tuple[float, int]] = deque()

    def now_and_then(self, phase: Phase) -> None:
        if time.monotonic() - self._reported_at >= self._interval_s:
            self.now(phase)

    def now(self, phase: Phase, speed: float = 0.0, quiet: float = 0.0, note: str = "") -> None:
        self._reported_at = time.monotonic()
        done, total = sum(part.done for part in self._parts), sum(part.size for part in self._parts)
        self._on_progress(Progress(done, total, speed=speed, phase=phase, quiet=quiet, note=note))

    def transfer(self, transfer: Transfer) -> None:
        now = time.monotonic()
        self._seen.append((now, transfer.received))
        while len(self._seen) > 2 and now - self._seen[1][0] > _WINDOW_S:
            self._seen.popleft()
        then, before = self._seen[0]
        speed = (transfer.received - before) / (now - then) if now > then else 0.0
        quiet = transfer.idle if transfer.idle > _QUIET_S else 0.0
        host = transfer.waiting_for
        self.now(transfer.phase, speed, quiet, transfer.note or (f"waiting for {host}" if host else ""))


def partials(folder: Path) -> list[Partial]:
    """Unfinished downloads below a folder, newest first; removes journals that kills left beside complete files."""
    jobs: dict[tuple[str, tuple[str, ...]], list[tuple[Path, JournalContent]]] = {}
    try:
        for path in sorted(folder.rglob(f"*{ENDING}")):
            if _complete(path):
                continue
            written = read(path)
            if written and written.file.path_in(folder) == path.with_name(path.name.removesuffix(ENDING)):
                names = tuple(file.name for file in written.files)
                jobs.setdefault((written.file.repo, names), []).append((path, written))
    except OSError as error:
        raise disk_error(folder, error) from error
    found = [_partial(folder, journals) for journals in jobs.values()]
    return sorted(found, key=lambda partial: -partial.changed)


def _complete(journal: Path) -> bool:
    """Whether a journal's file was moved into place; its journal is then removed."""
    path = journal.with_name(journal.name.removesuffix(ENDING))
    if not path.is_file() or path.with_name(path.name + PART).exists():
        return False
    with contextlib.suppress(HeldError):
        close_removed(open_locked(journal), journal)
    return True


def _partial(folder: Path, journals: list[tuple[Path, JournalContent]]) -> Partial:
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
    job: QueuedDownload
    stop: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None


class Downloads:
    """Runs a few downloads at once and queues the others; thread-safe; :meth:`restore` adds those of an earlier run."""

    def __init__(
        self,
        hub: Hub,
        at_once: int = 2,
        tuning: Tuning = _USUAL,
        on_change: Callable[[QueuedDownload], None] = lambda job: None,
        on_verified: Callable[[Sequence[RemoteFile]], None] = lambda files: None,
    ) -> None:
        """Creates an empty queue; the thread that changes a job's state or progress waits for ``on_change``."""
        self._hub, self._at_once, self._tuning, self._on_change = hub, at_once, tuning, on_change
        self._on_verified = on_verified
        self._changed = threading.Condition()
        self._entries: dict[str, _Entry] = {}
        self._unreported: set[str] = set()

    def add(self, files: Sequence[RemoteFile], folder: Path) -> QueuedDownload:
        """Queues a download; if there is a job for the same file, resumes it if needed and returns it."""
        id = _id(files)
        with self._changing():
            entry = self._entries.get(id)
            if entry is None or entry.job.state in ("done", "cancelled"):
                progress = Progress(0, sum(file.size for file in files), phase="connecting")
                self._add(QueuedDownload(id, tuple(files), folder, progress))
            else:
                self._resume(entry)
        return self.job(id)

    def restore(self, folder: Path) -> list[QueuedDownload]:
        """Adds unfinished downloads below a folder as paused jobs."""
        found = partials(folder)
        with self._changing():
            for partial in reversed(found):
                id = _id(partial.files)
                if id not in self._entries:
                    progress = Progress(partial.done, partial.total, phase="checking")
                    self._add(QueuedDownload(id, partial.files, folder, progress, "paused"))
            return [self._entries[_id(partial.files)].job for partial in found]

    def jobs(self) -> list[QueuedDownload]:
        with self._changed:
            return [entry.job for entry in self._entries.values()]

    def job(self, id: str) -> QueuedDownload:
        with self._changed:
            return self._entries[id].job

    def pause(self, id: str) -> None:
        """Stops a job without waiting until it has stopped; keeps its bytes."""
        with self._changing():
            self._stop(self._entries[id])

    def resume(self, id: str) -> None:
        with self._changing():
            self._resume(self._entries[id])

    def cancel(self, id: str) -> int:
        """Stops a job, waits for the stop and removes its unfinished files; returns the bytes that this frees."""
        with self._changing():
            entry = self._entries[id]
            self._stop(entry)
        self.wait(id)
        with self._changing():
            freed = Download(self._hub, entry.job.files, entry.job.folder, self._tuning).discard()
            if entry.job.state != "done":
                self._set(entry, "cancelled", progress=Progress(0, entry.job.progress.total))
        return freed

    def wait(self, id: str) -> QueuedDownload:
        """Waits until a job is done, paused, failed or cancelled."""
        with self._changed:
            entry = self._entries[id]
            self._changed.wait_for(lambda: entry.job.state not in ("running", "queued"))
            return entry.job

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
        if entry.job.state == "queued":
            self._set(entry, "paused")

    def _resume(self, entry: _Entry) -> None:
        entry.stop.clear()  # a job that is still stopping is queued again when it has stopped
        if entry.job.state in ("paused", "failed"):
            self._set(entry, "queued", error=None)

    def _start_next(self) -> None:
        running = sum(entry.job.state == "running" for entry in self._entries.values())
        waiting = [entry for entry in self._entries.values() if entry.job.state == "queued"]
        for entry in waiting[: max(0, self._at_once - running)]:
            self._set(entry, "running")
            name = f"download {entry.job.id}"
            entry.thread = threading.Thread(target=self._run, args=(entry,), name=name, daemon=True)
            entry.thread.start()

    def _run(self, entry: _Entry) -> None:
        def report(progress: Progress) -> None:
            with self._changing():
                entry.job = replace(entry.job, progress=progress)
                self._unreported.add(entry.job.id)

        download = Download(
            self._hub,
            entry.job.files,
            entry.job.folder,
            self._tuning,
            promised=lambda: self._promised(entry),
            on_verified=self._on_verified,
        )
        state: State
        try:
            state, error = ("done" if download.run(report, entry.stop.is_set) else "paused"), None
        except SlipstreamError as failure:
            state, error = "failed", (failure.title, failure.hint)
        except Exception as failure:  # if the thread ended silently, its job would stay "running"
            state, error = "failed", (f"the download ended with a fault of slipstream: {failure!r}.", "Report it.")
        with self._changing():
            self._set(entry, "queued" if state == "paused" and not entry.stop.is_set() else state, error=error)

    def _promised(self, running: _Entry) -> int:
        with self._changed:
            others = [entry.job for entry in self._entries.values() if entry is not running]
            return sum(job.progress.total - job.progress.done for job in others if job.state == "running")

    def _add(self, job: QueuedDownload) -> None:
        self._entries[job.id] = _Entry(job)
        self._unreported.add(job.id)

    def _set(self, entry: _Entry, state: State, **changes: Any) -> None:
        job = replace(entry.job, state=state, **changes)
        entry.job = replace(job, progress=replace(job.progress, speed=0.0, quiet=0.0, note=""))
        self._unreported.add(job.id)


def _id(files: Sequence[RemoteFile]) -> str:
    return f"{files[0].repo}/{files[0].name}"
