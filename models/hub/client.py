"""Sends requests to the hub, each limited in size and time; the token goes to the hub alone.

Redirects are followed here, one by one, so that each address is checked before it is used. Importing this loads
huggingface_hub; call ``address.disable_telemetry`` first.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
import threading
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urljoin

from huggingface_hub import get_token
from huggingface_hub.errors import OIDCError

from slipstream.models.errors import HubError, reason_of
from slipstream.models.hub.address import check_proxies, is_web_address, may_see_token
from slipstream.models.hub.words import host_of, odd_answer, refusal, unreachable
from slipstream.models.outside import LONGEST_REASON, number_in, parse_json, quoted

if TYPE_CHECKING:
    import httpx2 as httpx  # or httpx, depending on the version of huggingface_hub
else:
    from huggingface_hub.utils import httpx

AGENT: Final = "slipstream"  # nothing else is sent about this machine
CONNECT_S: Final = 10.0
LEAST_RATE: Final = 1024  # bytes per second below which a connection counts as broken
_HOPS: Final = 6
_PATIENCE_S: Final = 20.0  # seconds until an answer begins, redirects included, and between two parts of it
_ANSWER_S: Final = 60.0  # seconds that one answer may take, with all tries and its body
_CALL_S: Final = 180.0  # seconds that all answers of a call may take
_JSON_BYTES: Final = 8 << 20
_PASSING: Final = (500, 502, 503, 504)  # statuses of failures that may be temporary
_TRIES: Final = 3
_PAUSE_S: Final = 0.25
_RANGE: Final = re.compile(r"bytes ([0-9]{1,20})-([0-9]{1,20})/([0-9]{1,20}|\*)")
_TOKEN: Final = re.compile(r"[!-~]{1,4096}")


class TooSlowError(Exception):
    """A connection was silent or too slow; the message continues a sentence that starts with the host's name."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A response that is no redirect, its body unread."""

    response: httpx.Response
    address: str  # where it came from, after all redirects
    with_token: bool  # whether the request had the user's token


@cache
def trust() -> ssl.SSLContext:
    """The trusted certificates; reading them takes a tenth of a second."""
    try:
        return httpx.create_ssl_context()
    except (OSError, ValueError) as error:
        what, known = "read the trusted certificates", ["SSL_CERT_FILE", "SSL_CERT_DIR"]
        if getattr(error, "filename", None):  # of certificates, no error has it
            what, known = "write the log of keys", ["SSLKEYLOGFILE"]
        names = " or ".join(name for name in known if os.environ.get(name))
        reason = "it holds no certificate" if isinstance(error, ssl.SSLError) else reason_of(error)
        raise HubError(
            f"cannot {what}{f' that {names} names' if names else ''}: {reason}.",
            f"Correct {names}, or unset it." if names else "Install the package certifi again.",
        ) from error


def token_header(address: str, endpoint: str) -> dict[str, str]:
    """The header with the user's token; empty without a token or for an address that must not get it."""
    if not may_see_token(address, endpoint):
        return {}
    try:
        token = get_token()
    except OIDCError as error:
        raise HubError(f"cannot get a token: {error}.", "Check HF_OIDC_RESOURCE, or unset it.") from error
    except (OSError, ValueError) as error:
        raise HubError(
            f"cannot read the file of the token: {reason_of(error)}.",
            "Correct HF_TOKEN_PATH and HF_HOME, or unset them.",
        ) from error
    if token and not _TOKEN.fullmatch(token):
        raise HubError(
            "the token for the hub has characters that no token has, such as a blank.",
            "Correct HF_TOKEN or unset it; without the variable, log in again: hf auth login.",
        )
    return {"authorization": f"Bearer {token}"} if token else {}


def open_client(connections: int = 1) -> httpx.AsyncClient:
    """Opens a client that limits only the time to connect; :func:`answer` and :func:`paced` limit the rest."""
    check_proxies(os.environ)
    certificates = trust()
    try:
        return httpx.AsyncClient(
            timeout=httpx.Timeout(None, connect=CONNECT_S),
            limits=httpx.Limits(max_connections=connections + 1),
            verify=certificates,
            headers={"user-agent": AGENT, "accept-encoding": "identity"},
        )
    except (ValueError, LookupError, ImportError, httpx.InvalidURL) as error:  # a SOCKS proxy needs a package
        names = ", ".join(sorted(name for name in os.environ if name.upper().endswith("_PROXY")))
        raise HubError(
            f"no proxy can be used: {quoted(str(error), LONGEST_REASON)}.", f"Correct {names}, or unset it."
        ) from error


async def answer(
    client: httpx.AsyncClient,
    endpoint: str,
    address: str,
    headers: Callable[[str], Mapping[str, str]],
    seconds: float,
    *,
    on_hop: Callable[[httpx.Response, str], None] = lambda response, address: None,
) -> Answer:
    """Requests an address and follows its redirects, each of which is checked; the token goes to the hub alone."""
    try:
        async with asyncio.timeout(seconds):
            for _ in range(_HOPS):
                token = token_header(address, endpoint)
                request = client.build_request("GET", address, headers={**headers(address), **token})
                response = await client.send(request, stream=True, follow_redirects=False)
                final = False
                try:
                    on_hop(response, address)
                    final = not response.has_redirect_location
                    if final:
                        return Answer(response, address, bool(token))
                    address = _redirected(response, endpoint)
                finally:
                    if not final:
                        await response.aclose()
    except TimeoutError:
        raise TooSlowError("fell silent") from None
    raise odd_answer(endpoint, "redirects in circles")


