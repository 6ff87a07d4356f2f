"""A hub with one tiny model in several quantizations, and the folder that it is fetched into."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.models.download_tests import BODY, NAME, PARTS, REPO, SMALL
from tests.models.hub_server import HubServer


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    with HubServer() as server:
        server.add(REPO, {NAME: BODY, "Tiny-Q8_0.gguf": SMALL, **PARTS})
        server.adopt(monkeypatch, tmp_path / "home")
        yield server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "models"
