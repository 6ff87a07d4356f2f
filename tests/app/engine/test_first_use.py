"""A model file is tried in a process of its own before it is loaded for the first time."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.models.test_probe import crasher

from slipstream.app.engine.host import Engine
from slipstream.app.engine.requests import Load
from slipstream.app.model_choice import BUNDLED_DRAFT, choose
from slipstream.app.paths import Paths
from slipstream.models.errors import EngineDiedError, SlipstreamError


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    one = Engine(tmp_path / "logs" / "engine.log")
    yield one
    one.close()


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


def test_ours_is_not_tried(engine: Engine, tmp_path: Path) -> None:
    paths = Paths.default({"SLIPSTREAM_HOME": str(tmp_path)})
    assert None not in asked(engine, choose(paths, drafter="none"))


def test_a_file_that_crashes_is_refused_and_the_engine_lives_on(engine: Engine, tmp_path: Path) -> None:
    paths = Paths.default({"SLIPSTREAM_HOME": str(tmp_path)})
    load = choose(paths, str(crasher(tmp_path / "model.gguf")), drafter="none")
    engine.start()
    process = engine.process_id
    for _ in range(2):
        with pytest.raises(SlipstreamError, match="crashes when it loads it") as caught:
            engine.load(load)
        assert not isinstance(caught.value, EngineDiedError) and "verify" in caught.value.hint
    assert engine.process_id == process
    assert asked(engine, choose(paths, drafter="none"))[-1] == 1.0
