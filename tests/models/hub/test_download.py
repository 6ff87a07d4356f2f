"""A download: what comes, in which order, what a stop keeps, and what a changed file on the hub does."""

import importlib
import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.models.download_tests import BODY, NAME, PARTS, QUICK, REPO, job, leftovers, quant, run_until
from tests.models.hub_handler import Fault
from tests.models.hub_models import tiny_gguf
from tests.models.hub_server import HubServer

from slipstream.models.errors import DownloadError
from slipstream.models.gguf.reader import read_header
from slipstream.models.hub.types import Progress, RemoteFile

httpx: Any = importlib.import_module("huggingface_hub.utils").httpx


def refusal(folder: Path, files: tuple[RemoteFile, ...] | None = None) -> str:
    with pytest.raises(DownloadError) as caught:
        job(folder, files).run()
    assert caught.value.hint
    return caught.value.title


def test_a_file_comes_whole_in_ranges_and_is_its_owners_alone(server: HubServer, folder: Path) -> None:
    reports: list[Progress] = []
    path = job(folder).run(reports.append)
    assert path == folder / "acme" / "Tiny-GGUF" / NAME and path.read_bytes() == BODY
    assert read_header(path).architecture == "llama"
    assert leftovers(folder) == [NAME] and server.sent == len(BODY)
    assert len(server.bodies()) >= 4 and all(seen.range for seen in server.bodies())
    assert [seen.path for seen in server.seen if "/resolve/" in seen.path][1:] == [], "the hub is asked once"
    done = [report.done for report in reports]
    assert done == sorted(done) and done[-1] == len(BODY) and reports[-1].phase == "finishing"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for place in (folder, path.parent, path.parent.parent):
        assert stat.S_IMODE(place.stat().st_mode) == 0o700


def test_of_split_models_the_first_comes_last(server: HubServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    placed: list[str] = []
    move = os.replace

    def replaced(source: Path, target: Path) -> None:
        placed.append(Path(target).name)
        move(source, target)

    monkeypatch.setattr(os, "replace", replaced)
    path = job(folder, quant("BF16").files).run()
    assert path and placed == sorted(PARTS, reverse=True) and path.name == min(PARTS)
    assert leftovers(folder) == sorted(PARTS)
    assert len(read_header(path).parts) == 3


def test_an_interrupt_keeps_what_came(server: HubServer, folder: Path) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.done == 150_000:
            raise KeyboardInterrupt

    server.hold_after(150_000)
    with pytest.raises(KeyboardInterrupt):
        job(folder).run(interrupt)
    server.hang_up()
    server.hold_after(None)
    path = job(folder).run()
    assert path and path.read_bytes() == BODY and server.sent == len(BODY)


def test_what_rotted_on_the_disk_is_fetched_again_and_nothing_else(server: HubServer, folder: Path) -> None:
    run_until(server, job(folder), 200_000)
    part = quant().files[0].path_in(folder).with_name(f"{NAME}.part")
    raw = bytearray(part.read_bytes())
    raw[1000] ^= 1
    part.write_bytes(raw)
    start = server.sent
    path = job(folder).run()
    assert path and path.read_bytes() == BODY
    assert 0 < server.sent - start - (len(BODY) - 200_000) <= QUICK.interval


@pytest.mark.parametrize("begun", [False, True])
def test_what_lies_in_the_way_does_not_get_into_the_file(server: HubServer, folder: Path, begun: bool) -> None:
    part = quant().files[0].path_in(folder).with_name(f"{NAME}.part")
    if begun:
        run_until(server, job(folder), 100_000)
    part.parent.mkdir(parents=True, exist_ok=True)
    with part.open("ab") as file:
        file.write(b"x" * (len(BODY) + 1000))
    path = job(folder).run()
    assert path and path.read_bytes() == BODY


def test_a_file_that_is_there_and_right_is_not_fetched(server: HubServer, folder: Path) -> None:
    path = job(folder).run()
    start = server.sent
    assert job(folder).run() == path and server.sent == start and leftovers(folder) == [NAME]


def test_a_wrong_file_in_the_place_is_replaced_once_the_right_one_is_whole(server: HubServer, folder: Path) -> None:
    path = quant().files[0].path_in(folder)
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes(len(BODY)))
    with path.open("rb") as still_in_use:
        job(folder).run()
        assert path.read_bytes() == BODY and still_in_use.read(9) == bytes(9)


