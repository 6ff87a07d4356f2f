"""Servers on a port that are no lenders of this version: each answers in its own way."""

import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

LOOPBACK: Final = "127.0.0.1"
Answer = Callable[[socket.socket], None]


def serving(answer: Answer) -> str:
    server = socket.create_server((LOOPBACK, 0))

    def attended(connection: socket.socket) -> None:
        with suppress(OSError, struct.error):  # the other side left
            answer(connection)

    def serve() -> None:
        while True:
            connection, _ = server.accept()
            threading.Thread(target=attended, args=(connection,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    return f"{LOOPBACK}:{server.getsockname()[1]}"


def free_port() -> int:
    with socket.socket() as tried:
        tried.bind((LOOPBACK, 0))
        port: int = tried.getsockname()[1]
        return port


def _message(connection: socket.socket) -> int:
    command, length = struct.unpack("<BQ", connection.recv(9, socket.MSG_WAITALL))
    connection.recv(length, socket.MSG_WAITALL)
    return int(command)


def lending(*memory: tuple[int, int], version: tuple[int, int, int] = (7, 0, 0)) -> Answer:
    """What a lender of devices with so much memory, free and in total, answers to the first questions."""

    def answer(connection: socket.socket) -> None:
        for number in range(-2, len(memory)):
            command = _message(connection)
            if number == -2:
                assert command == 14
                connection.sendall(struct.pack("<QBBBx24x", 28, *version))
            elif number == -1:
                assert command == 15
                connection.sendall(struct.pack("<QI", 4, len(memory)))
            else:
                assert command == 11
                connection.sendall(struct.pack("<QQQ", 16, *memory[number]))
        time.sleep(60)

    return answer


def _garbage(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 40)
    time.sleep(60)


OTHERS: Final[dict[str, tuple[Answer, str]]] = {
    "an older version": (lending((1, 1), version=(6, 1, 0)), "its protocol is 6.1.0"),
    "a newer version": (lending((1, 1), version=(7, 3, 0)), "its protocol is 7.3.0"),
    "garbage": (_garbage, "not llama.cpp's RPC server"),
    "closes at once": (lambda connection: connection.close(), "closed the connection"),
    "is silent": (lambda connection: time.sleep(60), "it is silent"),
    "has no device": (lending(), "has 0 devices"),
    "has too many devices": (lending(*[(1, 1)] * 65), "has 65 devices"),
}
"""What a server does, and words of what is said of it."""
