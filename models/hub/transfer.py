"""Runs a download: fetches missing ranges over several connections, verifies the hash, moves the files into place.

Importing this loads huggingface_hub; call ``address.disable_telemetry`` first.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slipstream.models.hub.client import LEAST_RATE, open_client, paced
from slipstream.models.hub.part_file import PartFile, Writer
from slipstream.models.hub.progress import (
    Phase,
    Progress,
    Tuning,
    asked_to_wait,
    gave_up,
    keeps_changing,
    too_little_room,
)
from slipstream.models.hub.source import ContentChangedError, PassingError, Source

_WINDOW_S: Final = 5.0
_QUIET_S: Final = 1.0
_LONGEST_WAIT: Final = 300  # seconds; a longer wait ends the download
_SMALLEST_SEGMENT: Final = 1 << 20
_FIRST_TRIES: Final = 3
_TIMES_ANEW: Final = 3
_Segment = tuple[PartFile, int, int]


class Transfer:
    """Fetches the missing ranges of a job over several connections.

    Attributes:
        received: Number of new bytes from the network.
        last_byte_at: ``time.monotonic()`` of the last new byte; before it, of the start.
        note: The reason for a wait or restart, for the screen; else empty.
    """

    def __init__(self, parts: Sequence[PartFile], endpoint: str, tuning: Tuning) -> None:
        self.received = 0
        self.last_byte_at = time.monotonic()
        self.note = ""
        self._waiting = 0
        self._parts = parts
        self._endpoint = endpoint
        self._tuning = tuning
        self._taken: list[_Segment] = []
        self._given_up: list[_Segment] = []
        self._streamed: set[PartFile] = set()  # files whose server does not support ranges
        self._little = round(LEAST_RATE * tuning.stall_s)  # a failed try with fewer bytes made no progress
        missing = sum(part.size - part.done for part in parts)
        smallest = min(tuning.segment, _SMALLEST_SEGMENT)
        self._segment = max(smallest, min(tuning.segment, missing // (2 * tuning.connections)))

    @property
    def phase(self) -> Phase:
        if self._waiting and self._waiting >= len(self._taken):
            return "waiting"
        return "downloading" if self.received else "connecting"

    @property
    def _tries(self) -> int:
        """Maximum failures in a row; small before the first bytes, when a retry seldom helps."""
        return self._tuning.tries if self.received >= self._little else min(_FIRST_TRIES, self._tuning.tries)

    async def run(self) -> None:
        """Fetches all missing ranges.

        Raises:
            HubError: If the hub refuses.
            DownloadError: If the disk is full, or the network failed too often.
        """
        stall = self._tuning.stall_s
        async with open_client(self._tuning.connections) as client:
            sources = {part: Source(client, self._endpoint, part, stall) for part in self._parts}
            for _ in range(_TIMES_ANEW):
                try:
                    return await self._rounds(sources)
                except ContentChangedError as anew:
                    part = anew.part
                    part.restart()
                    if anew.etag:
                        part.expect(anew.etag)
                    self.note = "the file changed on the hub: begun anew"
                    sources[part] = Source(client, self._endpoint, part, stall)
            raise keeps_changing(part.file)

    async def _rounds(self, sources: dict[PartFile, Source]) -> None:
        """Runs all connections until the files are complete, or until all connections give up without progress."""
        while not all(part.whole for part in self._parts):
            before, self._taken, self._given_up, self._waiting = self.received, [], [], 0
            workers = [asyncio.create_task(self._work(sources)) for _ in range(self._tuning.connections)]
            try:
                await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
                troubles = [worker.result() for worker in workers if worker.done()]
            finally:
                for worker in workers:
                    worker.cancel()
                await asyncio.gather(*workers, return_exceptions=True)
            why = next((trouble for trouble in troubles if trouble), None)
            if why and (why.wait or 0) > _LONGEST_WAIT:
                raise asked_to_wait(self._given_up[0][0].file, str(why), why.wait or 0) from why
            if why and self.received - before < self._little:
                raise gave_up(self._given_up[0][0].file, str(why), self._tries) from why

    async def _work(self, sources: dict[PartFile, Source]) -> PassingError | None:
        """Runs one connection: fetches ranges until none is left, or until it fails too often in a row."""
        failures = 0
        while segment := self._take():
            part, start, end = segment
            lane = _Lane(part.writer())
            try:
                await self._fetch(lane, sources[part], part, start, end)
                failures = 0
            except PassingError as trouble:
                failures = 1 if lane.received >= self._little else failures + 1
                if failures >= self._tries or (trouble.wait or 0) > _LONGEST_WAIT:
                    self._given_up.append(segment)
                    return trouble
                self.note = f"{trouble}; trying again"
                await self._pause(failures, trouble.wait)
            finally:
                self._taken.remove(segment)
        return None

    def _take(self) -> _Segment | None:
        """Takes the first range that no connection fetches; in file order, the hash can be computed meanwhile."""
        for part in self._parts:
            if part.whole or part in self._streamed:
                continue
            taken = part.ranges.copy()
            for other, start, end in (*self._taken, *self._given_up):
                if other is part:
                    taken.add(start, end)
            for start, end in taken.missing(0, part.size):
                segment = part, start, min(end, start + self._segment)
                self._taken.append(segment)
                return segment
        return None

    async def _fetch(self, lane: _Lane, source: Source, part: PartFile, start: int, end: int) -> None:
        async with source.open(start, end) as (response, place):
            whole = response.status_code == 200
            if whole and part in self._streamed:
                return  # another connection already fetches the whole file
            if whole:
                self._streamed.add(part)
                end = part.size
            try:
                async with aclosing(paced(response, self._tuning.stall_s)) as chunks:
                    async for chunk in chunks:
                        if place + len(chunk) > end:
                            raise PassingError("more bytes came than were asked for")
                        self._keep(lane, part, place, chunk)
                        place += len(chunk)
                if place < end:
                    raise PassingError("the connection ended early")
            finally:
                if whole:
                    self._streamed.discard(part)
                lane.writer.note()

    def _keep(self, lane: _Lane, part: PartFile, place: int, chunk: bytes) -> None:
        """Writes the bytes of a chunk that the file lacks."""
        for start, end in part.ranges.missing(place, place + len(chunk)):
            lane.writer.write(start, chunk[start - place : end - place])
            lane.received += end - start
            self.received += end - start
        self.last_byte_at = time.monotonic()
        if lane.received:
            self.note = ""

    async def _pause(self, failures: int, wait: int | None) -> None:
        tuning = self._tuning
        pause = min(tuning.backoff_most_s, tuning.backoff_s * 2 ** (failures - 1)) * random.uniform(0.5, 1.0)
        self._waiting += 1
        try:
            await asyncio.sleep(max(pause, wait or 0))
        finally:
            self._waiting -= 1
            self.last_byte_at = time.monotonic()


@dataclass
class _Lane:
    """One attempt at a range."""

    writer: Writer
    received: int = 0


class Speedometer:
    """Measures bytes per second over the last seconds."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def speed(self, received: int, now: float) -> float:
        """Adds the bytes received since the start, and returns the speed."""
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
        """Stores the open files; ``promised`` returns the bytes that other jobs still have to write."""
        self._parts = parts
        self._endpoint = endpoint
        self._tuning = tuning
        self._promised = promised
        self._on_progress = on_progress
        self._cancelled = cancelled
        self._speedometer = Speedometer()
        self._reported_at = 0.0

    def run(self, folder: Path) -> bool:
        """Checks, fetches, verifies and moves into place; returns False if it was cancelled."""
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
            while not (part.placed or part.hash_more()):
                if self._stopped("finishing"):
                    return False
        for part in self._parts:
            if not part.placed:
                part.verify()
        for part in reversed(self._parts):  # the library finds a model by its first file, so it is placed last
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
        """Reports at intervals; returns whether to stop."""
        if time.monotonic() - self._reported_at >= self._tuning.report_s:
            self._report(phase)
        return self._cancelled()

    def _report(self, phase: Phase, transfer: Transfer | None = None) -> None:
        now = self._reported_at = time.monotonic()
        done, total = sum(part.done for part in self._parts), sum(part.size for part in self._parts)
        if transfer is None:
            self._on_progress(Progress(done, total, phase=phase))
            return
        quiet = now - transfer.last_byte_at if phase != "waiting" else 0.0
        speed = self._speedometer.speed(transfer.received, now)
        self._on_progress(Progress(done, total, speed, phase, quiet if quiet > _QUIET_S else 0.0, transfer.note))
