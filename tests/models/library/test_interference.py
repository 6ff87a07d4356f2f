"""Other programs remove, replace or damage what the library keeps: a model is listed all the same, or it is said."""

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.models.hub_models import tiny_gguf

from slipstream.models.errors import ModelFileError, SlipstreamError
from slipstream.models.library.catalog import catalog
from slipstream.models.library.places import foreign_models
from slipstream.models.library.records import record_path
from slipstream.models.library.store import ModelStore

NAME = "tiny:F32"
pipes = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes of POSIX")


def made_a_folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def made_a_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.touch()


DAMAGE: dict[str, Callable[[Path], object]] = {
    "nested": lambda path: path.write_bytes(b"[" * 200_000),
    "digits": lambda path: path.write_bytes(b'{"size": ' + b"9" * 5_000 + b"}"),
    "surrogate": lambda path: path.write_bytes(b'{"sha256": "\\ud800"}'),
    "large": lambda path: os.truncate(path, 2 << 30),
    "folder": made_a_folder,
    "gone": lambda path: path.unlink(),
}


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    """A store with one model whose facts and hash are kept."""
    path = tmp_path / "models" / "acme" / "Tiny" / "Tiny-F32.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(tiny_gguf())
    store = ModelStore(tmp_path / "models")
    store.verify(NAME)
    return store


def model_of(store: ModelStore) -> Path:
    return store.folder / "acme" / "Tiny" / "Tiny-F32.gguf"


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("kept", ["facts", "record"])
def test_what_is_kept_of_a_model_may_be_damaged(store: ModelStore, kept: str, damage: str) -> None:
    path = store.folder / ".facts.json" if kept == "facts" else record_path(model_of(store))
    DAMAGE[damage](path)
    (model,) = store.installed()
    assert model.name == NAME and model.usable and model.params > 0
    assert not store.verify(NAME).problem if (kept, damage) != ("record", "folder") else True
    assert store.remove(NAME).freed and store.undo().name == NAME


@pipes
def test_pipes_in_the_library_are_not_waited_for(store: ModelStore) -> None:
    for path in (store.folder / ".facts.json", record_path(model_of(store)), model_of(store)):
        path.unlink()
        os.mkfifo(path)
    (model,) = store.installed()
    assert "a device or pipe" in model.problem and store.verify(model.name).problem == model.problem


@pytest.mark.parametrize(
    "lie",
    [
        *({"size": "x"}, {"size": True}, {"params": []}, {"role": "king"}, {"role": {}}, {"context": None}),
        *({"title": 3}, {"n_vocab": 1.5}, {"parts": 5}, {"parts": ["a\0b"]}, {"unknown": 1}),
    ],
    ids=str,
)
def test_kept_facts_of_the_wrong_kind_are_read_anew(store: ModelStore, lie: dict[str, Any]) -> None:
    (before,) = store.installed()
    path = store.folder / ".facts.json"
    kept = json.loads(path.read_text())
    next(iter(kept["files"].values()))["facts"].update(lie)
    path.write_text(json.dumps(kept))
    assert store.installed() == [before]


@pytest.mark.parametrize(
    "note",
    [
        *(b'{"name": "a", "freed": 1, "files": ["../../victim.gguf"]}', b'{"name": "a", "freed": 1, "files": ["/a"]}'),
        *(b'{"name": "a", "freed": 1, "files": 5}', b'{"name": "a", "freed": "many", "files": []}'),
        *(b'{"name": "a", "freed": ' + b"9" * 5_000 + b', "files": []}', b"[" * 200_000, b"{}", b""),
    ],
    ids=lambda note: repr(note[-12:]),
)
def test_a_note_of_the_trash_that_cannot_be(store: ModelStore, note: bytes) -> None:
    store.remove(NAME)
    (store.folder / ".removed.json").write_bytes(note)
    with pytest.raises(SlipstreamError, match="nothing to bring back") as caught:
        store.undo()
    assert "trash" in caught.value.hint


@pytest.mark.parametrize("remove", [shutil.rmtree, made_a_file])
def test_a_folder_of_models_that_goes_away_is_empty(store: ModelStore, remove: Callable[[Path], object]) -> None:
    remove(store.folder)
    assert store.installed() == []
    with pytest.raises(SlipstreamError, match="no model named"):
        store.verify(NAME)


def test_a_model_that_goes_away_while_it_is_verified(store: ModelStore) -> None:
    record_path(model_of(store)).unlink()
    checked = store.verify(NAME, lambda done, size: model_of(store).unlink(missing_ok=True))
    assert checked.sha256 and not record_path(model_of(store)).exists()


def test_a_model_whose_header_is_damaged_is_not_read_to_its_end(store: ModelStore) -> None:
    os.truncate(model_of(store), 50 << 30)  # a hole: to read it would take minutes
    (model,) = store.installed()
    assert "bytes follow its weights" in model.problem
    assert store.verify(model.name).problem == model.problem


@pytest.mark.parametrize("length", [100, 1 << 20])
def test_a_file_that_changes_while_it_is_imported_leaves_nothing(tmp_path: Path, length: int) -> None:
    source, store = tmp_path / "other.gguf", ModelStore(tmp_path / "models")
    source.write_bytes(tiny_gguf())
    changes = iter([lambda: os.truncate(source, length)])
    with pytest.raises(ModelFileError, match="changed while it was copied") as caught:
        store.import_file(source, "copy", lambda done, size: next(changes, lambda: None)(), lambda: False)
    assert "import it again" in caught.value.hint and store.installed() == []


@pytest.mark.parametrize("damage", ["nested", "digits", "surrogate", "large"])
def test_other_programs_files_may_be_damaged(tmp_path: Path, damage: str) -> None:
    for file in (".lmstudio/settings.json", ".ollama/models/manifests/registry.ollama.ai/library/tiny/latest"):
        path = tmp_path / file
        path.parent.mkdir(parents=True)
        path.touch()
        DAMAGE[damage](path)
    assert [
        found.path for found in foreign_models({"HOME": str(tmp_path)}) if found.path.is_relative_to(tmp_path)
    ] == []


@pytest.mark.parametrize(
    "damage",
    [
        *(b"[[pair]]\nid = " + b"[" * 50_000, b"[[pair]]\nbytes = " + b"9" * 5_000, b"\xff", b'id = "\\ud800"'),
        *(b"[" * 50_000, b"a." * 20_000 + b"b = 1", b'"a" . ' * 20_000 + b"b = 1", b"a = 1\n" * 2 + b"a" * 10**6),
    ],
    ids=lambda damage: repr(damage[-8:]),
)
def test_a_catalogue_that_cannot_be_is_told(tmp_path: Path, damage: bytes) -> None:
    own = tmp_path / "catalog.toml"
    own.write_bytes(damage)
    began = time.process_time()
    found = catalog(own)
    assert time.process_time() - began < 2.0, "it takes more than linear time"
    assert str(own) in found.problem and len(found.problem) < 400 + len(str(own)) and found.pairs


def test_a_catalogue_that_is_too_large_or_no_file_is_told(tmp_path: Path) -> None:
    own = tmp_path / "catalog.toml"
    own.touch()
    os.truncate(own, 8 << 30)
    assert "more than 1,048,576 bytes" in catalog(own).problem
    own.unlink()
    own.mkdir()
    assert "cannot be read" in catalog(own).problem
