"""Networks and disks that fail: the right file or a clear error, and the same call goes on later."""

import errno
import os
import re
import shutil
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.faults.shim import build, compiler
from tests.faults.sweep import sweep
from tests.models.download_tests import BODY, NAME, QUICK, job, leftovers, quant
from tests.models.hub_handler import ALWAYS, FAULTS, Fault, Kind
from tests.models.hub_server import HubServer

from slipstream.models.errors import DownloadError
from slipstream.models.hub import part_file as download_part
from slipstream.models.hub.downloads import Download
from slipstream.models.hub.repositories import Hub

PLACES = (0, 1, 65_536, len(BODY) // 2 + 7, len(BODY) - 1)
WORDS = {
    "corrupt": "arrived damaged", "short": "broke|ended early", "long": "more bytes came", "reset": "broke",
    "stall": "fell silent", "416": "ends earlier", "500": r"failed \(500\)",
    "expired": r"refused an address that the hub gave \(403\)", "wrong range": "another range came",
    "gzip": "packed bytes", "changed": "arrived damaged",
}  # fmt: skip
DISK_FAULTS = ("open:EACCES", "write:EIO", "write:ENOSPC", "fsync:EIO", "ftruncate:EIO", "rename:EACCES")
MOST = 2000  # far more places than there are: a scenario that never ends is no sweep


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


def test_no_network_is_said_soon(server: HubServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = quant().files
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{unused.getsockname()[1]}")
        with pytest.raises(DownloadError, match=r"cannot reach 127.0.0.1.*, 3 times in a row"):
            job(folder, files, replace(QUICK, tries=1000)).run()


def failing(call: Callable[..., Any], after: int, code: int) -> Callable[..., Any]:
    left = [after]

    def bent(*arguments: Any, **options: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(code, os.strerror(code))
        return call(*arguments, **options)

    return bent


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
    download = Download(Hub(), quant().files, folder, QUICK, lambda: 1 << 60)
    with pytest.raises(DownloadError, match=r"not enough room in .*0.0 MB free"):
        download.run()


def test_a_disk_that_others_fill_is_noticed(server: HubServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = iter([10 << 30])
    usage = shutil.disk_usage(folder.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=next(free, 5)))
    with pytest.raises(DownloadError, match="is full"):
        job(folder, tuning=replace(QUICK, reserve=1 << 20)).run()
    assert server.sent > 0 and leftovers(folder) == [f"{NAME}.journal", f"{NAME}.part"]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("shim"))


@pytest.mark.slow
@pytest.mark.skipif(not compiler(), reason="no C compiler: calls cannot be made to fail")
@pytest.mark.parametrize("fault", DISK_FAULTS)
def test_no_wrong_file_and_nothing_fetched_in_vain(library: Path, fault: str) -> None:
    (swept,) = sweep(library, "downloads", MOST, [fault])
    assert swept.wrong == []
    assert swept.whole, "there are later places"
    assert swept.runs and (swept.told or swept.call == "ftruncate"), "nothing failed"
