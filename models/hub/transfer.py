"""Fetches the missing ranges of a download over several connections.

Importing this loads huggingface_hub; call ``address.disable_telemetry`` first.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Final

from slipstream.models.hub.client import LEAST_RATE, open_client, paced
from slipstream.models.hub.part_file import PartFile, Writer
from slipstream.models.hub.source import ContentChangedError, PassingError, Source
from slipstream.models.hub.types import Phase, Tuning
from slipstream.models.hub.words import asked_to_wait, gave_up, keeps_changing, silent

_LONGEST_WAIT: Final = 300  # seconds; a longer wait ends the download
_SMALLEST_SEGMENT: Final = 1 << 20
_FIRST_TRIES: Final = 3
_TIMES_ANEW: Final = 3
_WORDS_S: Final = 5.0  # seconds without a byte after which the host is named
_Segment = tuple[PartFile, int, int]


class Transfer:
    """Fetches the missing ranges of a job over several connections.

    Attributes:
        received: Number of new bytes from the network.
        idle: Seconds without a new byte; waits that the hub asked for do not count.
        note: The reason for a wait or restart, for the screen; else empty.
    """

    def __init__(self, parts: Sequence[PartFile], endpoint: str, tuning: Tuning) -> None:
        self.received = 0
        self.idle = 0.0
        self.note = ""
        self._host = ""
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

    @property
    def waiting_for(self) -> str:
        """The host that has sent nothing for some seconds; empty while bytes come."""
        return self._host if self.idle >= _WORDS_S else ""

    def run(self, report: Callable[[], None], cancelled: Callable[[], bool]) -> bool:
        """Fetches all missing ranges; returns False if it was cancelled.

        Args:
            report: Called at every interval of reports.
            cancelled: Polled at every interval of reports.

        Raises:
            HubError: If the hub refuses.
            DownloadError: If the disk is full, the network failed too often, or no byte comes for too long.
        """
        return asyncio.run(self._watched(report, cancelled))

    async def _watched(self, report: Callable[[], None], cancelled: Callable[[], bool]) -> bool:
        task = asyncio.create_task(self._all())
        seen, at = self.received, time.monotonic()
        try:
            while not task.done():
                report()
                if cancelled():
                    return False
                await asyncio.wait({task}, timeout=self._tuning.report_s)
                before, at = at, time.monotonic()
                if self.received > seen:
                    seen, self.idle = self.received, 0.0
                elif self.phase != "waiting":
                    self.idle += at - before
                if self.idle >= self._tuning.idle_s and not task.done():
                    raise silent(self._parts[0].file, self._host, self.idle)
            task.result()
            return True
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _all(self) -> None:
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
            writer, source = part.writer(), sources[part]
            self._host = source.host
            try:
                await self._fetch(writer, source, part, start, end)
                failures = 0
            except PassingError as trouble:
                failures = 1 if writer.received >= self._little else failures + 1
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

    async def _fetch(self, writer: Writer, source: Source, part: PartFile, start: int, end: int) -> None:
        async with source.open(start, end) as (response, place):
            self._host = source.host
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
                        self._keep(writer, part, place, chunk)
                        place += len(chunk)
                if place < end:
                    raise PassingError("the connection ended early")
            finally:
                if whole:
                    self._streamed.discard(part)
                writer.note()

    def _keep(self, writer: Writer, part: PartFile, place: int, chunk: bytes) -> None:
        """Writes the bytes of a chunk that the file lacks."""
        for start, end in part.ranges.missing(place, place + len(chunk)):
            writer.write(start, chunk[start - place : end - place])
            self.received += end - start
        if writer.received:
            self.note = ""

    async def _pause(self, failures: int, wait: int | None) -> None:
        tuning = self._tuning
        pause = min(tuning.backoff_most_s, tuning.backoff_s * 2 ** (failures - 1)) * random.uniform(0.5, 1.0)
        self._waiting += 1
        try:
            await asyncio.sleep(max(pause, wait or 0))
        finally:
            self._waiting -= 1
