"""What a download seldom meets: stops amid its checks, locks that were taken over, journals of nobody, odd answers."""

from __future__ import annotations

import errno
import importlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from filelock import lock_descriptor
from tests.models.download_tests import NAME, QUICK, REPO, job, leftovers, quant, run_until
from tests.models.hub_facts import Fault
from tests.models.hub_models import split_gguf, tiny_gguf
from tests.models.hub_server import HubServer

from slipstream.models.errors import DownloadError, SlipstreamError
from slipstream.models.files import open_locked
from slipstream.models.hub import downloads as download_files
from slipstream.models.hub import part_file as download_part
from slipstream.models.hub.downloads import partials
from slipstream.models.hub.journal import read

BODY = tiny_gguf()
httpx: Any = importlib.import_module("huggingface_hub.utils").httpx


@pytest.mark.parametrize("asked", range(12))
def test_a_stop_at_any_place_keeps_what_is_there(server: HubServer, folder: Path, asked: int) -> None:
    run_until(server, job(folder), len(BODY) // 2)
    left, fetched = iter(range(asked)), server.sent
    stopped = job(folder, tuning=replace(QUICK, report_s=0.0)).run(
        lambda progress: None, lambda: next(left, None) is None
    )
    assert stopped is None or stopped.read_bytes() == BODY
    path = job(folder).run()
    assert path and path.read_bytes() == BODY and leftovers(folder) == [NAME]
    assert server.sent - fetched < len(BODY), "what was there was fetched again"


@pytest.mark.parametrize("asked", range(0, 24, 3))
def test_a_stop_while_much_is_hashed_keeps_what_is_there(
    server: HubServer, folder: Path, monkeypatch: pytest.MonkeyPatch, asked: int
) -> None:
    monkeypatch.setattr(download_part, "_STEP", 16 << 10)  # as a large file has many steps
    phases: list[str] = []
    left = iter(range(asked))

    def late() -> bool:
        return phases[-1:] == ["finishing"] and next(left, None) is None

    stopped = job(folder, tuning=replace(QUICK, report_s=0.0)).run(lambda progress: phases.append(progress.phase), late)
    assert "finishing" in phases and (stopped is None or stopped.read_bytes() == BODY)
    fetched = server.sent
    path = job(folder).run()
    assert path and path.read_bytes() == BODY and leftovers(folder) == [NAME]
    assert server.sent == fetched == len(BODY), "what was there was fetched again"


def test_a_journal_that_says_nothing(server: HubServer, folder: Path) -> None:
    assert read(folder / "missing") is None
    run_until(server, job(folder), len(BODY) // 2)
    (journal,) = folder.rglob("*.journal")
    first, *ranges = journal.read_text().splitlines(keepends=True)
    written = read(journal)
    assert written and written.ranges and ranges
    journal.write_text(first + '{"from": 9, "to": 3, "crc": 0}\n' + "".join(ranges))
    torn = read(journal)
    assert torn and torn.ranges == []
    journal.write_text(first.replace('"version": 1', '"version": 99').replace('"version":1', '"version":99'))
    assert read(journal) is None
    path = job(folder).run()
    assert path and path.read_bytes() == BODY


def test_a_split_model_counts_the_files_that_are_in_their_place(server: HubServer, folder: Path) -> None:
    parts = split_gguf("Tiny-BF16", 3)
    server.add(REPO, parts)
    files = quant("BF16").files
    run_until(server, job(folder, files), 100_000)
    (before,) = partials(folder)
    assert before.done == 100_000
    done = files[-1]
    assert not done.path_in(folder).exists()
    for left in folder.rglob(f"{done.name}.*"):
        left.unlink()  # as when a kill came once this one had its name
    done.path_in(folder).write_bytes(parts[done.name])
    (after,) = partials(folder)
    assert done.size <= after.done < after.total == before.total == sum(file.size for file in files)
    fetched = server.sent
    path = job(folder, files).run()
    assert path and leftovers(folder) == sorted(parts) and server.sent - fetched <= before.total - done.size


def test_a_folder_in_the_place_of_a_part_is_named_and_its_lock_let_go(server: HubServer, folder: Path) -> None:
    place = quant().files[0].path_in(folder).with_name(f"{NAME}.part")
    place.mkdir(parents=True)
    for _ in range(2):
        with pytest.raises(DownloadError, match=r"cannot write .*is a directory"):
            job(folder).run()
    place.rmdir()
    path = job(folder).run()
    assert path and path.read_bytes() == BODY and leftovers(folder) == [NAME]


def test_a_folder_that_cannot_be_read_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    (folder / f"{NAME}.journal").touch()

    def failing(path: Path) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(download_files, "read", failing)
    with pytest.raises(DownloadError, match=r"input/output error"):
        partials(folder)


@pytest.mark.skipif(os.name != "posix", reason="locks of POSIX")
def test_a_lock_whose_file_was_removed_meanwhile_is_taken_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, real, removed = tmp_path / "lock", lock_descriptor, [False]

    def late(handle: int, *, blocking: bool) -> bool:
        if not removed[0]:
            removed[0] = True
            path.unlink()  # its holder has just finished
        return real(handle, blocking=blocking)

    monkeypatch.setattr("filelock.lock_descriptor", late)
    handle = open_locked(path)
    assert removed[0] and os.path.samestat(os.fstat(handle), path.stat())
    os.close(handle)

    def failing(handle: int, *, blocking: bool) -> bool:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("filelock.lock_descriptor", failing)
    with pytest.raises(OSError, match=r"[Ii]nput/output"):
        open_locked(path)


@pytest.mark.parametrize(
    ("header", "ranges", "words"),
    [
        ("content-length", True, "another number of bytes was announced than"),
        ("content-length", False, "7 bytes were announced where the file has"),
        ("location", True, "redirects in circles"),
    ],
)
def test_an_answer_that_makes_no_sense_is_no_file(
    server: HubServer, folder: Path, monkeypatch: pytest.MonkeyPatch, header: str, ranges: bool, words: str
) -> None:
    server.fault = None if ranges else Fault("no range", 0)
    download = job(folder)
    real = httpx.AsyncClient.send

    async def send(client: Any, request: Any, **options: Any) -> Any:
        response = await real(client, request, **options)
        if header == "location":
            await response.aclose()
            return httpx.Response(302, headers={"location": str(request.url)}, request=request)
        if response.status_code in (200, 206):
            response.headers["content-length"] = "7"
        return response

    monkeypatch.setattr(httpx.AsyncClient, "send", send)
    with pytest.raises(SlipstreamError, match=words):
        download.run()
    monkeypatch.undo()
    assert NAME not in leftovers(folder)
