"""Kills at any byte, several processes on one file, and programs that remove, replace or cut its files."""

import os
import random
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.models.download_tests import BODY, NAME, PARTS, QUICK, Child, job, leftovers, quant
from tests.models.hub_server import HubServer

from slipstream.models.errors import DownloadError
from slipstream.models.hub.downloads import partials
from slipstream.models.hub.journal import read
from slipstream.models.hub.types import Progress

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="forks")
KILLS = 20
HALF = len(BODY) // 2
pipes = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes of POSIX")


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
    parts = PARTS
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


def beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def part(path: Path) -> Path:
    return beside(path, ".part")


def journal(path: Path) -> Path:
    return beside(path, ".journal")


def disturbed(server: HubServer, folder: Path, change: Callable[[Path], object]) -> Path | None:
    """Runs a download, and changes something once half of it has come; a little more comes after that."""
    server.hold_after(HALF)
    download = job(folder, tuning=replace(QUICK, interval=16 << 10, interval_s=0.01))
    changed = False

    def heard(progress: Progress) -> None:
        nonlocal changed
        if server.sent >= HALF and progress.done >= HALF - QUICK.segment and not changed:
            changed = True
            change(download.path)
            server.hold_after(HALF + 32_768)

    try:
        return download.run(heard)
    finally:
        assert changed
        server.hold_after(None)


def check_again(folder: Path) -> None:
    path = job(folder).run()
    assert path and path.read_bytes() == BODY and leftovers(folder) == [NAME]


def all_removed(path: Path) -> None:
    for each in (part, journal):
        each(path).unlink()


def replaced(path: Path) -> None:
    path.unlink()
    path.write_bytes(b"other")


@pytest.mark.parametrize(
    "change",
    [
        lambda path: part(path).unlink(),
        all_removed,
        lambda path: replaced(part(path)),
        lambda path: os.truncate(part(path), 0),
        lambda path: os.truncate(part(path), 5_000),
        lambda path: shutil.rmtree(path.parent.parent),
        lambda path: path.parent.rename(path.parent.with_name("elsewhere")),
        lambda path: (path.parent.rename(path.parent.with_name("elsewhere")), path.parent.mkdir()),
    ],
    ids=["part", "both", "replaced", "emptied", "cut", "folder", "renamed", "renamed and made"],
)
def test_a_part_that_goes_away_is_noticed(server: HubServer, folder: Path, change: Callable[[Path], object]) -> None:
    with pytest.raises(DownloadError, match="removed, replaced or shortened by another program") as caught:
        disturbed(server, folder, change)
    assert "Start the download again" in caught.value.hint and NAME not in leftovers(folder)
    shutil.rmtree(folder / "acme" / "elsewhere", ignore_errors=True)
    check_again(folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda path: journal(path).unlink(),
        lambda path: os.truncate(journal(path), 0),
        lambda path: os.truncate(journal(path), 30),
        lambda path: replaced(journal(path)),
    ],
    ids=["removed", "emptied", "cut", "replaced"],
)
def test_a_journal_that_goes_is_rewritten(server: HubServer, folder: Path, change: Callable[[Path], object]) -> None:
    def look(path: Path) -> None:
        before = read(journal(path))
        change(path)
        kept.append(before.ranges if before else [])

    kept: list[list[tuple[int, int, int]]] = []
    server.hold_after(HALF)
    download = job(folder, tuning=replace(QUICK, interval=16 << 10, interval_s=0.01))
    left = iter(range(200))

    def heard(progress: Progress) -> None:
        if server.sent >= HALF and not kept:
            look(download.path)
            server.hold_after(HALF + 65_536)

    stopped = download.run(heard, lambda: server.sent >= HALF + 65_536 and next(left, None) is None)
    server.hang_up()
    server.hold_after(None)
    written = read(journal(download.path))
    assert stopped is None and kept[0] and written and set(kept[0]) < set(written.ranges)
    fetched = server.sent
    check_again(folder)
    assert server.sent - fetched < HALF + QUICK.segment, "what was noted before was fetched again"


def test_a_journal_that_another_process_took_over_ends_the_download(server: HubServer, folder: Path) -> None:
    from slipstream.models.files import open_locked

    handles: list[int] = []

    def take(path: Path) -> None:
        journal(path).unlink()
        handles.append(open_locked(journal(path)))

    with pytest.raises(DownloadError, match="is being downloaded by"):
        disturbed(server, folder, take)
    os.close(handles[0])
    check_again(folder)


def test_a_folder_in_the_files_place_is_said_before_a_byte_is_fetched(server: HubServer, folder: Path) -> None:
    quant().files[0].path_in(folder).mkdir(parents=True)
    with pytest.raises(DownloadError, match="is a directory") as caught:
        job(folder).run()
    assert "Rename or remove the folder" in caught.value.hint and server.sent == 0


@pytest.mark.skipif(os.name != "posix", reason="links of POSIX")
@pytest.mark.parametrize("place", [part, journal])
def test_a_link_is_not_written_through(server: HubServer, folder: Path, place: Callable[[Path], Path]) -> None:
    path, victim = quant().files[0].path_in(folder), folder.parent / "victim"
    path.parent.mkdir(parents=True)
    victim.write_bytes(b"precious")
    place(path).symlink_to(victim)
    with pytest.raises(DownloadError, match="a link in its place"):
        job(folder).run()
    assert victim.read_bytes() == b"precious"


@pipes
@pytest.mark.parametrize("place", [part, journal])
def test_a_pipe_is_not_waited_for(server: HubServer, folder: Path, place: Callable[[Path], Path]) -> None:
    path = quant().files[0].path_in(folder)
    path.parent.mkdir(parents=True)
    os.mkfifo(place(path))
    assert partials(folder) == []
    with pytest.raises(DownloadError, match="it is no file"):
        job(folder).run()
