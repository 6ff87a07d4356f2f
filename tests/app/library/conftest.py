from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def no_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine may really have Ollama."""
    monkeypatch.setattr("slipstream.models.library.places.OLLAMA_SERVICE", tmp_path / "service")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may be slow, and then the commands say what they wait for."""
    monkeypatch.setattr("slipstream.app.cli.models._LATE_S", 60.0)
