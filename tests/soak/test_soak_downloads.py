"""The long run of the downloader: 600 faulty downloads, 200 kills and 20 full disks, at random bytes.

Not part of the usual tests: ``python -m pytest tests/soak/test_soak_downloads.py``; takes some minutes.
"""

from __future__ import annotations

import errno
import os
import random
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from tests.models.download_tests import NAME, QUICK, REPO, Child, job, leftovers, quant
from tests.models.hub_facts import ALWAYS, FAULTS, Fault, Kind
from tests.models.hub_models import tiny_gguf
from tests.models.hub_server import HubServer

from slipstream.models import download_part
from slipstream.models.download import Tuning, partials
from slipstream.models.errors import DownloadError

BODY = tiny_gguf()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubServer]:
    with HubServer() as server, pytest.MonkeyPatch.context() as patch:
        server.add(REPO, {NAME: BODY})
        server.adopt(patch, tmp_path_factory.mktemp("home"))
        yield server


def varied(random: random.Random) -> Tuning:
    """Another way to go about it each time."""
    return replace(
        QUICK,
        connections=random.choice((1, 2, 4, 7)),
        segment=random.choice((1 << 30, 64 << 10, 20_000)),
        interval=random.choice((10_000, 64 << 10, 1 << 20)),
        stall_s=0.15,
        tries=4,
    )


def reached(done: int, row: dict[str, int]) -> bool:
    """Whether a report says that so many bytes are there."""
    return row.get("done", 0) >= done


@pytest.mark.parametrize("seed", range(50))
@pytest.mark.parametrize("kind", FAULTS)
def test_faults(server: HubServer, tmp_path: Path, kind: Kind, seed: int) -> None:
    chance = random.Random(f"{kind} {seed}")
    tuning, errors = varied(chance), 0
    for attempt in range(20):
        again = chance.random() < 0.6 and attempt < 6
        server.fault = Fault(kind, chance.randrange(len(BODY)), chance.choice((1, 3, ALWAYS))) if again else None
        try:
            path = job(tmp_path, tuning=tuning).run()
        except DownloadError as error:
            errors += 1
            assert error.hint and NAME not in leftovers(tmp_path)
        else:
            assert path and path.read_bytes() == BODY and leftovers(tmp_path) == [NAME]
            return
    pytest.fail(f"no attempt of 20 succeeded; {errors} errors")


@pytest.mark.skipif(sys.platform == "win32", reason="forks")
def test_kills(server: HubServer, tmp_path: Path) -> None:
    """Each file is killed one to three times, at random bytes and with other settings."""
    chance, kills, worst, number = random.Random(3), 0, 0.0, 0
    server.fault = None
    with Child() as child:
        while kills < 200:
            number += 1
            folder, start, tuning = tmp_path / str(number), server.sent, replace(varied(chance), stall_s=5.0)
            rounds = chance.randint(1, 3)
            for _ in range(rounds):
                there = max((begun.done for begun in partials(folder)), default=0)
                count = chance.randrange(1, len(BODY) - there)
                server.hold_after(server.sent + count)
                pid = child.start(quant().files, folder, tuning)
                child.until(partial(reached, there + count))
                os.kill(pid, signal.SIGKILL)
                child.until(lambda row: "dead" in row)
                server.hang_up()
                server.hold_after(None)
                kills += 1
            path = job(folder, tuning=tuning).run()
            assert path and path.read_bytes() == BODY and leftovers(folder) == [NAME]
            twice = server.sent - start - len(BODY)
            worst = max(worst, twice / (rounds * tuning.interval))
    assert worst <= 1.0


@pytest.mark.parametrize("after", range(20))
def test_full_disks(server: HubServer, tmp_path: Path, after: int) -> None:
    server.fault, left = None, [after]
    write = download_part.write_all

    def full(*arguments: object) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(*arguments)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(download_part, "write_all", full)
        with pytest.raises(DownloadError, match="is full"):
            job(tmp_path).run()
    path = job(tmp_path).run()
    assert path and path.read_bytes() == BODY and leftovers(tmp_path) == [NAME]
