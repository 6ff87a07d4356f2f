"""kill -9 at any byte, and two processes on one file."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.models.download_tests import NAME, QUICK, REPO, Child, job, leftovers, quant
from tests.models.hub_models import split_gguf, tiny_gguf
from tests.models.hub_server import HubServer

from slipstream.models.errors import DownloadError
from slipstream.models.hub.downloads import partials

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="forks")

BODY = tiny_gguf()
KILLS = 20


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    with HubServer() as server:
        server.add(REPO, {NAME: BODY, **split_gguf("Tiny-BF16", 3)})
        server.adopt(monkeypatch, tmp_path)
        yield server


def kill_at(server: HubServer, child: Child, folder: Path, count: int, label: str = "F32") -> None:
    """Lets a child fetch exactly that many bytes, then kills it."""
    server.hold_after(server.sent + count)
    pid = child.start(quant(label).files, folder)
    child.until(lambda row: row.get("done", 0) >= count)
    os.kill(pid, signal.SIGKILL)
    assert child.until(lambda row: "dead" in row)["dead"] == signal.SIGKILL
    server.hang_up()
    server.hold_after(None)


@pytest.mark.slow
def test_a_kill_costs_at_most_one_interval(server: HubServer, tmp_path: Path) -> None:
    places = random.Random(7).sample(range(1, len(BODY)), KILLS)
    with Child() as child:
        for number, place in enumerate(places):
            folder, start = tmp_path / str(number), server.sent
            kill_at(server, child, folder, place)
            assert NAME not in leftovers(folder)
            path = job(folder).run()
            assert path and path.read_bytes() == BODY and leftovers(folder) == [NAME]
            twice = server.sent - start - len(BODY)
            assert 0 <= twice < QUICK.interval, f"killed after {place} bytes: {twice} were fetched twice"


@pytest.mark.slow
def test_three_kills_of_a_split_model(server: HubServer, tmp_path: Path) -> None:
    parts = split_gguf("Tiny-BF16", 3)
    with Child() as child:
        for count in (70_000, 90_000, 100_000):
            kill_at(server, child, tmp_path, count, "BF16")
            (partial,) = partials(tmp_path)
            assert [file.name for file in partial.files] == sorted(parts)
            assert partial.total == sum(map(len, parts.values())) and 0 < partial.done < partial.total
    start = server.sent
    path = job(tmp_path, quant("BF16").files).run()
    assert path and path.name == min(parts) and leftovers(tmp_path) == sorted(parts)
    assert all((path.parent / name).read_bytes() == content for name, content in parts.items())
    assert server.sent - start < sum(map(len, parts.values())) - 100_000


@pytest.mark.slow
def test_a_second_process_hears_who_is_at_it_and_a_dead_one_is_no_hindrance(server: HubServer, tmp_path: Path) -> None:
    server.hold_after(50_000)
    with Child() as child:
        pid = child.start(quant().files, tmp_path)
        child.until(lambda row: row.get("done", 0) == 50_000)
        with pytest.raises(DownloadError, match=rf"is being downloaded by process {pid} on "):
            job(tmp_path).run()
        with pytest.raises(DownloadError, match=f"process {pid}"):
            job(tmp_path).discard()
        assert leftovers(tmp_path) == [f"{NAME}.journal", f"{NAME}.part"]
        os.kill(pid, signal.SIGKILL)
        child.until(lambda row: "dead" in row)
    server.hang_up()
    server.hold_after(None)
    path = job(tmp_path).run()
    assert path and path.read_bytes() == BODY


@pytest.mark.slow
def test_four_processes_make_one_transfer(server: HubServer, tmp_path: Path) -> None:
    with Child() as child:
        for _ in range(4):
            child.start(quant().files, tmp_path)
            child.until(lambda row: "dead" in row)
    assert leftovers(tmp_path) == [NAME] and server.sent == len(BODY)
