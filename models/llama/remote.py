"""Devices that other machines lend through ggml's RPC server, and the process that lends this machine's.

Run it as ``python -m slipstream.models.llama.remote ENDPOINT THREADS CACHE`` to lend; with an empty CACHE, it stores no
weights. The server ends its process on some errors, serves one borrower at a time, and ends with its supervisor.

ggml ends the process if a lender is missing, has another version or closes the connection, and waits forever if it does
not answer. So this module first sends the protocol's opening messages itself, with timeouts.
Protocol: ``ggml/src/ggml-rpc/ggml-rpc.cpp`` of llama.cpp.
"""

import ctypes
import os
import re
import socket
import struct
import sys
from dataclasses import dataclass
from functools import cache
from threading import Thread
from time import monotonic
from typing import Final

from slipstream.models.child import end_with_parent
from slipstream.models.errors import SlipstreamError, UsageError, reason_of
from slipstream.models.llama.devices import Device
from slipstream.models.outside import quoted

PORT: Final = 50052  # the port that lenders listen on by default
PROTOCOL: Final = (7, 0)
"""Protocol version of the llama.cpp that the package requires: the major version must be the same."""
_ENDPOINT: Final = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252}[A-Za-z0-9])?):([0-9]{1,5})")
_MOST_LENDERS: Final = 16
_PATIENCE: Final = 3.0  # seconds for all answers of a lender
_FOR_NAMES: Final = 1.0  # further seconds for the look-up of names and for connecting
_LONGEST: Final = 64  # maximum bytes of an answer
_DEVICE_MEMORY: Final = 11  # enum rpc_cmd
_HELLO: Final = 14
_DEVICE_COUNT: Final = 15
_CAPABILITIES: Final = 24  # bytes; all zeros means TCP only
_MOST_DEVICES: Final = 64
_CLOSED: Final = "it closed the connection: another version of llama.cpp, or no RPC server"


@dataclass(frozen=True, slots=True)
class Lender:
    """A machine that lends devices, or the reason why it does not."""

    endpoint: str  # its ``HOST:PORT``
    devices: tuple[Device, ...] = ()  # the lent devices; empty with a problem
    problem: str = ""  # why its devices cannot be used, as the end of a sentence


def endpoints(text: str) -> list[str]:
    """Parses ``HOST:PORT,…``; a host without a port gets the default port."""
    found = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        endpoint = part if ":" in part else f"{part}:{PORT}"
        match = _ENDPOINT.fullmatch(endpoint)
        if not match or not 0 < int(match[1]) < 1 << 16:
            raise UsageError(
                f"{quoted(part)} is no HOST:PORT of a machine that lends its devices.",
                f"Write it as in mac-mini:{PORT}, with commas between several.",
            )
        found.append(endpoint)
    if len(found) > _MOST_LENDERS:
        raise UsageError(f"{len(found)} machines are too many; llama.cpp takes {_MOST_LENDERS}.")
    return list(dict.fromkeys(found))


def ask(endpoint: str, patience: float = _PATIENCE) -> Lender:
    """Calls ``ask_all`` for one lender."""
    return ask_all(endpoint, patience)[0]


def ask_all(text: str, patience: float = _PATIENCE) -> list[Lender]:
    """Reads the version, the devices and the free memory of every lender of ``HOST:PORT,…``, all at the same time."""
    found: dict[str, Lender] = {}

    def look(endpoint: str) -> None:
        found[endpoint] = _lender(endpoint, patience)

    until = monotonic() + patience + _FOR_NAMES
    threads = {each: Thread(target=look, args=(each,), name="lender", daemon=True) for each in endpoints(text)}
    for thread in threads.values():
        thread.start()
    for thread in threads.values():  # only the look-up of a name can last longer: the system has no limit for it
        thread.join(max(0.0, until - monotonic()))
    late = "its name was not found in time"
    return [found.get(endpoint) or Lender(endpoint, problem=late) for endpoint in threads]


