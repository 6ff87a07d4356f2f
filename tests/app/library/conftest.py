from contextlib import nullcontext
from pathlib import Path

import pytest

from slipstream.models.memory.speed import assumed


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine may really have Ollama, or other programs' models."""
    for name in ("HF_HOME", "HF_HUB_CACHE", "LLAMA_CACHE", "OLLAMA_MODELS", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("slipstream.models.library.places.OLLAMA_SERVICE", tmp_path / "service")


@pytest.fixture(autouse=True)
def usual_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test waits for the measurement of this machine."""
    monkeypatch.setattr("slipstream.app.library.offers.bandwidth", lambda: assumed(2, gpu=False))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may be slow, and then the commands say what they wait for."""
    monkeypatch.setattr("slipstream.app.cli.models.notice_if_slow", lambda _: nullcontext())
