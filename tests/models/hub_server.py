"""A small model hub of the tests' own, on loopback: the API that HfApi asks, files with ranges, and faults on demand.

    with HubServer() as server:
        server.add("acme/Tiny-GGUF", {"Tiny-Q8_0.gguf": tiny_gguf(q8_0=True)})
        server.adopt(monkeypatch, tmp_path)  # HF_ENDPOINT and nothing of the owner's own settings
        Hub().quants("acme/Tiny-GGUF")

Large files are served by a second server, a stranger's host to the first: tokens have no business there.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal, Self

import pytest
from tests.models.hub_facts import Fault, Repo, Seen
from tests.models.hub_handler import HubHandler, StoreHandler

from slipstream.models.hub_address import quieten


class HubServer:
    """Two servers in threads; everything that tests set or read is an attribute."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.seen: list[Seen] = []
        self.fault: Fault | None = None
        self.refuse: tuple[int, dict[str, str]] | None = None  # status and headers for every request of the API
        self.answer: bytes | None = None  # in place of every JSON of the API
        self.next_page = ""  # address that a search's answer names as its next page
        self.extra_hop = False  # whether the store redirects once more before it serves
        self.silent = False  # whether redirects tell nothing of the content
        self.accepted: frozenset[str] = frozenset()  # tokens of people who accepted the gated licences
        self.sent = 0  # bytes of large files handed to the network
        self.lock = threading.Lock()
        self.era = 0
        self._limit: int | None = None
        self._room = threading.Condition(self.lock)
        self.closed = threading.Event()
        self._servers = [_Server(("127.0.0.1", 0), handler) for handler in (HubHandler, StoreHandler)]
        for server in self._servers:
            server.hub = self
        self._threads = [
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
            for server in self._servers
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closed.set()
        self.hold_after(None)
        for server in self._servers:
            server.shutdown()
            server.server_close()
        for thread in self._threads:
            thread.join()

    @property
    def endpoint(self) -> str:
        """Address of the hub."""
        return f"http://127.0.0.1:{self._servers[0].server_address[1]}"

    @property
    def store(self) -> str:
        """Address of the host that large files are redirected to."""
        return f"http://127.0.0.1:{self._servers[1].server_address[1]}"

    def adopt(self, monkeypatch: pytest.MonkeyPatch, home: Path, token: str | None = None) -> None:
        """Points everything in this process at this hub, with the given token and no proxy."""
        quieten()  # before the library is imported
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
            monkeypatch.delenv(name.lower(), raising=False)
        for name in ("HF_HUB_OFFLINE", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_OIDC_RESOURCE"):
            monkeypatch.delenv(name, raising=False)
        # huggingface_hub reads the place of its token once, at its import
        monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(home / "token"))
        if token:
            monkeypatch.setenv("HF_TOKEN", token)
        monkeypatch.setenv("HF_ENDPOINT", self.endpoint)

    def add(
        self,
        repo: str,
        files: Mapping[str, bytes],
        *,
        gated: Literal["auto", "manual", False] = False,
        plain: frozenset[str] = frozenset({"README.md"}),
        **facts: Any,
    ) -> Repo:
        """Adds a repository, or replaces it.

        Args:
            repo: ``owner/name``.
            files: Name to content.
            gated: Whether its licence has to be accepted.
            plain: Files that lie in git itself: without sha256, served by the first host.
            facts: As the API spells them: ``downloads=5, likes=2, tags=[...], gguf={...}, lastModified="..."``.
        """
        self.repos[repo] = Repo(repo, dict(files), gated, facts, plain)
        return self.repos[repo]

    def content(self, digest: str) -> bytes | None:
        """A large file by the sha256 in its address."""
        for repo in self.repos.values():
            for content in repo.files.values():
                if hashlib.sha256(content).hexdigest() == digest:
                    return content
        return None

    def hold_after(self, total: int | None) -> None:
        """Sends no byte of a large file beyond ``total`` until called again; None lets everything flow."""
        with self._room:
            self._limit = total
            self._room.notify_all()

    def hang_up(self) -> None:
        """Ends all answers that are under way; what they were held from sending is never counted as sent."""
        with self._room:
            self.era += 1
            self._room.notify_all()

    def allowance(self, wanted: int, era: int) -> int:
        """Waits until bytes may be sent; returns how many, or 0 when the answer of that era is to end."""
        with self._room:
            while not self.closed.is_set() and era == self.era:
                free = wanted if self._limit is None else min(wanted, self._limit - self.sent)
                if free > 0:
                    self.sent += free
                    return free
                self._room.wait()
        return 0

    def strike(self, start: int, end: int) -> Fault | None:
        """The fault that meets a request for these bytes, counted as used."""
        with self.lock:
            fault = self.fault
            if fault is None or fault.times < 1 or not start <= fault.at < end:
                return None
            fault.times -= 1
            return fault

    def bodies(self) -> list[Seen]:
        """Requests for content that reached the store."""
        return [seen for seen in self.seen if seen.host == "store" and seen.method == "GET"]

    def dumps(self, value: object) -> bytes:
        """JSON as the API sends it."""
        return self.answer if self.answer is not None else json.dumps(value).encode()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    hub: HubServer

    def handle_error(self, request: object, client_address: object) -> None:
        """Says nothing: clients that hang up are part of the tests."""