def _lender(endpoint: str, patience: float) -> Lender:
    try:
        return Lender(endpoint, _devices(endpoint, patience))
    except TimeoutError:
        return Lender(endpoint, problem="it is silent: it hangs, or it serves another slipstream now")
    except socket.gaierror:
        return Lender(endpoint, problem="no machine of this name is known here")
    except (ConnectionResetError, BrokenPipeError):
        return Lender(endpoint, problem=_CLOSED)
    except OSError as error:
        return Lender(endpoint, problem=reason_of(error))
    except _Refused as error:
        return Lender(endpoint, problem=str(error))


@cache
def register(endpoint: str) -> tuple[int, ...]:
    """Connects to a lender for its devices' handles; call ``ask`` first, since ggml ends the process if it cannot."""
    from slipstream.models.llama.ggml import calls, rpc_call

    ggml, backend = calls(), rpc_call("add_server")(endpoint.encode())
    if not backend:
        raise SlipstreamError(f"{endpoint} lends no device.", "Start slipstream lend there again.")
    ggml.backend_register(backend)
    return tuple(ggml.backend_reg_dev_get(backend, n) for n in range(ggml.backend_reg_dev_count(backend)))


class _Refused(Exception):
    """A lender's answer is invalid or of another version."""


def _devices(endpoint: str, patience: float) -> tuple[Device, ...]:
    host, _, port = endpoint.rpartition(":")
    with socket.create_connection((host, int(port)), patience) as connection:
        until = monotonic() + patience
        major, minor, patch = _answer(connection, until, _HELLO, bytes(_CAPABILITIES), f"<BBBx{_CAPABILITIES}x")
        if major != PROTOCOL[0] or minor > PROTOCOL[1]:
            own = ".".join(map(str, PROTOCOL))
            raise _Refused(f"its protocol is {major}.{minor}.{patch}, and {own} is needed: install the same llama.cpp")
        [count] = _answer(connection, until, _DEVICE_COUNT, b"", "<I")
        if not 0 < count <= _MOST_DEVICES:
            raise _Refused(f"it says that it has {count} devices")
        found = []
        for number in range(count):
            free, total = _answer(connection, until, _DEVICE_MEMORY, struct.pack("<I", number), "<QQ")
            found.append(Device(f"{endpoint}/{number}", "gpu", endpoint, total, free, machine=endpoint))
        return tuple(found)


def _answer(connection: socket.socket, until: float, command: int, message: bytes, shape: str) -> tuple[int, ...]:
    """Sends a command byte, the length in 8 bytes and the message; returns the answer, unpacked as ``shape``."""
    connection.sendall(struct.pack("<BQ", command, len(message)) + message)
    [length] = struct.unpack("<Q", _exactly(connection, until, 8))
    if length > _LONGEST or length != struct.calcsize(shape):
        raise _Refused("what answers there is not llama.cpp's RPC server, or one of another version")
    return struct.unpack(shape, _exactly(connection, until, length))


def _exactly(connection: socket.socket, until: float, count: int) -> bytes:
    found = b""
    while len(found) < count:
        if (left := until - monotonic()) <= 0:
            raise TimeoutError
        connection.settimeout(left)
        more = connection.recv(count - len(found))
        if not more:
            raise _Refused(_CLOSED)
        found += more
    return found


def main() -> None:
    """Serves until the supervisor ends; exits with 1 if it cannot serve."""
    endpoint, threads, cache = sys.argv[1:]
    end_with_parent()
    try:
        _serve(endpoint, int(threads), cache)
    except SlipstreamError as error:
        print(error, flush=True)
    sys.stdout.flush()
    os._exit(1)


def _serve(endpoint: str, threads: int, cache: str) -> None:
    from llama_cpp import llama_cpp as C

    from slipstream.models.llama.ggml import CPU, GPU, calls, own_gpus, rpc_call

    C.llama_backend_init()
    ggml, gpus = calls(), own_gpus()
    separate = [each for each in gpus if ggml.backend_dev_type(each) == GPU]
    lent = separate or gpus[:1] or [ggml.backend_dev_by_type(CPU)]
    devices = (ctypes.c_void_p * len(lent))(*lent)
    rpc_call("start_server")(endpoint.encode(), os.fsencode(cache) or None, threads, len(lent), devices)


if __name__ == "__main__":
    main()
