"""What people type to fetch a model, and the model that is taken where nobody names one."""

from pathlib import Path

import pytest
from tests.models.kinds import write_kind

from slipstream.app.cli.main import _load, _settings
from slipstream.app.cli.options import make_parser
from slipstream.app.library.load_request import BUNDLED, make_usual, usual
from slipstream.app.library.manager import ModelManager
from slipstream.app.library.references import Reference, chosen, reference
from slipstream.app.library.resolve_model import choose
from slipstream.app.platform.paths import Paths
from slipstream.models.errors import SlipstreamError, UsageError
from slipstream.models.hub.types import Quant, RemoteFile
from slipstream.models.library.catalog import catalog

REPO = "Qwen/Qwen3-4B-GGUF"
PAGE = f"https://huggingface.co/{REPO}"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (REPO, Reference(REPO)),
        (f"  {REPO}/ ", Reference(REPO)),
        (f"{REPO}:Q4_K_M", Reference(REPO, "Q4_K_M")),
        (f"hf:{REPO}:Q4_K_M", Reference(REPO, "Q4_K_M")),
        (f"hf.co/{REPO}:UD-Q4_K_XL", Reference(REPO, "UD-Q4_K_XL")),
        (PAGE, Reference(REPO)),
        (f"{PAGE}?show_file_info=x.gguf", Reference(REPO)),
        (f"{PAGE}/tree/main", Reference(REPO, revision="main")),
        (f"{REPO}/BF16/a-00001-of-00002.gguf", Reference(REPO, file="BF16/a-00001-of-00002.gguf")),
        (f"{PAGE}/resolve/abc123/a.gguf?download=true", Reference(REPO, file="a.gguf", revision="abc123")),
        (f"{PAGE}/blob/main/BF16/a.gguf", Reference(REPO, file="BF16/a.gguf", revision="main")),
    ],
)
def test_every_way_to_name_a_repository_is_understood(typed: str, meant: Reference) -> None:
    assert reference(typed, catalog()) == meant


def test_a_name_of_the_catalogue_brings_its_file_and_hash_or_another_quantization() -> None:
    found = reference("qwen3-8b", catalog())
    assert found.repo == "Qwen/Qwen3-8B-GGUF" and found.file == "Qwen3-8B-Q4_K_M.gguf" and len(found.sha256) == 64
    assert reference("Qwen3-8B:q4_k_m", catalog()) == found
    assert reference("qwen3-8b:Q8_0", catalog()) == Reference("Qwen/Qwen3-8B-GGUF", "Q8_0")
    with pytest.raises(UsageError) as stop:
        reference("qwen3", catalog())
    assert "Qwen3-8B" in stop.value.hint


@pytest.mark.parametrize("typed", ["", " ", "qwen9", "a/b/c/README.md", "a//b", "../../etc/passwd", "a/b c", "é/ü:\0"])
def test_what_names_nothing_is_refused_with_the_way_to_write_it(typed: str) -> None:
    with pytest.raises(UsageError) as stop:
        reference(typed, catalog())
    assert "owner/name" in stop.value.hint


def quant(label: str, drafts: bool = False) -> Quant:
    file = RemoteFile(REPO, "c0ffee", f"Qwen3-4B-{label}.gguf", 10)
    return Quant(label, (file,), 10, drafts)


QUANTS = [quant("Q4_K_M"), quant("UD-Q4_K_XL"), quant("Q8_0"), quant("MTP-Q8_0", drafts=True)]


@pytest.mark.parametrize(
    ("wanted", "label"),
    [
        (Reference(REPO), "Q8_0"),
        (Reference(REPO, "q4_k_m"), "Q4_K_M"),
        (Reference(REPO, "Q4_K_XL"), "UD-Q4_K_XL"),
        (Reference(REPO, "mtp-q8_0"), "MTP-Q8_0"),
        (Reference(REPO, file="qwen3-4b-Q4_K_M.gguf"), "Q4_K_M"),
    ],
)
def test_the_quantization_is_the_one_that_is_named_or_the_best_here(wanted: Reference, label: str) -> None:
    assert chosen(wanted, QUANTS, QUANTS[2]).label == label


def test_what_a_repository_has_not_says_what_it_has() -> None:
    with pytest.raises(UsageError, match="has no 'Q2_K'") as stop:
        chosen(Reference(REPO, "Q2_K"), QUANTS, None)
    assert "Q4_K_M, UD-Q4_K_XL, Q8_0" in stop.value.hint and "MTP" not in stop.value.hint
    with pytest.raises(UsageError, match="no model that can be chatted with") as stop:
        chosen(Reference(REPO), [], None)
    assert "-GGUF" in stop.value.hint


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
