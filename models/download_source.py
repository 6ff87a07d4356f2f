"""Where the bytes of a file come from: follows the hub's redirects, and refuses answers that are not what was asked.

Importing this loads huggingface_hub; call ``hub_address.quieten`` before.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from slipstream.models.download_part import PartFile, is_sha256
from slipstream.models.download_words import changed
from slipstream.models.hub_address import file_address, origin
from slipstream.models.hub_client import token_header
from slipstream.models.hub_words import refusal, retry_after, unreachable

if TYPE_CHECKING:
    import httpx2 as httpx
else:
    from huggingface_hub.utils import httpx

_HOPS: Final = 6
_RANGE: Final = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
_PASSING: Final = (408, 425, 429)


class TroubleError(Exception):
    """A failure that may pass.

    Attributes:
        wait: Seconds that the other side asks to wait; None if it does not.
    """

    def __init__(self, why: str, wait: int | None = None) -> None:
        """Keeps the words."""
        super().__init__(why)
        self.wait = wait


class AnewError(Exception):
    """The file changed, and nobody knows which content is wanted: it has to be begun anew.

    Attributes:
        part: The file.
        etag: What the hub calls it now; empty if the hub does not say.
    """

    def __init__(self, part: PartFile, etag: str = "") -> None:
        """Keeps both."""
        super().__init__("the file changed on the hub")
        self.part = part
        self.etag = etag


class Source:
    """One file on the hub."""

    def __init__(self, client: httpx.AsyncClient, endpoint: str, part: PartFile) -> None:
        """Asks nothing yet."""
        self._client = client
        self._endpoint = endpoint
        self._part = part
        self._home = file_address(endpoint, part.file)
        self._direct: str | None = None  # where the hub's redirects lead: a signed address that is void after a while
        self._etags: dict[tuple[str, str, int], set[str]] = {}
        self._finding = asyncio.Lock()

    @asynccontextmanager
    async def open(self, start: int, end: int) -> AsyncIterator[tuple[httpx.Response, int]]:
        """Lends the answer to a request for a range, and the place of its first byte.

        That place is ``start``, or 0 where the other side knows no ranges and sends the whole file.

        Raises:
            TroubleError: If it may work later.
            AnewError: If the file is another one now.
            HubError: If the hub refuses.
            DownloadError: If the file is not the one that was listed.
        """
        try:
            response = await self._answer(start, end)
        except (httpx.TransportError, httpx.InvalidURL) as error:
            self._direct = None
            raise _trouble(error, self._home) from error
        try:
            self._check_content(response)
            yield response, self._offset(response, start, end)
        except (httpx.TransportError, httpx.StreamError) as error:
            raise _trouble(error, str(response.url)) from error
        finally:
            await response.aclose()

    async def _answer(self, start: int, end: int) -> httpx.Response:
        if self._direct is None:
            async with self._finding:  # one connection asks the hub, the others wait for what it finds
                if self._direct is None:
                    return await self._hop(self._home, start, end)
        return await self._hop(self._direct or self._home, start, end)

    async def _hop(self, address: str, start: int, end: int) -> httpx.Response:
        from_home = address == self._home
        for _ in range(_HOPS):
            headers = {"range": f"bytes={start}-{end - 1}", "accept-encoding": "identity"}
            if self._part.expected is None:  # else the hash tells, and hosts may differ in what they call the content
                for etag in self._etags.get(origin(address), ()):
                    headers["if-range"] = etag
            token = token_header(address, self._endpoint)
            request = self._client.build_request("GET", address, headers={**headers, **token})
            response = await self._client.send(request, stream=True, follow_redirects=False)
            if origin(address) == origin(self._endpoint):
                await self._learn(response)
            if not response.has_redirect_location:
                await self._good(response, address, known=bool(token))
                if from_home:
                    self._direct = address
                return response
            await response.aclose()
            address = str(response.url.join(response.headers["location"]))
        raise TroubleError("the hub redirects in circles")

    async def _learn(self, response: httpx.Response) -> None:
        """Takes in what the hub says of the file's content."""
        headers = response.headers
        etag = headers.get("x-linked-etag", "")
        if not etag and response.is_success:
            etag = headers.get("etag", "")
        etag = _bare(etag)
        size = headers.get("x-linked-size", "")
        file, before = self._part.file, self._part.journal.written.etag
        if (size.isdigit() and int(size) != file.size) or (file.sha256 and is_sha256(etag) and etag != file.sha256):
            await response.aclose()
            raise changed(file)
        if not etag or before == etag:
            return
        if before and not file.sha256:
            await response.aclose()
            raise AnewError(self._part, etag)
        self._part.expect(etag)

    async def _good(self, response: httpx.Response, address: str, known: bool) -> None:
        """Lets an answer with content through."""
        status = response.status_code
        if status in (200, 206):
            return
        await response.aclose()
        self._direct = None
        if status == 416:
            raise TroubleError("the hub says that the file ends earlier")
        if status >= 500 or status in _PASSING:
            raise TroubleError(f"{response.url.host} failed ({status})", retry_after(response.headers))
        if origin(address) != origin(self._endpoint):
            raise TroubleError(f"{response.url.host} refused an address that the hub gave ({status})")
        raise refusal(status, response.headers, address, self._endpoint, known)

    def _check_content(self, response: httpx.Response) -> None:
        """Notices that a host calls the content otherwise than before."""
        etag = response.headers.get("etag", "")
        known = self._etags.setdefault(origin(str(response.url)), set())
        if not etag or etag.startswith("W/") or etag in known:
            return
        before = bool(known)
        if before and self._part.expected is None:
            raise AnewError(self._part)
        known.add(etag)
        if before:
            self._direct = None  # the hub itself is asked whether it is still the same
            raise TroubleError("another file answered")

    def _offset(self, response: httpx.Response, start: int, end: int) -> int:
        headers, size = response.headers, self._part.size
        length = int(headers["content-length"]) if headers.get("content-length", "").isdigit() else None
        if headers.get("content-encoding", "identity") != "identity":
            raise TroubleError("packed bytes came where plain ones were asked for")
        if response.status_code == 200:
            if length not in (None, size):
                raise TroubleError(f"{length:,} bytes were announced where the file has {size:,}")
            return 0
        match = _RANGE.fullmatch(headers.get("content-range", ""))
        first, last = (int(match[1]), int(match[2])) if match else (-1, -1)
        if not match or first != start or not start <= last < end or match[3] not in ("*", str(size)):
            raise TroubleError("another range came than was asked for")
        if length not in (None, last + 1 - first):
            raise TroubleError("another number of bytes was announced than was asked for")
        return start


def _bare(etag: str) -> str:
    return etag.removeprefix("W/").strip('"')


def _trouble(error: Exception, address: str) -> TroubleError:
    if isinstance(error, httpx.TimeoutException):
        return TroubleError(f"{httpx.URL(address).host} fell silent")
    return TroubleError(unreachable(error, address).title.rstrip("."))
