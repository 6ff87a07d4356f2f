"""The downloader on a bad day: faults of every kind, kills and full disks, at random bytes and with other settings.

A command: ``python -m tests.soak.downloads [FAULTS [KILLS [DISKS]]]``; 600, 200 and 20. Prints what went wrong, then
one line: what, how many, how many failed, the 95 % bound, and the most that was fetched twice. A fault fails if a wrong
file takes the right one's place, or an error says not what to do; a kill, if more than an interval is fetched twice.
"""

import errno
import os
import random
import signal
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from tests.models.download_tests import NAME, QUICK, REPO, Child, job, leftovers, quant
from tests.models.hub_handler import ALWAYS, FAULTS, Fault, Kind
from tests.models.hub_models import tiny_gguf
from tests.models.hub_server import HubServer

from slipstream.models.errors import DownloadError
from slipstream.models.hub import part_file as download_part
from slipstream.models.hub.downloads import partials
from slipstream.models.hub.types import Tuning

BODY = tiny_gguf()
ATTEMPTS = 20


def varied(random: random.Random) -> Tuning:
    return replace(
        QUICK, connections=random.choice((1, 2, 4, 7)), segment=random.choice((1 << 30, 64 << 10, 20_000)),
        interval=random.choice((10_000, 64 << 10, 1 << 20)), stall_s=0.15, tries=4,
    )  # fmt: skip


def whole(folder: Path, path: Path | None) -> bool:
    return path is not None and path.read_bytes() == BODY and leftovers(folder) == [NAME]


def fault(server: HubServer, folder: Path, kind: Kind, seed: int) -> str:
    """Downloads through faults of one kind until it succeeds; returns what went wrong."""
    chance = random.Random(f"{kind} {seed}")
    tuning = varied(chance)
    for attempt in range(ATTEMPTS):
        again = chance.random() < 0.6 and attempt < 6
        server.fault = Fault(kind, chance.randrange(len(BODY)), chance.choice((1, 3, ALWAYS))) if again else None
        try:
            return "" if whole(folder, job(folder, tuning=tuning).run()) else "a wrong file was taken"
        except DownloadError as error:
            if not error.hint or NAME in leftovers(folder):
                return f"after an error: {leftovers(folder)}, {error}"
    return f"no attempt of {ATTEMPTS} succeeded"


def reached(done: int, row: dict[str, int]) -> bool:
    return row.get("done", 0) >= done


def kill(server: HubServer, child: Child, folder: Path, chance: random.Random) -> tuple[int, float]:
    """Kills a download one to three times; returns how often, and how many intervals a kill were fetched twice."""
    start, tuning, kills = server.sent, replace(varied(chance), stall_s=5.0), chance.randint(1, 3)
    for _ in range(kills):
        there = max((begun.done for begun in partials(folder)), default=0)
        count = chance.randrange(1, len(BODY) - there)
        server.hold_after(server.sent + count)
        pid = child.start(quant().files, folder, tuning)
        child.until(partial(reached, there + count))
        os.kill(pid, signal.SIGKILL)
        child.until(lambda row: "dead" in row)
        server.hang_up()
        server.hold_after(None)
    if not whole(folder, job(folder, tuning=tuning).run()):
        return kills, float("inf")
    return kills, (server.sent - start - len(BODY)) / (kills * tuning.interval)


def full_disk(folder: Path, after: int) -> str:
    """Fills the disk after so many writes, then makes room; returns what went wrong."""
    left, write = iter(range(after)), download_part.write_all

    def full(*arguments: object) -> None:
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(*arguments)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(download_part, "write_all", full)
        try:
            job(folder).run()
            return "it was not noticed"
        except DownloadError as error:
            if "is full" not in error.title or not error.hint:
                return str(error)
    return "" if whole(folder, job(folder).run()) else "not whole afterwards"


def main(faults: int = 600, kills: int = 200, disks: int = 20) -> int:
    wrong: list[str] = []
    chance, killed, worst = random.Random(3), 0, 0.0
    with HubServer() as server, pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as name:
        root = Path(name)
        server.add(REPO, {NAME: BODY})
        server.adopt(patch, root)
        for number in range(faults):
            kind = FAULTS[number % len(FAULTS)]
            if found := fault(server, root / f"fault{number}", kind, number):
                wrong.append(f"fault {number}, {kind}: {found}")
        server.fault = None
        with Child() as child:
            while killed < kills:
                some, twice = kill(server, child, root / f"kill{killed}", chance)
                killed, worst = killed + some, max(worst, twice)
                if twice > 1.0:
                    wrong.append(f"kill {killed}: {twice:.2f} intervals were fetched twice")
        for after in range(disks):
            if found := full_disk(root / f"disk{after}", after):
                wrong.append(f"disk {after}: {found}")
    for line in wrong:
        print(line)
    count = faults + killed + disks
    bound = f", 95 % bound {3 / count:.2%}" if not wrong else ""
    print(
        f"downloads: {faults} faults of {len(FAULTS)} kinds, {killed} kills, {disks} full disks, {len(wrong)} failed"
        f"{bound}; a kill cost {worst:.2f} intervals at most"
    )
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
