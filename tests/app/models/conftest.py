from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def no_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine may really have Ollama."""
    monkeypatch.setattr("slipstream.models.store_places.OLLAMA_SERVICE", tmp_path / "service")
