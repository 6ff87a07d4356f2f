"""A small model hub of the tests' own, on loopback: the API that HfApi asks, files with ranges, and faults on demand.

    with HubServer() as server:
        server.add("acme/Tiny-GGUF", {"Tiny-Q8_0.gguf": tiny_gguf(q8_0=True)})
        server.adopt(monkeypatch, tmp_path)  # HF_ENDPOINT and nothing of the owner's own settings
        Hub().quants("acme/Tiny-GGUF")

Large files are served by a second server, a stranger's host to the first: tokens have no business there.
:class:`HostileHub` sends whatever bytes a test names.
"""

import contextlib
import hashlib
import json
import socket
import threading
from collections.abc import Callable, Mapping
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal, Self

import pytest
from tests.models.hub_handler import Fault, HubHandler, Repo, Seen, StoreHandler

from slipstream.models.hub.address import disable_telemetry


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
        return f"http://127.0.0.1:{self._servers[0].server_address[1]}"

    @property
    def store(self) -> str:
        return f"http://127.0.0.1:{self._servers[1].server_address[1]}"

    def adopt(self, monkeypatch: pytest.MonkeyPatch, home: Path, token: str | None = None) -> None:
        """Points everything in this process at this hub, with the given token and no proxy."""
        disable_telemetry()  # before the library is imported
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
        """Adds or replaces a repository; ``plain`` files lie in git itself, ``facts`` are spelled as by the API."""
        self.repos[repo] = Repo(repo, dict(files), gated, facts, plain)
        return self.repos[repo]

    def content(self, digest: str) -> bytes | None:
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
        return [seen for seen in self.seen if seen.host == "store" and seen.method == "GET"]

    def dumps(self, value: object) -> bytes:
        return self.answer if self.answer is not None else json.dumps(value).encode()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    hub: HubServer

    def handle_error(self, request: object, client_address: object) -> None:
        """Says nothing: clients that hang up are part of the tests."""


Answer = bytes | Callable[[socket.socket], None]


class HostileHub:
    """A hub that sends exactly the bytes that a test names for the API, files and ``/blob``, and keeps no rule of
    HTTP."""

    def __init__(self) -> None:
        self.api: Answer = raw(404)
        self.file: Answer = raw(404)
        self.blob: Answer = raw(404)
        self.requests = 0
        self.ended = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self._listener.close()

    @property
    def endpoint(self) -> str:
        """Address of the hub."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def lists(self, *files: tuple[object, object], **more: object) -> None:
        """Answers the API with these names and sizes of files; ``more`` overrides what else it says."""
        siblings = [{"rfilename": name, "size": size} for name, size in files]
        self.api = raw(200, json.dumps({"id": "a/b", "sha": "0" * 40, "siblings": siblings, **more}).encode())

    def dribble(self, head: bytes, pause: float = 0.02) -> Callable[[socket.socket], None]:
        """What sends a beginning, and then a byte now and then."""

        def send(connection: socket.socket) -> None:
            connection.sendall(head)
            while not self.ended.wait(pause):
                connection.sendall(b" ")

        return send

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            head = b""
            while b"\r\n\r\n" not in head:
                if not (more := connection.recv(1 << 16)):
                    return
                head += more
            self.requests += 1
            path = head.split(b" ")[1]
            answer = self.api if path.startswith(b"/api") else self.blob if path.startswith(b"/blob") else self.file
            if isinstance(answer, bytes):
                connection.sendall(answer)
                connection.shutdown(socket.SHUT_WR)
            else:
                answer(connection)


def raw(status: int, body: bytes = b"", length: bool = True, **headers: str) -> bytes:
    """An answer as it goes over the wire; ``X_Linked_Size="5"`` sets that header."""
    lines = [f"HTTP/1.1 {status} X", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
    lines += [f"Content-Length: {len(body)}"] if length else []
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def endless(head: bytes, block: bytes = b" " * 65_536) -> Callable[[socket.socket], None]:
    """What sends a beginning, and then the same bytes until the other side hangs up."""

    def send(connection: socket.socket) -> None:
        connection.sendall(head)
        while True:
            connection.sendall(block)

    return send
