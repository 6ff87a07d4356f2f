"""What the tests of downloads share: a small job on the tests' own hub, and a child to kill."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, Self

from tests.models.hub_models import split_gguf, tiny_gguf
from tests.models.hub_server import HubServer

from slipstream.models.hub.downloads import Download
from slipstream.models.hub.repositories import Hub
from slipstream.models.hub.types import Progress, Quant, RemoteFile, Tuning

REPO: Final = "acme/Tiny-GGUF"
NAME: Final = "Tiny-F32.gguf"
BODY: Final = tiny_gguf()
SMALL: Final = tiny_gguf(q8_0=True)
PARTS: Final = split_gguf("Tiny-BF16", 3)
QUICK: Final = Tuning(
    connections=4, segment=64 << 10, interval=64 << 10, interval_s=60.0, stall_s=5.0, tries=3, backoff_s=0.001,
    backoff_most_s=0.01, reserve=0, report_s=0.01,
)  # fmt: skip


def quant(label: str = "F32", repo: str = REPO) -> Quant:
    return next(quant for quant in Hub().quants(repo) if quant.label == label)


def job(folder: Path, files: tuple[RemoteFile, ...] | None = None, tuning: Tuning = QUICK) -> Download:
    return Download(Hub(), files or quant().files, folder, tuning)


def run_until(server: HubServer, download: Download, count: int) -> None:
    """Fetches that many bytes, not one more, and pauses."""
    reports: list[Progress] = []
    start = server.sent
    server.hold_after(start + count)
    stopped = download.run(reports.append, lambda: server.sent == start + count and reports[-1].done >= count)
    server.hang_up()
    server.hold_after(None)
    assert stopped is None


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


class Child:
    """A process that downloads, one job after the other, each in a fork of its own."""

    def __init__(self) -> None:
        module = Path(__file__).with_name("download_child.py")
        self._process = subprocess.Popen([sys.executable, module], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def start(self, files: tuple[RemoteFile, ...], folder: Path, tuning: Tuning = QUICK) -> int:
        order = {
            "endpoint": os.environ["HF_ENDPOINT"],
            "folder": str(folder),
            "files": [asdict(file) for file in files],
            "tuning": asdict(tuning),
        }
        assert self._process.stdin
        self._process.stdin.write((json.dumps(order) + "\n").encode())
        self._process.stdin.flush()
        return int(self.until(lambda row: "pid" in row)["pid"])

    def until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        for row in self._rows():
            if wanted(row):
                return row
        raise AssertionError("the child said nothing more")

    def _rows(self) -> Iterator[dict[str, Any]]:
        assert self._process.stdout
        for line in self._process.stdout:
            yield json.loads(line)
