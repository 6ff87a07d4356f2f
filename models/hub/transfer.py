"""Fetches the missing ranges of a download over several connections, and checks that answers match their requests.

Importing this loads huggingface_hub; call ``address.disable_telemetry`` first.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Final

from slipstream.models.errors import DownloadError
from slipstream.models.hub.address import file_address, origin
from slipstream.models.hub.client import LEAST_RATE, TooSlowError, answer, content_range, open_client, paced
from slipstream.models.hub.part_file import PartFile, Writer
from slipstream.models.hub.types import Phase, Tuning
from slipstream.models.hub.words import KEPT, duration, refusal, retry_after, unreachable
from slipstream.models.outside import is_sha256, number_in, shown_path

if TYPE_CHECKING:
    import httpx2 as httpx
else:
    from huggingface_hub.utils import httpx

_PASSING: Final = (408, 425, 429)
_LONGEST_ETAG: Final = 200
_LONGEST_WAIT: Final = 300  # seconds; a longer wait ends the download
_SMALLEST_SEGMENT: Final = 1 << 20
_FIRST_TRIES: Final = 3
_TIMES_ANEW: Final = 3
_WORDS_S: Final = 5.0  # seconds without a byte after which the host is named
_RESUME: Final = f"{KEPT}: check the network, then resume."
_Segment = tuple[PartFile, int, int]


class PassingError(Exception):
    """A failure after which a retry may succeed."""

    def __init__(self, why: str, wait: int | None = None) -> None:
        super().__init__(why)
        self.wait = wait  # seconds that the server asks to wait; None if it gives no time


class ContentChangedError(Exception):
    """The file changed on the hub and no sha256 is known: the download has to start over."""

    def __init__(self, part: PartFile, etag: str = "") -> None:
        super().__init__("the file changed on the hub")
        self.part = part
        self.etag = etag  # its new ETag; empty if unknown


class Source:
    """One file on the hub."""

    def __init__(self, client: httpx.AsyncClient, endpoint: str, part: PartFile, seconds: float) -> None:
        self._client, self._seconds, self._endpoint, self._part = client, seconds, endpoint, part
        self._home = file_address(endpoint, part.file)
        self.host = httpx.URL(self._home).host
        self._direct: str | None = None  # final address after redirects; it is signed and expires
        self._etags: dict[tuple[str, str, int], set[str]] = {}
        self._finding = asyncio.Lock()

    @asynccontextmanager
    async def open(self, start: int, end: int) -> AsyncIterator[tuple[httpx.Response, int]]:
        """Yields the response to a request for a range, and the offset of its first byte.

        The offset is ``start``, or 0 if the server does not support ranges and sends the whole file.
        """
        try:
            response = await self._answer(start, end)
        except (httpx.TransportError, httpx.InvalidURL, TooSlowError) as error:
            self._direct = None
            raise _trouble(error, self._home) from error
        try:
            self._check_content(response)
            yield response, self._offset(response, start, end)
        except (httpx.TransportError, httpx.StreamError, TooSlowError) as error:
            raise _trouble(error, str(response.url)) from error
        finally:
            await response.aclose()

    async def _answer(self, start: int, end: int) -> httpx.Response:
        if self._direct is None:
            async with self._finding:  # one connection resolves the redirects for all connections
                if self._direct is None:
                    return await self._request(self._home, start, end)
        return await self._request(self._direct or self._home, start, end)

    async def _request(self, address: str, start: int, end: int) -> httpx.Response:
        def headers(address: str) -> dict[str, str]:
            wanted = {"range": f"bytes={start}-{end - 1}"}
            if self._part.expected is None:  # with a sha256 no ETag is needed, and ETags may differ between hosts
                for etag in self._etags.get(origin(address), ()):
                    wanted["if-range"] = etag
            return wanted

        def hopped(response: httpx.Response, address: str) -> None:
            self.host = response.url.host
            if origin(address) == origin(self._endpoint):
                self._learn(response)

        found = await answer(self._client, self._endpoint, address, headers, self._seconds, on_hop=hopped)
        try:
            self._check_status(found.response, found.address, known=found.with_token)
        except BaseException:
            await found.response.aclose()
            raise
        if address == self._home:
            self._direct = found.address
        return found.response

    def _learn(self, response: httpx.Response) -> None:
        headers = response.headers
        etag = _bare(headers.get("x-linked-etag", "")) or (
            _bare(headers.get("etag", "")) if response.is_success else ""
        )
        file, before = self._part.file, self._part.journal.written.etag
        size = number_in(headers.get("x-linked-size", ""))
        if size not in (None, file.size) or (file.sha256 and is_sha256(etag) and etag != file.sha256):
            raise DownloadError(
                f"{shown_path(file.name)} was changed on the hub after it was listed.",
                "Look up the repository again, then download what it has now.",
            )
        if not etag or before == etag:
            return
        if before and not file.sha256:
            raise ContentChangedError(self._part, etag)
        self._part.expect(etag)

    def _check_status(self, response: httpx.Response, address: str, known: bool) -> None:
        status = response.status_code
        if status in (200, 206):
            return
        self._direct = None
        if status == 416:
            raise PassingError("the hub says that the file ends earlier")
        if status >= 500 or status in _PASSING:
            raise PassingError(f"{response.url.host} failed ({status})", retry_after(response.headers))
        if origin(address) != origin(self._endpoint):
            raise PassingError(f"{response.url.host} refused an address that the hub gave ({status})")
        raise refusal(status, response.headers, address, self._endpoint, known)

    def _check_content(self, response: httpx.Response) -> None:
        """Raises if a host sends another ETag than before."""
        etag = _short(response.headers.get("etag", ""))
        known = self._etags.setdefault(origin(str(response.url)), set())
        if not etag or etag.startswith("W/") or etag in known:
            return
        before = bool(known)
        if before and self._part.expected is None:
            raise ContentChangedError(self._part)
        known.add(etag)
        if before:
            self._direct = None  # resolve again, and compare with the hub
            raise PassingError("another file answered")

    def _offset(self, response: httpx.Response, start: int, end: int) -> int:
        headers, size = response.headers, self._part.size
        length = number_in(headers.get("content-length", ""))
        if headers.get("content-encoding", "identity") != "identity":
            raise PassingError("packed bytes came where plain ones were asked for")
        if response.status_code == 200:
            if length not in (None, size):
                raise PassingError(f"{length:,} bytes were announced where the file has {size:,}")
            return 0
        place = content_range(headers)
        if not place or place[0] != start or not start <= place[1] < end or place[2] not in (None, size):
            raise PassingError("another range came than was asked for")
        if length not in (None, place[1] + 1 - start):
            raise PassingError("another number of bytes was announced than was asked for")
        return start


def _short(etag: str) -> str:
    return etag if len(etag) <= _LONGEST_ETAG and etag.isascii() and etag.isprintable() else ""


def _bare(etag: str) -> str:
    return _short(etag).removeprefix("W/").strip('"')


def _trouble(error: Exception, address: str) -> PassingError:
    if isinstance(error, TooSlowError):
        return PassingError(f"{httpx.URL(address).host} {error}")
    if isinstance(error, httpx.TimeoutException):
        return PassingError(f"{httpx.URL(address).host} fell silent")
    return PassingError(unreachable(error, address).title.rstrip("."))


class Transfer:
    """Fetches the missing ranges of a job over several connections."""

    def __init__(self, parts: Sequence[PartFile], endpoint: str, tuning: Tuning) -> None:
        self.received = 0
        self.idle = 0.0  # seconds without a new byte; waits that the hub asked for do not count
        self.note = ""  # the reason for a wait or restart, for the screen; else empty
        self._host = ""
        self._waiting = 0
        self._parts, self._endpoint, self._tuning = parts, endpoint, tuning
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
        """Fetches all missing ranges; returns False if it was cancelled."""
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
                    raise DownloadError(
                        f"{shown_path(self._parts[0].file.name)}: {self._host} sent nothing for {self.idle:.0f} s.",
                        _RESUME,
                    )
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
            what = f"{shown_path(part.file.name)} changes on the hub while it is fetched."
            raise DownloadError(what, "Wait until its publisher is done.")

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
            if why:
                name, wait = shown_path(self._given_up[0][0].file.name), why.wait or 0
                if wait > _LONGEST_WAIT:
                    raise DownloadError(f"{name}: {why}.", f"{KEPT}: resume in {duration(wait)}.") from why
                if self.received - before < self._little:
                    raise DownloadError(f"{name}: {why}, {self._tries} times in a row.", _RESUME) from why

    async def _work(self, sources: dict[PartFile, Source]) -> PassingError | None:
        """Runs one connection: fetches ranges until none is left, or until it fails too often in a row."""
        failures = 0
        while segment := self._take():
            part, start, end = segment
            writer, source = Writer(part, self._tuning), sources[part]
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
