"""Borrowers that misbehave or go away: the lender serves the next one, and nothing outlives its owner."""

import os
import random
import socket
import struct
import time
from collections.abc import Callable
from typing import Final

import psutil
import pytest
from tests.devices.conftest import Open, ask, bundled, done_of
from tests.devices.lender import PATIENCE, Lender, until
from tests.models.other_servers import LOOPBACK

from slipstream.app.protocol.events import Stepped
from slipstream.app.protocol.requests import Devices, Load
from slipstream.models.errors import SlipstreamError

HELLO: Final = struct.pack("<BQ24x", 14, 24)


def far(lender: Lender) -> Load:
    return bundled(Devices(rpc=lender.endpoint))


def serves(lender: Lender, opened: Open) -> None:
    lender.lends_again()
    engine = opened()
    assert engine.load(far(lender)).machines == [lender.endpoint]
    assert done_of(list(engine.reply(ask(size=8)))).tokens


def connected(lender: Lender) -> socket.socket:
    return socket.create_connection((LOOPBACK, lender.port), PATIENCE)


def noise(size: int) -> bytes:
    return random.Random(size).randbytes(size)


SENT: Final[dict[str, bytes]] = {
    "nothing, and closes": b"",
    "noise": noise(4096),
    "noise after the greeting": HELLO + noise(4096),
    "half a greeting": HELLO[:11],
    "no greeting first": struct.pack("<BQ", 15, 0),
    "an unknown command": HELLO + struct.pack("<BQ", 200, 0),
    "a message of 2**60 bytes": HELLO + struct.pack("<BQ", 6, 1 << 60),
    "a graph of noise": HELLO + struct.pack("<BQ", 10, 4096) + noise(4096),
    "a buffer that it does not have": HELLO + struct.pack("<BQQ", 4, 8, 0x4141_4141_4141),
    "a device that it does not have": HELLO + struct.pack("<BQIQ", 0, 12, 99, 1 << 20),
}


@pytest.mark.parametrize("kind", SENT)
def test_after_a_borrower_that_sends_nonsense_it_serves_the_next(lender: Lender, opened: Open, kind: str) -> None:
    lender.lends_again()  # the test before has given it back
    with connected(lender) as borrower:
        borrower.sendall(SENT[kind])
        time.sleep(0.2)
    serves(lender, opened)


@pytest.mark.parametrize("moment", ["loading", "writing"])
def test_after_a_borrower_that_is_killed_it_serves_the_next(own_lender: Lender, opened: Open, moment: str) -> None:
    engine = opened()

    def kill(*_: object) -> None:
        os.kill(engine.process_id or 0, 9)

    with pytest.raises(SlipstreamError):
        engine.load(far(own_lender), kill if moment == "loading" else None)
        for event in engine.reply(ask(size=200)):
            if isinstance(event, Stepped):
                kill()
    serves(own_lender, opened)


def test_while_it_is_borrowed_another_one_is_told_and_goes_on_alone(own_lender: Lender, opened: Open) -> None:
    first, second = opened(), opened()
    first.load(far(own_lender))
    loaded = second.load(far(own_lender))
    assert loaded.machines == [] and "serves another slipstream" in loaded.remark
    first.close()
    serves(own_lender, opened)


def test_a_borrower_that_is_stopped_holds_it_until_it_ends(own_lender: Lender, opened: Open) -> None:
    first, second = opened(), opened()
    first.load(far(own_lender))
    process = psutil.Process(first.process_id)
    process.suspend()
    assert "it is silent" in second.load(far(own_lender)).remark
    process.kill()
    serves(own_lender, opened)


@pytest.mark.parametrize("end", ["ctrl-c", "kill"])
@pytest.mark.parametrize("borrowed", [False, True])
def test_nothing_outlives_the_lender(own_lender: Lender, opened: Open, end: str, borrowed: bool) -> None:
    if borrowed:
        opened().load(far(own_lender))
    child = own_lender.child
    ends: Callable[[], object] = own_lender.end if end == "ctrl-c" else own_lender.kill
    code = ends()
    assert code == (130 if end == "ctrl-c" else None), own_lender.said()
    until(lambda: not child.is_running(), "its child is still there")
    again = Lender(own_lender.log.parent, port=own_lender.port)  # the port is free
    again.end()
