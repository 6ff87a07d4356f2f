"""Lends this machine's devices to slipstream on other machines: ggml's RPC server in a supervised child process."""

import ipaddress
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from slipstream.app.engine.process.process import engine_environment
from slipstream.app.platform.paths import private_folder
from slipstream.app.platform.processes import leave_no_core_file
from slipstream.models.child import last_words
from slipstream.models.errors import SlipstreamError, UsageError, reason_of, unstartable
from slipstream.models.llama.devices import Device, survey
from slipstream.models.llama.install import without_rpc
from slipstream.models.llama.remote import ask

LOOPBACK: Final = "127.0.0.1"
_START: Final = 60.0  # seconds until the server answers
_SAID_AFTER: Final = 5.0  # seconds
_LOOK_EVERY: Final = 0.1  # seconds
_BORROWED: Final = 2.0  # seconds; a shorter connection only queries the devices
_MOST_ENDS: Final = 5
_IN_A_WHILE: Final = 60.0  # the server is not restarted after ``_MOST_ENDS`` ends within this many seconds
_ACCEPTED, _CLOSED = "Accepted client connection", "Client connection closed"
_LAST: Final = 8  # last lines of the server's output that may give the reason of its end


@dataclass(frozen=True, slots=True)
class Lending:
    """Options of the RPC server."""

    address: str  # IPv4 address to listen on
    port: int
    threads: int  # threads of a lent CPU
    cache: Path | None  # folder that keeps weights, so that they are sent once; None to keep none
    cache_bytes: int = 0  # limit of their size

    @property
    def endpoint(self) -> str:
        return f"{self.address}:{self.port}"

    @property
    def local(self) -> bool:
        return ipaddress.IPv4Address(self.address).is_loopback


def check(lending: Lending) -> list[Device]:
    """Checks address, port and llama.cpp before the server starts; returns the devices that will be lent."""
    try:
        ipaddress.IPv4Address(lending.address)
        with socket.socket() as tried:
            if sys.platform != "win32":  # on Windows, this option would accept a port that is taken
                tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind((lending.address, lending.port))
    except ValueError as error:
        raise UsageError(f"{lending.address} is no IPv4 address.", "Write it as in --listen 192.168.1.5.") from error
    except OSError as error:
        words = f"{lending.endpoint} cannot be listened on: {reason_of(error)}."
        raise UsageError(words, "Choose another --port.") from error
    found = survey()
    if found.problem:
        raise SlipstreamError(f"{found.problem}.", "slipstream doctor says more.")
    if "RPC" not in found.backends:
        raise without_rpc()
    separate = [device for device in found.devices if device.kind == "gpu"]
    integrated = [device for device in found.devices if device.kind == "igpu"]
    return separate or integrated[:1] or [device for device in found.devices if device.kind == "cpu"]


def lend(lending: Lending, tell: Callable[[str], None]) -> None:
    ends: deque[float] = deque(maxlen=_MOST_ENDS)
    leave_no_core_file()
    while True:
        if lending.cache:
            prune(private_folder(lending.cache), lending.cache_bytes)
        with _server(lending) as server:
            server.wait_until_ready(lending, tell)
            if not ends:
                tell(f"Lending at {lending.endpoint}. Ctrl-C ends it.")
            why = server.watch(tell)
        ends.append(time.monotonic())
        if len(ends) == _MOST_ENDS and ends[-1] - ends[0] < _IN_A_WHILE:
            raise SlipstreamError(
                f"the server ended {_MOST_ENDS} times in a row: {why}.", "slipstream doctor may help."
            )
        tell(f"The server ended ({why}); it was started again.")


def prune(folder: Path, most: int) -> None:
    """Deletes cached weights, least recently used first, until at most ``most`` bytes are left."""
    kept = []
    for path in folder.iterdir():
        with suppress(OSError):
            facts = path.stat()
            kept.append((max(facts.st_atime, facts.st_mtime), facts.st_size, path))
    total = sum(size for _, size, _ in kept)
    for _, size, path in sorted(kept):
        if total <= most:
            break
        with suppress(OSError):
            path.unlink()
            total -= size


class _Server:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._last: deque[str] = deque(maxlen=_LAST)
        assert process.stdout
        threading.Thread(target=self._read, args=(process.stdout,), name="server's lines", daemon=True).start()

    def wait_until_ready(self, lending: Lending, tell: Callable[[str], None]) -> None:
        address = LOOPBACK if lending.address == "0.0.0.0" else lending.address
        begun, told = time.monotonic(), False
        while (waited := time.monotonic() - begun) < _START and self._process.poll() is None:
            if ask(f"{address}:{lending.port}").devices:
                return
            if waited > _SAID_AFTER and not told:
                told = True
                tell("Waiting for the server to start; Ctrl-C ends it.")
            time.sleep(_LOOK_EVERY)
        raise SlipstreamError(f"the server did not start: {self._why()}.")

    def watch(self, tell: Callable[[str], None]) -> str:
        """Reports when a client connects and disconnects; returns why the server ended."""
        since, reported = 0.0, False
        while True:
            try:
                line = self._lines.get(timeout=_BORROWED)
            except queue.Empty:
                if since and not reported and time.monotonic() - since >= _BORROWED:
                    tell("In use by another slipstream.")
                    reported = True
                continue
            if line is None:
                return self._why()
            if line == _ACCEPTED:
                since, reported = time.monotonic(), False
            elif line == _CLOSED:
                if reported:
                    tell(f"Free again, after {time.monotonic() - since:.0f} s.")
                since = 0.0

    def end(self) -> None:
        with suppress(OSError):
            if self._process.stdin:
                self._process.stdin.close()
        try:
            self._process.wait(2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _read(self, lines: IO[bytes]) -> None:
        for raw in lines:
            line = raw.decode("utf-8", "replace").strip()
            if line:
                self._last.append(line)
                self._lines.put(line)
        self._lines.put(None)

    def _why(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(2)
        code = self._process.poll()
        lines = [line for line in self._last if line not in (_ACCEPTED, _CLOSED)]
        how = "it does not answer" if code is None else f"exit code {code}"
        if code is not None and code < 0:
            with suppress(ValueError):
                how = signal.Signals(-code).name
        return f"{how}; {last_words(chr(10).join(lines)) or lines[-1][:200]}" if lines else how


@contextmanager
def _server(lending: Lending) -> Iterator[_Server]:
    """Runs the server during the block; it also ends with this process, even if that is killed."""
    cache = str(lending.cache) if lending.cache else ""
    command = [sys.executable, "-m", "slipstream.models.llama.remote", lending.endpoint, str(lending.threads), cache]
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=engine_environment(os.environ),
            start_new_session=True,  # Ctrl-C in the terminal must not end it
        )
    except OSError as error:
        raise unstartable("the server's process", error) from error
    server = _Server(process)
    try:
        yield server
    finally:
        server.end()
