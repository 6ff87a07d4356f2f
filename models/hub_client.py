"""The connection to the hub. Importing this loads huggingface_hub; call ``hub_address.quieten`` before."""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from huggingface_hub import HfApi, get_session, get_token, set_client_factory
from huggingface_hub.errors import OIDCError

from slipstream.models.errors import HubError
from slipstream.models.hub_address import may_see_token
from slipstream.models.hub_words import odd_answer, refusal, unreachable

if TYPE_CHECKING:
    import httpx2 as httpx  # which one the library brings is its own affair
else:
    from huggingface_hub.utils import httpx

AGENT: Final = "slipstream"  # all that is said of this machine
TIMEOUT: Final = httpx.Timeout(30.0, connect=10.0, pool=None)
_HOME: Final = "x-slipstream-endpoint"  # never sent: says which hub a request is meant for
_PASSING: Final = (500, 502, 503, 504)
_TRIES: Final = 3
_PAUSE: Final = 0.25
_RANGE: Final = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


@cache
def trust() -> ssl.SSLContext:
    """Which certificates are good, read once: that takes a tenth of a second."""
    return httpx.create_ssl_context()


class HubClient(httpx.Client):
    """Sends what HfApi asks and words what goes wrong; a token goes to the hub that it is meant for, and nowhere else.

    HfApi itself would wait for ever on a hub that falls silent, retry for half a minute without a network, and send
    the token wherever a list names its next page.
    """

    def __init__(self) -> None:
        """Follows redirects; the library drops the token when they lead to another host."""
        super().__init__(follow_redirects=True, timeout=TIMEOUT, verify=trust())

    def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        """Sends a request and returns the good answer.

        Raises:
            HubError: If there is none.
        """
        address = str(request.url)
        home = request.headers.pop(_HOME, None) or f"{request.url.scheme}://{request.url.netloc.decode()}"
        if not may_see_token(address, home):
            request.headers.pop("authorization", None)
        known = "authorization" in request.headers
        for attempt in range(_TRIES):
            last = attempt == _TRIES - 1
            with worded(address):
                try:
                    response = super().send(request, **options)
                except (httpx.ReadError, httpx.RemoteProtocolError):
                    if last:
                        raise
                    continue
            if response.status_code < 400:
                return response
            response.close()
            if response.status_code not in _PASSING or last:
                raise refusal(response.status_code, response.headers, address, home, known)
            time.sleep(_PAUSE * 2**attempt)
        raise AssertionError("the last try returns or raises")


@contextmanager
def worded(address: str) -> Iterator[None]:
    """Turns failures of the network into words.

    Raises:
        HubError: In place of them.
    """
    try:
        yield
    except (httpx.TransportError, httpx.TooManyRedirects, httpx.InvalidURL, httpx.StreamError) as error:
        raise unreachable(error, address) from error


def headers_for(endpoint: str) -> dict[str, str]:
    """Headers for every request of ours to a hub through :class:`HubClient`."""
    return {_HOME: endpoint, "accept-encoding": "identity", "user-agent": AGENT, **token_header(endpoint, endpoint)}


def token_header(address: str, endpoint: str) -> dict[str, str]:
    """The header with the owner's token, empty if there is none or the address must not see it.

    Raises:
        HubError: If the environment promises a token that cannot be had.
    """
    if not may_see_token(address, endpoint):
        return {}
    try:
        token = get_token()
    except OIDCError as error:
        raise HubError(f"cannot get a token: {error}.", "Check HF_OIDC_RESOURCE, or unset it.") from error
    return {"authorization": f"Bearer {token}"} if token else {}


def client() -> HubClient:
    """The one client of this process, which HfApi uses too."""
    current = get_session()
    assert isinstance(current, HubClient)
    return current


def api(endpoint: str) -> HfApi:
    """HfApi for a hub, over :class:`HubClient`."""
    return HfApi(endpoint=endpoint, token=False, headers=headers_for(endpoint))


def first_bytes(address: str, endpoint: str, start: int, count: int, size: int) -> bytes:
    """Fetches a range of a file on the hub.

    Args:
        address: Of the file.
        endpoint: The hub.
        start: First byte.
        count: How many; within ``size``.
        size: Bytes of the whole file, as the hub has stated it.

    Raises:
        HubError: If they cannot be had exactly.
    """
    headers = {**headers_for(endpoint), "range": f"bytes={start}-{start + count - 1}"}
    with worded(address), client().stream("GET", address, headers=headers) as response:
        skip = _offset(response, start, size, endpoint)
        got = bytearray()
        for chunk in response.iter_raw():
            got += chunk
            if len(got) >= skip + count:
                break
    if len(got) < skip + count:
        raise odd_answer(endpoint, f"{len(got):,} bytes where {skip + count:,} were asked for")
    return bytes(got[skip : skip + count])


def _offset(response: httpx.Response, start: int, size: int, endpoint: str) -> int:
    """How many bytes of the answer come before the first that was asked for."""
    if response.headers.get("content-encoding", "identity") != "identity":
        raise odd_answer(endpoint, "packed bytes where plain ones were asked for")
    if response.status_code == 200:
        return start  # a mirror without ranges: read on from the beginning
    match = _RANGE.fullmatch(response.headers.get("content-range", ""))
    if response.status_code != 206 or not match or (int(match[1]), int(match[3])) != (start, size):
        raise odd_answer(endpoint, "another part of the file than was asked for")
    return 0


set_client_factory(HubClient)  # here, so that it happens once whatever threads come first
