"""Other programs remove, replace, cut or damage what a download works with: it is noticed, and said, and goes on."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.models.download_tests import NAME, QUICK, job, leftovers, quant, run_until
from tests.models.hub_models import tiny_gguf
from tests.models.hub_server import HubServer

from slipstream.models.errors import DownloadError
from slipstream.models.hub.downloads import partials
from slipstream.models.hub.journal import read
from slipstream.models.hub.types import Progress

BODY = tiny_gguf()
HALF = len(BODY) // 2
pipes = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes of POSIX")


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
def test_a_journal_that_goes_away_is_written_again(
    server: HubServer, folder: Path, change: Callable[[Path], object]
) -> None:
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


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("size", -1), ("size", 10**30), ("size", "5"), ("size", True), ("size", None)),
        *(("sha256", [1]), ("sha256", 5), ("index", -1), ("index", 1), ("index", True), ("index", "0")),
        *(("name", "a\ud800.gguf"), ("name", "../x"), ("name", 5), ("repo", "../x"), ("files", 5), ("files", [[1]])),
    ],
)
def test_a_journal_that_cannot_be(server: HubServer, folder: Path, field: str, value: object) -> None:
    run_until(server, job(folder), HALF)
    (path,) = folder.rglob("*.journal")
    head, *rest = path.read_text().splitlines(keepends=True)
    row = json.loads(head)
    if field in ("name", "size", "sha256"):
        row["files"][0][("name", "size", "sha256").index(field)] = value
    else:
        row[field] = value
    path.write_text(json.dumps(row) + "\n" + "".join(rest))
    assert read(path) is None and partials(folder) == []
    check_again(folder)


@pytest.mark.parametrize(
    "line",
    [
        *(b"[" * 200_000, b'{"from":' + b"[" * 200_000, b'{"from": 0, "to": ' + b"9" * 5_000 + b', "crc": 0}'),
        *(b'{"from": NaN, "to": Infinity, "crc": 0}', b'{"from": true, "to": 5, "crc": 0}', b"\xff"),
    ],
    ids=lambda line: repr(line[:12]),
)
def test_a_line_of_a_journal_that_cannot_be(server: HubServer, folder: Path, line: bytes) -> None:
    run_until(server, job(folder), HALF)
    (path,) = folder.rglob("*.journal")
    path.write_bytes(path.read_bytes() + line + b"\n")
    (partial,) = partials(folder)
    assert partial.done == HALF
    fetched = server.sent
    check_again(folder)
    assert server.sent - fetched < len(BODY), "what was noted before was fetched again"
