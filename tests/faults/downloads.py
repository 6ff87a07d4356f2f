"""A download while the disk fails: the right file or a clear error, and the same call goes on later."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.faults.shim import Outcome
from tests.models.download_tests import NAME, REPO, job, leftovers, quant
from tests.models.hub_models import tiny_gguf
from tests.models.hub_server import HubServer


class Downloads:
    def __init__(self, folder: Path) -> None:
        self._body = tiny_gguf()
        self._server = HubServer().__enter__()
        self._server.add(REPO, {NAME: self._body})
        self._server.adopt(pytest.MonkeyPatch(), folder)
        self._files = quant().files

    def run(self, folder: Path, arm: Callable[[], None], disarm: Callable[[], int]) -> Outcome:
        found = Outcome()
        arm()
        with found.armed():
            job(folder, self._files).run()
        if found.told and (folder / NAME).exists() and (folder / NAME).read_bytes() != self._body:
            found.wrong.append("a wrong file stands in the right one's place")
        found.seen = disarm()
        with found.afterwards():
            path = job(folder, self._files).run()
            if path is None or path.read_bytes() != self._body or leftovers(folder) != [NAME]:
                found.wrong.append(f"not whole afterwards: {leftovers(folder)}")
        return found
