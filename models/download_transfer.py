"""Fetches what is missing of a job's files, several ranges at once, until it is there or has failed too often.

Importing this loads huggingface_hub; call ``hub_address.quieten`` before.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from slipstream.models.download_part import PartFile, Writer
from slipstream.models.download_source import AnewError, Source, TroubleError
from slipstream.models.download_types import Phase, Tuning
from slipstream.models.download_words import gave_up, keeps_changing, told_to_wait
from slipstream.models.hub_client import AGENT, trust

if TYPE_CHECKING:
    import httpx2 as httpx
else:
    from huggingface_hub.utils import httpx

_CONNECT_S: Final = 10.0
_LONGEST_WAIT: Final = 300  # seconds; a hub that asks for more is not waited for
_SMALLEST_SEGMENT: Final = 1 << 20
_FIRST_TRIES: Final = 3
_TIMES_ANEW: Final = 3
_Segment = tuple[PartFile, int, int]


class Transfer:
    """The connections of one job.

    Attributes:
        received: Bytes that came over the network and were wanted.
        heard_at: ``time.monotonic()`` of the last of them, or of the start.
        note: Why it waits, or began anew; empty while all is well.
    """

    def __init__(self, parts: Sequence[PartFile], endpoint: str, tuning: Tuning) -> None:
        """Connects to nothing yet."""
        self.received = 0
        self.heard_at = time.monotonic()
        self.note = ""
        self._waiting = 0
        self._parts = parts
        self._endpoint = endpoint
        self._tuning = tuning
        self._taken: list[_Segment] = []
        self._hopeless: list[_Segment] = []
        self._streamed: set[PartFile] = set()  # files that the other side sends only whole
        missing = sum(part.size - part.done for part in parts)
        smallest = min(tuning.segment, _SMALLEST_SEGMENT)
        self._segment = max(smallest, min(tuning.segment, missing // (2 * tuning.connections)))

    @property
    def phase(self) -> Phase:
        """What it does."""
        if self._waiting and self._waiting >= len(self._taken):
            return "waiting"
        return "downloading" if self.received else "connecting"

    @property
    def _tries(self) -> int:
        """How often in a row to fail: where nothing came yet, it is no passing failure, and a person waits."""
        return self._tuning.tries if self.received else min(_FIRST_TRIES, self._tuning.tries)

    async def run(self) -> None:
        """Fetches everything.

        Raises:
            HubError: If the hub refuses.
            DownloadError: If the disk is full, or it failed too often.
        """
        stall = self._tuning.stall_s
        timeout = httpx.Timeout(stall, connect=min(_CONNECT_S, stall), pool=None)
        limits = httpx.Limits(max_connections=self._tuning.connections + 1)
        headers = {"user-agent": AGENT}
        async with httpx.AsyncClient(timeout=timeout, limits=limits, verify=trust(), headers=headers) as client:
            sources = {part: Source(client, self._endpoint, part) for part in self._parts}
            for _ in range(_TIMES_ANEW):
                try:
                    return await self._rounds(sources)
                except AnewError as anew:
                    part = anew.part
                    part.restart()
                    if anew.etag:
                        part.expect(anew.etag)
                    self.note = "the file changed on the hub: begun anew"
                    sources[part] = Source(client, self._endpoint, part)
            raise keeps_changing(part.file)

    async def _rounds(self, sources: dict[PartFile, Source]) -> None:
        """Runs all connections until everything is there, or until they all give up without a new byte."""
        while not all(part.whole for part in self._parts):
            before, self._taken, self._hopeless, self._waiting = self.received, [], [], 0
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
                raise told_to_wait(self._hopeless[0][0].file, str(why), why.wait or 0) from why
            if why and self.received == before:
                raise gave_up(self._hopeless[0][0].file, str(why), self._tries) from why

    async def _work(self, sources: dict[PartFile, Source]) -> TroubleError | None:
        """One connection: range after range, until none is left or it failed too often in a row."""
        failures = 0
        while segment := self._take():
            part, start, end = segment
            lane = _Lane(part.writer())
            try:
                await self._fetch(lane, sources[part], part, start, end)
                failures = 0
            except TroubleError as trouble:
                failures = 1 if lane.received else failures + 1
                if failures >= self._tries or (trouble.wait or 0) > _LONGEST_WAIT:
                    self._hopeless.append(segment)
                    return trouble
                self.note = f"{trouble}; trying again"
                await self._pause(failures, trouble.wait)
            finally:
                self._taken.remove(segment)
        return None

    def _take(self) -> _Segment | None:
        """The next range that nobody fetches, from the front on, so that the hash of the whole can keep up."""
        for part in self._parts:
            if part.whole or part in self._streamed:
                continue
            spoken_for = part.ranges.copy()
            for other, start, end in (*self._taken, *self._hopeless):
                if other is part:
                    spoken_for.add(start, end)
            for start, end in spoken_for.missing(0, part.size):
                segment = part, start, min(end, start + self._segment)
                self._taken.append(segment)
                return segment
        return None

    async def _fetch(self, lane: _Lane, source: Source, part: PartFile, start: int, end: int) -> None:
        async with source.open(start, end) as (response, place):
            whole = response.status_code == 200
            if whole and part in self._streamed:
                return  # another connection gets all of it already
            if whole:
                self._streamed.add(part)
                end = part.size
            try:
                async for chunk in response.aiter_raw():
                    if place + len(chunk) > end:
                        raise TroubleError("more bytes came than were asked for")
                    self._keep(lane, part, place, chunk)
                    place += len(chunk)
                if place < end:
                    raise TroubleError("the connection ended early")
            finally:
                if whole:
                    self._streamed.discard(part)
                lane.writer.note()

    def _keep(self, lane: _Lane, part: PartFile, place: int, chunk: bytes) -> None:
        """Writes what is still missing of a chunk."""
        for start, end in part.ranges.missing(place, place + len(chunk)):
            lane.writer.write(start, chunk[start - place : end - place])
            lane.received += end - start
            self.received += end - start
        self.heard_at = time.monotonic()
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
            self.heard_at = time.monotonic()


@dataclass
class _Lane:
    """One attempt at a range."""

    writer: Writer
    received: int = 0
