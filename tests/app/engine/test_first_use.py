"""A model file is tried in a process of its own before it is used for the first time."""

import os
import shutil
import subprocess
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from tests.app.bundled_program import PROGRAM
from tests.app.terminal import Terminal
from tests.models.gguf.test_probe import crasher

from slipstream.app.cli.main import main
from slipstream.app.engine import calibrate as attention
from slipstream.app.engine.calibrate import flash_attention_is_slower
from slipstream.app.engine.load import load
from slipstream.app.engine.process.client import Engine
from slipstream.app.library.load_request import BUNDLED_DRAFT, BUNDLED_TARGET
from slipstream.app.library.resolve_model import choose
from slipstream.app.platform.paths import Paths
from slipstream.app.protocol.requests import Load
from slipstream.models.errors import EngineDiedError, SlipstreamError
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.target import Target

pytestmark = pytest.mark.program
BUNDLED = Paths.default({}).bundled


def asked(engine: Engine, load: Load) -> list[float | None]:
    heard: list[float | None] = []
    engine.load(load, heard.append)
    return heard


def test_a_file_is_tried_before_its_first_use_only(engine: Engine, tmp_path: Path) -> None:
    paths, model = Paths.default({"SLIPSTREAM_HOME": str(tmp_path)}), tmp_path / "model.gguf"
    shutil.copy(paths.bundled / BUNDLED_DRAFT, model)
    first = asked(engine, choose(paths, str(model), drafter="none"))
    assert first[0] is None and None not in first[1:] and first[-1] == 1.0
    assert None not in asked(engine, choose(paths, str(model), drafter="none"))


def test_a_file_that_crashes_is_refused_and_the_engine_lives_on(engine: Engine, tmp_path: Path) -> None:
    paths = Paths.default({"SLIPSTREAM_HOME": str(tmp_path)})
    load = choose(paths, str(crasher(tmp_path / "model.gguf")), drafter="none")
    engine.start()
    process = engine.process_id
    for _ in range(2):
        with pytest.raises(SlipstreamError, match="crashes when it loads it") as caught:
            engine.load(load)
        assert not isinstance(caught.value, EngineDiedError) and "verify" in caught.value.hint
    assert engine.process_id == process and asked(engine, choose(paths, drafter="none"))[-1] == 1.0


def test_a_command_that_loads_a_file_itself_tries_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLIPSTREAM_HOME", str(tmp_path / "home"))
    (tmp_path / "text.txt").write_text("Once upon a time.")
    good = tmp_path / "good.gguf"
    shutil.copy(Paths.default().bundled / BUNDLED_DRAFT, good)
    told = []
    for model in (good, good, crasher(tmp_path / "bad.gguf")):
        with pytest.raises(SystemExit) as ended:
            main(["drafters", "index", str(tmp_path / "text.txt"), "-m", str(model)])
        told.append((ended.value.code, capsys.readouterr().err))
    checking = "checking the file before its first use"
    assert [code for code, _ in told] == [0, 0, 1]
    assert [checking in words for _, words in told] == [True, False, True]
    assert "crashes when it loads it" in told[2][1]


def test_the_check_is_told_where_someone_sits(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    shutil.copy(Paths.default().bundled / BUNDLED_DRAFT, model)
    run = [*PROGRAM[:3], "-m", str(model), "--seed", "1", "run", "-p", "Hi", "--max-tokens", "3"]
    with Terminal(*run, home=tmp_path / "home") as terminal:
        assert terminal.ended() == 0 and "checking the file before its first use" in terminal.shown
    environment = {**os.environ, "SLIPSTREAM_HOME": str(tmp_path / "other")}
    done = subprocess.run(run, capture_output=True, stdin=subprocess.DEVNULL, env=environment, check=True)
    assert done.stderr == b""


@pytest.fixture
def faster(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which kind is faster, and no time passes: the target that was opened first uses flash attention."""
    kinds = ["scores"]
    order: list[Target] = []

    def timed(target: Target) -> float:
        if target not in order:
            order.append(target)
        return 1.0 if (order.index(target) % 2 == 1) == (kinds[0] == "scores") else 2.0

    monkeypatch.setattr(attention, "pass_time", timed)
    return kinds


def test_the_faster_kind_is_found_and_kept(faster: list[str], tmp_path: Path) -> None:
    small = BUNDLED / BUNDLED_TARGET
    assert flash_attention_is_slower(small, tmp_path)
    faster[0] = "flash"
    assert flash_attention_is_slower(small, tmp_path)  # as it was kept
    assert not flash_attention_is_slower(small, None) and not flash_attention_is_slower(small, tmp_path / "other")
    faster[0] = "scores"
    assert not flash_attention_is_slower(small, tmp_path / "other")
    assert not flash_attention_is_slower(tmp_path / "missing.gguf", tmp_path)


def test_a_small_difference_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "pass_time", lambda target: 1.0)
    assert not flash_attention_is_slower(BUNDLED / BUNDLED_TARGET, None)


@pytest.mark.parametrize("found", [True, False])
def test_both_models_are_opened_as_was_found(found: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("slipstream.app.engine.plan.flash_attention_is_slower", lambda small, folder: found)
    opened: list[bool] = []
    opens = LlamaTarget.__init__

    def hears(self: LlamaTarget, *given: object, **named: object) -> None:
        opens(self, *given, **named)  # type: ignore[arg-type]
        opened.append(self.scores)

    monkeypatch.setattr(LlamaTarget, "__init__", hears)
    paths = Paths.default({"SLIPSTREAM_HOME": str(tmp_path)})
    request = choose(paths, str(BUNDLED / BUNDLED_TARGET), str(BUNDLED / BUNDLED_DRAFT), "kangaroo")
    with closing(load(replace(request, exact="never"), lambda share: None)[0]):
        assert opened == [found, found, found]


def test_where_the_same_text_is_promised_nothing_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("slipstream.app.engine.plan.flash_attention_is_slower", None)
    with closing(load(choose(Paths.default({"SLIPSTREAM_HOME": str(tmp_path)})), lambda share: None)[0]):
        pass
