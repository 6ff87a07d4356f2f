"""A model file is tried in a process of its own before it is used for the first time."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.app.bundled_program import PROGRAM
from tests.app.terminal import Terminal
from tests.models.gguf.test_probe import crasher

from slipstream.app.cli.main import main
from slipstream.app.engine.process.client import Engine
from slipstream.app.library.load_request import BUNDLED_DRAFT
from slipstream.app.library.resolve_model import choose
from slipstream.app.platform.paths import Paths
from slipstream.app.protocol.requests import Load
from slipstream.models.errors import EngineDiedError, SlipstreamError

pytestmark = pytest.mark.program


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
