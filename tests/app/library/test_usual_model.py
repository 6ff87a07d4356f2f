"""The model that is taken where nobody names one."""

from pathlib import Path

import pytest
from tests.models.kinds import write_kind

from slipstream.app.cli.main import _load, _settings
from slipstream.app.cli.options import make_parser
from slipstream.app.library.load_request import BUNDLED, make_usual, usual
from slipstream.app.library.manager import ModelManager
from slipstream.app.library.resolve_model import choose
from slipstream.app.platform.paths import Paths
from slipstream.models.errors import SlipstreamError, UsageError


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths.default({"SLIPSTREAM_HOME": str(tmp_path / "home")})


def loaded(paths: Paths, *arguments: str) -> str:
    options = make_parser().parse_args(list(arguments))
    return _load(options, paths, _settings(options, paths)).model


def test_it_is_the_bundled_one_until_its_owner_chooses_another(paths: Paths, tmp_path: Path) -> None:
    bundled = choose(paths).model
    assert usual(paths) == BUNDLED and loaded(paths) == bundled
    manager = ModelManager(paths)
    mine = manager.import_file(write_kind(tmp_path / "Mine-F32.gguf", "llama"))
    manager.make_usual(mine)
    assert loaded(paths) == loaded(paths, "run", "-p", "x") == str(mine.path)
    assert loaded(paths, "-m", BUNDLED) == loaded(paths, "run", "-m", BUNDLED, "-p", "x") == bundled
    manager.make_usual(next(model for model in manager.installed() if model.name == BUNDLED))
    assert loaded(paths) == bundled
    assert [model.origin for model in manager.installed()].count("ours") == 1  # the note is no model


def test_one_that_is_gone_gives_way_and_that_is_said(paths: Paths, capsys: pytest.CaptureFixture[str]) -> None:
    for name, why in (("qwen3-8b:Q4_K_M", "there is no model named"), ("/gone/x.gguf", "/gone/x.gguf: no such file")):
        make_usual(paths, name)
        assert loaded(paths) == choose(paths, BUNDLED).model
        said = capsys.readouterr().err
        assert f"{name}, chosen last, cannot be used: {why}" in said and said.count("\n") == 1
    with pytest.raises(UsageError):
        loaded(paths, "-m", "qwen3-8b:Q4_K_M")


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe"])
def test_a_damaged_note_is_none(paths: Paths, content: bytes) -> None:
    make_usual(paths, "x")
    next(paths.models.iterdir()).write_bytes(content)
    assert usual(paths) == BUNDLED


def test_a_place_that_cannot_be_written_to_is_an_error_in_words(paths: Paths) -> None:
    paths.models.parent.mkdir(parents=True)
    paths.models.write_text("a file where the folder should be")
    with pytest.raises(SlipstreamError, match="cannot write to"):
        make_usual(paths, "x")
