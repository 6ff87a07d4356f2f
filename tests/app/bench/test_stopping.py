"""Ctrl-C during a measurement: once keeps what there is, twice drops it."""

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.app.bench.test_command import TINY, options

from slipstream.app.bench import turns
from slipstream.app.bench.turns import BenchTurn, CtrlC, WrittenReply, never
from slipstream.app.cli.bench import bench
from slipstream.app.engine.session import Session
from slipstream.app.platform.paths import HOME_VARIABLE


@pytest.fixture(autouse=True)
def own_home(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path_factory.mktemp("home")))


def press_ctrl_c(monkeypatch: pytest.MonkeyPatch, module: str, after: int) -> None:
    replies = 0

    def write(
        session: Session,
        drafter: str,
        turn: BenchTurn,
        stop: Callable[[], bool] = never,
        on_step: Callable[[], None] = lambda: None,
    ) -> WrittenReply:
        nonlocal replies
        replies += 1
        if replies == after:
            signal.raise_signal(signal.SIGINT)
        return turns.write(session, drafter, turn, stop, on_step)

    monkeypatch.setattr(f"{module}.write", write)


@pytest.mark.slow
def test_ctrl_c_keeps_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGINT)
    press_ctrl_c(monkeypatch, "slipstream.app.bench.drafters", after=3 + 3 + 2)  # in the third prompt
    chosen = options(tmp_path / "f.json", "drafters", "check", drafters="lookup", prompts="chat", limit=4)
    assert bench(chosen, TINY) == 130
    figures = json.loads((tmp_path / "f.json").read_text())
    assert figures.keys() == {"machine", "drafters"} and figures["drafters"]["stopped"]
    assert figures["drafters"]["texts"] == 2
    printed = capsys.readouterr()
    assert "STOPPED before its end" in printed.out and "Ctrl-C once more" in printed.err
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.slow
def test_ctrl_c_before_any_measurement_leaves_old_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "f.json").write_text("{}")
    press_ctrl_c(monkeypatch, "slipstream.app.bench.drafters", after=1)
    assert bench(options(tmp_path / "f.json", drafters="lookup", prompts="chat"), TINY) == 130
    assert (tmp_path / "f.json").read_text() == "{}"


def test_ctrl_c_twice_drops_everything() -> None:
    with pytest.raises(KeyboardInterrupt), CtrlC() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop()
        signal.raise_signal(signal.SIGINT)


@pytest.mark.slow
def test_a_stopped_audit_tells_what_it_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    press_ctrl_c(monkeypatch, "slipstream.app.bench.check", after=4)
    chosen = options(tmp_path / "f.json", check=True, drafters="lookup", prompts="chat", limit=3)
    assert bench(chosen, TINY) == 130
    found = json.loads((tmp_path / "f.json").read_text())["check"]
    assert found["stopped"] and found["compared"] == {"lookup": 1}
