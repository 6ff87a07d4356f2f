"""A lender on this machine, as its owner starts it, and a wire to it that can be cut, garbled and slowed down."""

import ctypes
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil
from tests.models.other_servers import LOOPBACK, free_port

from slipstream.models.llama.remote import ask

_PR_SET_PDEATHSIG: Final = 1
PATIENCE: Final = 60.0  # seconds; a busy machine is slow


def until(true: Callable[[], object], what: str, patience: float = PATIENCE) -> None:
    end = time.monotonic() + patience
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.02)


class Lender:
    """``slipstream lend`` on a port of its own, and its child."""

    def __init__(self, home: Path, more: Sequence[str] = ("--cache-gb", "0"), port: int = 0, memory: int = 0) -> None:
        self._memory = memory
        self.port, self._home, self._more = port or free_port(), home, more
        self.log = home / f"lend-{self.port}.log"
        self.start()

    @property
    def endpoint(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    def start(self) -> None:
        libc = ctypes.CDLL(None) if sys.platform == "linux" else None

        def limit() -> None:
            if libc:
                libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # it dies with the tests, however they end
            if self._memory:
                resource.setrlimit(resource.RLIMIT_DATA, (self._memory, self._memory))

        command = [sys.executable, "-c", _COMMAND, "lend", "--port", str(self.port), "--threads", "2", *self._more]
        before = len(self.said()) if self.log.exists() else 0  # of another one at this port
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, "SLIPSTREAM_HOME": str(self._home)}, start_new_session=True, preexec_fn=limit,
            )  # fmt: skip
        until(
            lambda: "Lending at" in self.said()[before:] or self.process.poll() is not None, "the lender did not start"
        )
        assert self.process.poll() is None, self.said()

    def said(self) -> str:
        return self.log.read_text()

    @property
    def child(self) -> psutil.Process:
        [child] = psutil.Process(self.process.pid).children()
        return child

    def kill_child(self) -> None:
        before = self.child
        before.kill()
        until(lambda: not before.is_running() or before.status() == psutil.STATUS_ZOMBIE, "it was not killed")

    def kill(self) -> None:
        """Kills the supervisor, as when the machine is switched off: its child ends with it."""
        child = self.child
        self.process.kill()
        self.process.wait()
        until(lambda: not child.is_running(), "the child outlived its supervisor")

    def end(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        return self.process.wait(PATIENCE)

    def lends_again(self, patience: float = PATIENCE) -> None:
        until(lambda: ask(self.endpoint, 0.5).devices, f"it does not lend: {ask(self.endpoint)}", patience)


_COMMAND: Final = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # the tests may run where it is ignored
from slipstream.app.cli.main import main
main(sys.argv[1:])
"""


class Wire:
    """Forwards connections to a lender, counts their bytes, and does harm to what comes back when it is told to."""

    def __init__(self, to: int, delay: float = 0.0) -> None:
        self._to, self._delay = to, delay
        self._mode, self._after = "", 0
        self.passed = [0, 0]
        self._open: list[socket.socket] = []
        self._server = socket.create_server((LOOPBACK, 0))
        self.port: int = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def endpoint(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    def harm(self, mode: str, after: int = 0) -> None:
        """From now on, after so many bytes from borrowers: ``cut``, ``garble`` or ``silence``."""
        self._mode, self._after = mode, self.passed[0] + after
        if mode == "cut" and not after:
            self._cut()

    def close(self) -> None:
        self._server.close()
        self._cut()

    def _cut(self) -> None:
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()  # or who sends waits for room in a buffer that nobody empties
        self._open.clear()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                borrower, _ = self._server.accept()
                if self._mode == "cut":
                    borrower.close()
                    continue
                lender = socket.create_connection((LOOPBACK, self._to))
                for each in (borrower, lender):
                    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._open += [borrower, lender]
                for way, ends in enumerate(((borrower, lender), (lender, borrower))):
                    threading.Thread(target=self._forward, args=(way, *ends), daemon=True).start()

    def _forward(self, way: int, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                self.passed[way] += len(data)
                harmed = self._mode and self.passed[0] > self._after
                if harmed and self._mode == "cut":
                    self._cut()
                    return
                if harmed and self._mode == "silence":
                    continue
                if harmed and self._mode == "garble" and way:
                    data = bytes(byte ^ 0x5A for byte in data)
                if self._delay:
                    time.sleep(self._delay)
                sink.sendall(data)
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
