"""Runs one download from the first byte to the last, and tells how far it is.

Importing this loads huggingface_hub; call ``hub_address.quieten`` before.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from slipstream.models.download_part import PartFile
from slipstream.models.download_transfer import Transfer
from slipstream.models.download_types import Phase, Progress, Tuning
from slipstream.models.download_words import too_little_room

_WINDOW_S: Final = 5.0
_QUIET_S: Final = 1.0


class Speedometer:
    """Bytes per second over the last seconds."""

    def __init__(self) -> None:
        """Has seen nothing yet."""
        self._seen: deque[tuple[float, int]] = deque()

    def speed(self, received: int, now: float) -> float:
        """Takes in how many bytes came since the start, and returns the speed."""
        self._seen.append((now, received))
        while len(self._seen) > 2 and now - self._seen[1][0] > _WINDOW_S:
            self._seen.popleft()
        then, before = self._seen[0]
        return (received - before) / (now - then) if now > then else 0.0


class RunningJob:
    """A job whose files are open and locked."""

    def __init__(
        self,
        parts: Sequence[PartFile],
        endpoint: str,
        tuning: Tuning,
        promised: Callable[[], int],
        on_progress: Callable[[Progress], None],
        cancelled: Callable[[], bool],
    ) -> None:
        """Keeps what it works with; ``promised`` counts the bytes that other jobs are about to write."""
        self._parts = parts
        self._endpoint = endpoint
        self._tuning = tuning
        self._promised = promised
        self._on_progress = on_progress
        self._cancelled = cancelled
        self._speedometer = Speedometer()
        self._reported_at = 0.0

    def run(self, folder: Path) -> bool:
        """Checks, fetches, verifies and places; returns whether it got to the end."""
        return asyncio.run(self._run(folder))

    async def _run(self, folder: Path) -> bool:
        for part in self._parts:
            for _ in part.check():
                if self._stopped("checking"):
                    return False
        self._check_room(folder)
        if not await self._fetched():
            return False
        for part in self._parts:
            while not (part.placed or part.hash_on()):
                if self._stopped("finishing"):
                    return False
        for part in self._parts:
            if not part.placed:
                part.verify()
        for part in reversed(self._parts):  # the first file is what a model is found by
            part.place()
        self._report("finishing")
        return True

    async def _fetched(self) -> bool:
        transfer = Transfer(self._parts, self._endpoint, self._tuning)
        task = asyncio.create_task(transfer.run())
        try:
            while not task.done():
                self._report(transfer.phase, transfer)
                if self._cancelled():
                    return False
                await asyncio.wait({task}, timeout=self._tuning.report_s)
            task.result()
            return True
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _check_room(self, folder: Path) -> None:
        needed = sum(part.size - part.done for part in self._parts)
        free = shutil.disk_usage(self._parts[0].path.parent).free - self._promised()
        if needed and needed + self._tuning.reserve > free:
            raise too_little_room(folder, needed, max(0, free), self._tuning.reserve)

    def _stopped(self, phase: Phase) -> bool:
        """Reports now and then; returns whether to stop."""
        if time.monotonic() - self._reported_at >= self._tuning.report_s:
            self._report(phase)
        return self._cancelled()

    def _report(self, phase: Phase, transfer: Transfer | None = None) -> None:
        now = self._reported_at = time.monotonic()
        done, total = sum(part.done for part in self._parts), sum(part.size for part in self._parts)
        if transfer is None:
            self._on_progress(Progress(done, total, phase=phase))
            return
        quiet = now - transfer.heard_at if phase != "waiting" else 0.0
        speed = self._speedometer.speed(transfer.received, now)
        self._on_progress(Progress(done, total, speed, phase, quiet if quiet > _QUIET_S else 0.0, transfer.note))