async def paced(response: httpx.Response, seconds: float) -> AsyncGenerator[bytes, None]:
    """Yields the bytes of a body as they arrive."""
    chunks = response.aiter_raw()
    waited, came = 0.0, 0
    while True:
        began = time.monotonic()
        try:
            async with asyncio.timeout(seconds - waited):
                chunk = await anext(chunks, None)
        except TimeoutError:
            raise TooSlowError("sends too slowly" if came else "fell silent") from None
        if chunk is None:
            return
        waited, came = waited + time.monotonic() - began, came + len(chunk)
        if came >= LEAST_RATE * seconds:
            waited, came = 0.0, 0
        yield chunk  # the caller's time does not count


def _redirected(response: httpx.Response, endpoint: str) -> str:
    try:
        address = urljoin(str(response.url), response.headers["location"])
    except ValueError:
        address = ""
    if not is_web_address(address):
        raise odd_answer(endpoint, "a redirect to something that is no address")
    return address


def content_range(headers: Mapping[str, str]) -> tuple[int, int, int | None] | None:
    match = _RANGE.fullmatch(headers.get("content-range", ""))
    if not match:
        return None
    first, last, size = (number_in(text) for text in match.groups())
    return None if first is None or last is None or (size is None and match[3] != "*") else (first, last, size)


class Connection:
    """Sends requests to one hub and waits for each answer; another thread can stop it."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._client = open_client()
        self._runner = asyncio.Runner()
        self._until = time.monotonic() + _CALL_S
        self._lock = threading.Lock()
        self._waiting: asyncio.Task[Any] | None = None
        self._stopped = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._runner:
            self._runner.run(self._client.aclose())

    def stop(self) -> None:
        """Ends the request that is under way, and refuses later ones; any thread may call it."""
        with self._lock:
            self._stopped = True
            if self._waiting:
                self._waiting.get_loop().call_soon_threadsafe(self._waiting.cancel)

    def json(self, address: str) -> tuple[Any, str]:
        response, raw = self._get(address, {}, lambda response: _JSON_BYTES + 1)
        if len(raw) > _JSON_BYTES:
            raise odd_answer(self._endpoint, f"more than {_JSON_BYTES >> 20} MB where a list was asked for")
        following = response.links.get("next", {}).get("url", "")
        return parse_json(raw), urljoin(address, following) if following else ""

    def part(self, address: str, start: int, count: int, size: int) -> bytes:
        """Fetches a range of a file."""

        def wanted(response: httpx.Response) -> int:
            if response.status_code == 200:
                return start + count  # a mirror without ranges: skip the bytes before
            place = content_range(response.headers)
            if response.status_code != 206 or not place or place[0] != start or place[2] not in (None, size):
                raise odd_answer(self._endpoint, "another part of the file than was asked for")
            return count

        response, got = self._get(address, {"range": f"bytes={start}-{start + count - 1}"}, wanted)
        if len(got) < (wanted_bytes := wanted(response)):
            raise odd_answer(self._endpoint, f"{len(got):,} bytes where {wanted_bytes:,} were asked for")
        return got[wanted_bytes - count : wanted_bytes]

    def _get(
        self, address: str, headers: Mapping[str, str], most: Callable[[httpx.Response], int]
    ) -> tuple[httpx.Response, bytes]:
        """Fetches at most ``most(response)`` bytes of a body; raises a ``HubError`` for every failure."""
        try:
            return self._runner.run(self._tried(address, headers, most))
        except (httpx.TransportError, httpx.InvalidURL, httpx.StreamError) as error:
            raise unreachable(error, address) from error
        except (TooSlowError, TimeoutError) as error:
            words = f"{host_of(address)} answers too slowly.", "Check the network, or try again later."
            raise HubError(*words) from error
        except asyncio.CancelledError as error:
            words = f"stopped waiting for {host_of(address)}.", "Try again when the network is better."
            raise HubError(*words) from error
        finally:
            with self._lock:
                self._waiting = None

    async def _tried(
        self, address: str, headers: Mapping[str, str], most: Callable[[httpx.Response], int]
    ) -> tuple[httpx.Response, bytes]:
        with self._lock:
            self._waiting = asyncio.current_task()
            if self._stopped:
                raise asyncio.CancelledError
        async with asyncio.timeout(min(_ANSWER_S, self._until - time.monotonic())):
            for attempt in range(_TRIES):
                last = attempt == _TRIES - 1
                try:
                    if found := await self._body(address, headers, most, last):
                        return found
                except (httpx.ReadError, httpx.RemoteProtocolError):
                    if last:
                        raise
                await asyncio.sleep(_PAUSE_S * 2**attempt)
        raise AssertionError("the last try returns or raises")

    async def _body(
        self, address: str, headers: Mapping[str, str], most: Callable[[httpx.Response], int], last: bool
    ) -> tuple[httpx.Response, bytes] | None:
        """Requests an address and reads the body; returns None if a retry may help."""
        found = await answer(self._client, self._endpoint, address, lambda _: headers, _PATIENCE_S)
        response = found.response
        try:
            if response.status_code in _PASSING and not last:
                return None
            if response.status_code >= 400:
                raise refusal(response.status_code, response.headers, found.address, self._endpoint, found.with_token)
            if response.headers.get("content-encoding", "identity") != "identity":
                raise odd_answer(self._endpoint, "packed bytes where plain ones were asked for")
            wanted, got = most(response), bytearray()
            async with aclosing(paced(response, _PATIENCE_S)) as chunks:
                async for chunk in chunks:
                    got += chunk
                    if len(got) >= wanted:
                        break
            return response, bytes(got)
        finally:
            await response.aclose()
