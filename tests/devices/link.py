"""A network in a process of its own: what it forwards takes a fixed time each way, at a limited rate.

``python -m tests.devices.link PORT MILLISECONDS`` forwards a port of its own, which it prints, to PORT of this machine.
"""

import select
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from tests.models.other_servers import LOOPBACK

_BYTES_A_SECOND: Final = 125e6  # 1 Gbit/s each way
_PIECE: Final = 1 << 16
_ROOT: Final = Path(__file__).parents[2]


@contextmanager
def link(port: int, milliseconds: float) -> Iterator[str]:
    """Forwards to a port of this machine, with so much time for every byte each way; gives ``HOST:PORT`` of its other
    end."""
    command = [sys.executable, "-m", "tests.devices.link", str(port), str(milliseconds)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_ROOT) as process:
        assert process.stdout
        try:
            yield f"{LOOPBACK}:{int(process.stdout.readline())}"
        finally:
            process.kill()


class _Way:
    """One way of a connection: bytes that are on their way."""

    def __init__(self, source: socket.socket, sink: socket.socket, delay: float) -> None:
        self.source, self._sink, self._delay = source, sink, delay
        self._pieces: deque[tuple[float, bytes]] = deque()  # with the time at which each arrives
        self._free = 0.0  # time from which the wire takes more

    def take(self) -> bool:
        """Takes what came; returns False at its end."""
        data = b""
        with suppress(ConnectionError):
            data = self.source.recv(_PIECE)
        now = time.perf_counter()
        self._free = max(now, self._free) + len(data) / _BYTES_A_SECOND
        self._pieces.append((self._free + self._delay, data))
        return bool(data)

    def deliver(self) -> float | None:
        """Hands on what has arrived; returns the seconds until the next piece does."""
        while self._pieces:
            left = self._pieces[0][0] - time.perf_counter()
            if left > 0:
                return left
            data = self._pieces.popleft()[1]
            with suppress(OSError):
                self._sink.sendall(data) if data else self._sink.shutdown(socket.SHUT_WR)
        return None


def _forward(server: socket.socket, port: int, delay: float) -> None:
    ways: dict[socket.socket, _Way] = {}  # by where they come from, until that end is closed
    every: list[_Way] = []
    while True:
        waits = [left for way in every if (left := way.deliver()) is not None]
        # select, not poll: it waits for less than a millisecond where it is asked to
        ready = select.select([sys.stdin, server, *ways], [], [], min(waits, default=None))[0]
        if sys.stdin in ready:
            return  # the process that started it has ended
        for source in [each for each in ways if each in ready]:
            if not ways[source].take():
                del ways[source]
        if server in ready:
            near, far = server.accept()[0], socket.create_connection((LOOPBACK, port))
            for source, sink in ((near, far), (far, near)):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                ways[source] = _Way(source, sink, delay)
                every.append(ways[source])


if __name__ == "__main__":
    with socket.create_server((LOOPBACK, 0)) as listening:
        print(listening.getsockname()[1], flush=True)
        _forward(listening, int(sys.argv[1]), float(sys.argv[2]) / 1e3)
