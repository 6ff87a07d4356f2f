"""Requests ranges of a file: follows the hub's redirects and checks that an answer matches the request.

Importing this loads huggingface_hub; call ``address.disable_telemetry`` first.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from slipstream.models.hub.address import file_address, origin
from slipstream.models.hub.client import TooSlowError, answer, content_range
from slipstream.models.hub.part_file import PartFile
from slipstream.models.hub.words import changed, refusal, retry_after, unreachable
from slipstream.models.outside import is_sha256, number_in

if TYPE_CHECKING:
    import httpx2 as httpx
else:
    from huggingface_hub.utils import httpx

_PASSING: Final = (408, 425, 429)
_LONGEST_ETAG: Final = 200


class PassingError(Exception):
    """A failure after which a retry may succeed.

    Attributes:
        wait: Seconds that the server asks to wait; None if it gives no time.
    """

    def __init__(self, why: str, wait: int | None = None) -> None:
        """Stores the reason; it ends the title of an error."""
        super().__init__(why)
        self.wait = wait


class ContentChangedError(Exception):
    """The file changed on the hub and no sha256 is known: the download has to start over.

    Attributes:
        part: The file.
        etag: Its new ETag; empty if unknown.
    """

    def __init__(self, part: PartFile, etag: str = "") -> None:
        super().__init__("the file changed on the hub")
        self.part = part
        self.etag = etag


class Source:
    """One file on the hub.

    Attributes:
        host: The host that was asked last.
    """

    def __init__(self, client: httpx.AsyncClient, endpoint: str, part: PartFile, seconds: float) -> None:
        """Only stores the arguments; ``seconds`` limits the wait for an answer."""
        self._client = client
        self._seconds = seconds
        self._endpoint = endpoint
        self._part = part
        self._home = file_address(endpoint, part.file)
        self.host = httpx.URL(self._home).host
        self._direct: str | None = None  # final address after redirects; it is signed and expires
        self._etags: dict[tuple[str, str, int], set[str]] = {}
        self._finding = asyncio.Lock()

    @asynccontextmanager
    async def open(self, start: int, end: int) -> AsyncIterator[tuple[httpx.Response, int]]:
        """Yields the response to a request for a range, and the offset of its first byte.

        The offset is ``start``, or 0 if the server does not support ranges and sends the whole file.

        Raises:
            PassingError: If a retry may succeed.
            ContentChangedError: If the file changed and no sha256 is known.
            HubError: If the hub refuses.
            DownloadError: If the file differs from the listed one.
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
        """Compares the hub's size and ETag with the expected ones."""
        headers = response.headers
        etag = _bare(headers.get("x-linked-etag", "")) or (
            _bare(headers.get("etag", "")) if response.is_success else ""
        )
        file, before = self._part.file, self._part.journal.written.etag
        size = number_in(headers.get("x-linked-size", ""))
        if size not in (None, file.size) or (file.sha256 and is_sha256(etag) and etag != file.sha256):
            raise changed(file)
        if not etag or before == etag:
            return
        if before and not file.sha256:
            raise ContentChangedError(self._part, etag)
        self._part.expect(etag)

    def _check_status(self, response: httpx.Response, address: str, known: bool) -> None:
        """Raises unless the response has content."""
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
    """The ETag if it is short and printable ASCII, else empty."""
    return etag if len(etag) <= _LONGEST_ETAG and etag.isascii() and etag.isprintable() else ""


def _bare(etag: str) -> str:
    return _short(etag).removeprefix("W/").strip('"')


def _trouble(error: Exception, address: str) -> PassingError:
    if isinstance(error, TooSlowError):
        return PassingError(f"{httpx.URL(address).host} {error}")
    if isinstance(error, httpx.TimeoutException):
        return PassingError(f"{httpx.URL(address).host} fell silent")
    return PassingError(unreachable(error, address).title.rstrip("."))
