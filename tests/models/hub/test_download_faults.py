"""Sixty downloads over a network that fails: the right file or a clear error, never a wrong file in its place."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.models.download_tests import NAME, QUICK, REPO, job, leftovers
from tests.models.hub_facts import ALWAYS, FAULTS, Fault, Kind
from tests.models.hub_models import tiny_gguf
from tests.models.hub_server import HubServer

from slipstream.models.errors import DownloadError

BODY = tiny_gguf()
PLACES = (0, 1, 65_536, len(BODY) // 2 + 7, len(BODY) - 1)
WORDS = {
    "corrupt": "arrived damaged",
    "short": "broke|ended early",
    "long": "more bytes came",
    "reset": "broke",
    "stall": "fell silent",
    "416": "ends earlier",
    "500": r"failed \(500\)",
    "expired": r"refused an address that the hub gave \(403\)",
    "wrong range": "another range came",
    "gzip": "packed bytes",
    "changed": "arrived damaged",
}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    with HubServer() as server:
        server.add(REPO, {NAME: BODY})
        server.adopt(monkeypatch, tmp_path)
        yield server


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault(server: HubServer, tmp_path: Path, kind: Kind, place: int) -> None:
    stays = PLACES.index(place) % 2 == 0
    server.fault = Fault(kind, place, ALWAYS if stays else 1)
    tuning = QUICK if kind != "stall" else replace(QUICK, stall_s=0.1, tries=2 if stays else 20)
    try:
        path = job(tmp_path, tuning=tuning).run()
    except DownloadError as error:
        wrong = kind == "corrupt" or (kind == "changed" and place < 2)  # only the hash of the whole can tell
        assert stays or wrong, "what passes is not worth an error"
        assert re.search(WORDS[kind], error.title) and error.hint
        assert NAME not in leftovers(tmp_path)
    else:
        assert not stays or kind in ("no range", "long"), "it was not noticed"
        assert path and path.read_bytes() == BODY and leftovers(tmp_path) == [NAME]
        return
    server.fault, fetched = None, server.sent
    path = job(tmp_path).run()
    assert path and path.read_bytes() == BODY and leftovers(tmp_path) == [NAME]
    again = server.sent - fetched
    assert again < len(BODY) or kind in ("corrupt", "changed"), "what came before the error was fetched again"