def test_a_changed_file_whose_hash_was_listed_is_refused(server: HubServer, folder: Path) -> None:
    listed = quant().files
    run_until(server, job(folder), 100_000)
    server.add(REPO, {NAME: tiny_gguf(seed=2)})
    assert "was changed" in refusal(folder, listed)
    path = job(folder).run()
    assert path and path.read_bytes() == tiny_gguf(seed=2)


def test_a_changed_file_without_a_listed_hash_is_begun_anew(server: HubServer, folder: Path) -> None:
    unlisted = (replace(quant().files[0], sha256=None, revision="main"),)
    run_until(server, job(folder, unlisted), 100_000)
    server.add(REPO, {NAME: tiny_gguf(seed=2)})
    reports: list[Progress] = []
    path = job(folder, unlisted).run(reports.append)
    assert path and path.read_bytes() == tiny_gguf(seed=2)


@pytest.mark.parametrize("place", [0, 70_000, len(BODY) - 1])
def test_a_file_without_a_hash_is_begun_anew_when_it_changes(server: HubServer, folder: Path, place: int) -> None:
    server.silent = True
    unlisted = (replace(quant().files[0], sha256=None),)
    server.fault = Fault("changed", place, 1)
    reports: list[Progress] = []
    path = job(folder, unlisted).run(reports.append)
    assert path and path.read_bytes() == BODY
    assert server.sent > len(BODY)


def test_a_file_that_never_stops_changing(server: HubServer, folder: Path) -> None:
    server.silent = True
    unlisted = (replace(quant().files[0], sha256=None),)
    server.fault = Fault("changed", len(BODY) - 1)
    assert "changes on the hub while it is fetched" in refusal(folder, unlisted)


def test_a_file_that_lies_in_git_itself_or_is_empty(server: HubServer, folder: Path) -> None:
    name = "plain-F32.gguf"
    server.add(REPO, {name: BODY}, plain=frozenset({name}))
    (file,) = quant().files
    assert file.sha256 is None
    path = job(folder, (file,)).run()
    assert path and path.read_bytes() == BODY
    server.add(REPO, {"empty-F32.gguf": b""})
    path = job(folder).run()
    assert path and path.read_bytes() == b""


def test_proxies_are_used(server: HubServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = quant().files
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.invalid")
    monkeypatch.setenv("HTTP_PROXY", server.endpoint)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    path = job(folder, files).run()
    assert path and path.read_bytes() == BODY
    assert {seen.proxied for seen in server.seen if "/resolve/" in seen.path} == {"hub.invalid"}


@pytest.mark.parametrize("asked", [0, 1, 2, 3, 5, 8, 12, 18, 24])
def test_a_stop_keeps_what_came(server: HubServer, folder: Path, monkeypatch: pytest.MonkeyPatch, asked: int) -> None:
    monkeypatch.setattr("slipstream.models.hub.part_file._STEP", 16 << 10)  # as a large file has many steps
    run_until(server, job(folder), len(BODY) // 2)
    left, fetched = iter(range(asked)), server.sent
    stopped = job(folder, tuning=replace(QUICK, report_s=0.0)).run(
        lambda progress: None, lambda: next(left, None) is None
    )
    assert stopped is None or stopped.read_bytes() == BODY
    path = job(folder).run()
    assert path and path.read_bytes() == BODY and leftovers(folder) == [NAME]
    assert server.sent - fetched < len(BODY), "what was there was fetched again"


def test_the_library_is_loaded_only_when_the_hub_is_asked(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib; from slipstream.models.hub.downloads import Downloads; "
        "from slipstream.models.hub.repositories import Hub; "
        "queue = Downloads(Hub(offline=True)); queue.restore(pathlib.Path(sys.argv[1])); queue.close(); "
        "print([n for n in ('huggingface_hub', 'httpx2', 'asyncio') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
