"""Machines that lend their devices are asked before llama.cpp connects: here by servers of the tests' own."""

import socket
import struct
import time
from collections.abc import Callable

import pytest
from tests.models.other_servers import LOOPBACK, OTHERS, free_port, lending, serving

from slipstream.models.errors import UsageError
from slipstream.models.llama.remote import ask, ask_all, endpoints

GB = 10**9


def test_addresses_are_read_a_missing_machine_is_named_and_too_many_are_refused() -> None:
    assert endpoints(" mac-mini:4000, 10.0.0.2,mac-mini:4000 ") == ["mac-mini:4000", "10.0.0.2:50052"]
    assert endpoints("") == []
    with pytest.raises(UsageError, match="17 machines"):
        endpoints(",".join(f"host{n}" for n in range(17)))
    [refused, unknown] = ask_all(f"{LOOPBACK}:{free_port()},no-such-machine.invalid:5")
    assert refused.problem == "connection refused"
    assert unknown.problem == "no machine of this name is known here"


@pytest.mark.parametrize(
    "text", ["mac mini:1", "host:", "host:0", "host:65536", "host:12x", ":50052", "[::1]:5", "a:1:2", "x/y:5", "h\n:5"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no HOST:PORT"):
        endpoints(text)


def test_a_lender_tells_its_devices_and_their_memory() -> None:
    endpoint = serving(lending((3 * GB, 4 * GB), (7 * GB, 8 * GB)))
    lender = ask(endpoint)
    assert not lender.problem and lender.endpoint == endpoint
    assert [(device.name, device.kind, device.machine) for device in lender.devices] == [
        (f"{endpoint}/0", "gpu", endpoint),
        (f"{endpoint}/1", "gpu", endpoint),
    ]
    assert [(device.free_bytes, device.total_bytes) for device in lender.devices] == [
        (3 * GB, 4 * GB),
        (7 * GB, 8 * GB),
    ]


@pytest.mark.parametrize("kind", OTHERS)
def test_what_answers_otherwise_is_named(kind: str) -> None:
    answer, words = OTHERS[kind]
    began = time.monotonic()
    lender = ask(serving(answer), patience=0.5)
    assert words in lender.problem and not lender.devices
    assert time.monotonic() - began < 2.5


def _drip(connection: socket.socket) -> None:
    for byte in struct.pack("<QBBBx24x", 28, 7, 0, 0) * 9:
        connection.sendall(bytes([byte]))
        time.sleep(0.3)


def _silent_after_the_greeting(connection: socket.socket) -> None:
    connection.recv(9 + 24)
    connection.sendall(struct.pack("<QBBBx24x", 28, 7, 0, 0))
    time.sleep(60)


@pytest.mark.parametrize("answer", [_drip, _silent_after_the_greeting])
def test_all_answers_together_have_a_limit_of_time(answer: Callable[[socket.socket], None]) -> None:
    began = time.monotonic()
    lenders = ask_all(",".join(serving(answer) for _ in range(8)), patience=1.0)
    assert time.monotonic() - began < 3
    assert all("it is silent" in lender.problem for lender in lenders)
