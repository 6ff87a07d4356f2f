"""Lending this machine's devices: what is refused before anything is served, and the weights that are kept."""

import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from tests.models.other_servers import LOOPBACK, free_port

from slipstream.app.devices.lend import Lending, check, prune
from slipstream.models.errors import SlipstreamError, UsageError
from slipstream.models.llama.devices import survey


def lending(address: str = LOOPBACK, port: int = 0) -> Lending:
    return Lending(address, port or free_port(), 1, None)


@pytest.mark.skipif("RPC" not in survey().backends, reason="llama.cpp is built without RPC")
def test_the_processor_is_lent_where_there_is_no_gpu() -> None:
    kinds = {device.kind for device in check(lending())}
    assert kinds == ({"gpu"} if any(device.kind == "gpu" for device in survey().devices) else {"cpu"})


@pytest.mark.parametrize("address", ["localhost", "::1", "300.1.1.1", "mac-mini"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match="is no IPv4 address"):
        check(lending(address))


def test_an_address_of_another_machine_and_a_port_that_is_taken_are_refused() -> None:
    with pytest.raises(UsageError, match="cannot be listened on"):
        check(lending("192.0.2.1"))
    server = socket.create_server((LOOPBACK, 0))
    with server, pytest.raises(UsageError, match="cannot be listened on: address already in use"):
        check(lending(port=server.getsockname()[1]))
    assert lending().local and not lending("0.0.0.0").local and not lending("192.168.1.5").local


def test_a_build_without_rpc_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.app.devices.lend.survey", lambda: replace(survey(), backends=("CPU",)))
    with pytest.raises(SlipstreamError, match="built without RPC") as refused:
        check(lending())
    assert "-DGGML_RPC=on" in refused.value.hint


def test_weights_that_were_unused_for_longest_leave_first(tmp_path: Path) -> None:
    for number in range(5):
        path = tmp_path / str(number)
        path.write_bytes(bytes(1000))
        os.utime(path, (number, number))
    os.utime(tmp_path / "0", (100, 0))  # it was read again
    prune(tmp_path, 3000)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "3", "4"]
    prune(tmp_path, 0)
    assert not list(tmp_path.iterdir())
