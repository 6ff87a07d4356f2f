"""Disks that are full, fail or refuse: a clear error, nothing lost, and the same call goes on later."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.models.download_tests import NAME, QUICK, job, leftovers, quant
from tests.models.hub_models import tiny_gguf
from tests.models.hub_server import HubServer

from slipstream.models.errors import DownloadError
from slipstream.models.hub import part_file as download_part
from slipstream.models.hub.downloads import Download
from slipstream.models.hub.repositories import Hub

BODY = tiny_gguf()


def failing(call: Callable[..., Any], after: int, code: int) -> Callable[..., Any]:
    """A call that works so many times, and then never again."""
    left = [after]

    def bent(*arguments: Any, **options: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(code, os.strerror(code))
        return call(*arguments, **options)

    return bent


@pytest.mark.parametrize("after", [0, 1, 3, 7, 15])
def test_a_disk_that_fills_up(server: HubServer, folder: Path, after: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(download_part, "write_all", failing(download_part.write_all, after, errno.ENOSPC))
        with pytest.raises(DownloadError, match=r"disk with .* is full") as caught:
            job(folder).run()
    assert "free some room there, then resume" in caught.value.hint and NAME not in leftovers(folder)
    path = job(folder).run()
    assert path and path.read_bytes() == BODY and leftovers(folder) == [NAME]


@pytest.mark.parametrize("after", range(4))
@pytest.mark.parametrize("call", ["fsync", "replace", "ftruncate"])
def test_a_call_that_fails_at_any_place(server: HubServer, folder: Path, call: str, after: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, call, failing(getattr(os, call), after, errno.EIO))
        try:
            job(folder).run()
        except DownloadError as error:
            assert "cannot write" in error.title and "input/output error" in error.title and error.hint
        else:
            assert after >= 1 and call != "fsync", "it was not asked at all"
    path = job(folder).run()
    assert path and path.read_bytes() == BODY and leftovers(folder) == [NAME]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.EFBIG, "takes no files that large.*FAT32"),
        (errno.EDQUOT, "is full"),
        (errno.EROFS, "read-only.*choose another"),
        (errno.ENAMETOOLONG, "shorter path"),
    ],
)
def test_a_disk_that_refuses_says_why(server: HubServer, folder: Path, code: int, words: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(download_part, "write_all", failing(download_part.write_all, 2, code))
        with pytest.raises(DownloadError, match=words):
            job(folder).run()


def test_a_folder_that_cannot_be_made(server: HubServer, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DownloadError, match="cannot write"):
        job(tmp_path / "file").run()


def test_too_little_room_is_said_before_a_byte_is_fetched(server: HubServer, folder: Path) -> None:
    with pytest.raises(DownloadError, match=r"not enough room in .*: 0.3 MB to fetch") as caught:
        job(folder, tuning=replace(QUICK, reserve=1 << 60)).run()
    assert "smaller quantization" in caught.value.hint and server.sent == 0


def test_room_that_others_are_about_to_take_does_not_count(server: HubServer, folder: Path) -> None:
    download = Download(Hub(), quant().files, folder, QUICK, lambda: 1 << 60)
    with pytest.raises(DownloadError, match=r"not enough room in .*0.0 MB free"):
        download.run()


def test_a_disk_that_others_fill_is_noticed_before_it_is_full(
    server: HubServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = iter([10 << 30])
    usage = shutil.disk_usage(folder.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=next(free, 5)))
    with pytest.raises(DownloadError, match="is full"):
        job(folder, tuning=replace(QUICK, reserve=1 << 20)).run()
    assert server.sent > 0 and leftovers(folder) == [f"{NAME}.journal", f"{NAME}.part"]
