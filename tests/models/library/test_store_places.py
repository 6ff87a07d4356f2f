"""Models of other programs: listed and used where they are, never changed or deleted."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.models.hub_models import split_gguf, tiny_gguf

from slipstream.models.errors import UsageError
from slipstream.models.library.places import StoreExtras
from slipstream.models.library.records import InstalledModel
from slipstream.models.library.store import ModelStore

Lay = Callable[[Path], dict[str, str]]
"""Lays out a program's folder in a home and returns the variables that point there."""


@pytest.fixture(autouse=True)
def no_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine may really have Ollama."""
    monkeypatch.setattr("slipstream.models.library.places.OLLAMA_SERVICE", tmp_path / "service")


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def written(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def hub_cache(cache: Path, content: bytes = b"") -> None:
    """One model, a projector, a download that is not done, and a second commit with the same blob."""
    content = content or tiny_gguf()
    repo = cache / "models--acme--Tiny-GGUF"
    blob = written(repo / "blobs" / sha256(content), content)
    written(repo / "blobs" / (sha256(b"x") + ".incomplete"), content[:100])
    for commit in ("1" * 40, "2" * 40):
        snapshot = repo / "snapshots" / commit
        snapshot.mkdir(parents=True)
        (snapshot / "Tiny-Q8_0.gguf").symlink_to(Path("../../blobs") / blob.name)
        (snapshot / "mmproj-Tiny.gguf").symlink_to(Path("../../blobs") / blob.name)
    written(repo / "refs" / "main", b"2" * 40)


def in_hub_cache(home: Path) -> dict[str, str]:
    hub_cache(home / ".cache" / "huggingface" / "hub")
    return {}


def in_hub_cache_by_home(home: Path) -> dict[str, str]:
    hub_cache(home / "elsewhere" / "hub")
    return {"HF_HOME": str(home / "elsewhere")}


def in_hub_cache_by_variable(home: Path) -> dict[str, str]:
    hub_cache(home / "cache")
    return {"HF_HUB_CACHE": str(home / "cache"), "HF_HOME": str(home / "not this")}


def in_lm_studio(home: Path) -> dict[str, str]:
    written(home / ".lmstudio" / "models" / "acme" / "Tiny-GGUF" / "Tiny-Q8_0.gguf", tiny_gguf())
    return {}


def in_old_lm_studio(home: Path) -> dict[str, str]:
    written(home / ".cache" / "lm-studio" / "models" / "acme" / "Tiny-GGUF" / "Tiny-Q8_0.gguf", tiny_gguf())
    return {}


def in_moved_lm_studio(home: Path) -> dict[str, str]:
    written(home / ".lmstudio-home-pointer", f"{home / 'studio'}\n".encode())
    written(home / "studio" / "settings.json", json.dumps({"downloadsFolder": str(home / "disk")}).encode())
    written(home / "disk" / "acme" / "Tiny-GGUF" / "Tiny-Q8_0.gguf", tiny_gguf())
    return {}


def in_new_llama_cpp(home: Path) -> dict[str, str]:
    hub_cache(home / ".cache" / "llama.cpp")
    return {}


def in_llama_cpp(home: Path) -> dict[str, str]:
    path = written(home / ".cache" / "llama.cpp" / "acme_Tiny-GGUF_Tiny-Q8_0.gguf", tiny_gguf())
    address = "https://huggingface.co/acme/Tiny-GGUF/resolve/main/Tiny-Q8_0.gguf"
    written(path.with_name(path.name + ".json"), json.dumps({"etag": '"x"', "url": address}).encode())
    return {}


def in_llama_cpp_by_variable(home: Path) -> dict[str, str]:
    in_llama_cpp(home)
    os.rename(home / ".cache" / "llama.cpp", home / "cache")
    return {"LLAMA_CACHE": str(home / "cache")}


def ollama(models: Path, host: str, name: str, tag: str, content: bytes) -> Path:
    """A manifest with the layers that Ollama writes, and the model's blob."""
    blob = models / "blobs" / f"sha256-{sha256(content)}"
    written(blob, content)
    layers = [
        {"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:" + "0" * 64, "size": 3},
        {
            "mediaType": "application/vnd.ollama.image.model",
            "digest": f"sha256:{sha256(content)}",
            "size": len(content),
        },
        {"mediaType": "application/vnd.ollama.image.projector", "digest": "sha256:" + "1" * 64, "size": 3},
    ]
    manifest = {"schemaVersion": 2, "config": {}, "layers": layers}
    written(models / "manifests" / host / name / tag, json.dumps(manifest).encode())
    return blob


def in_ollama(home: Path) -> dict[str, str]:
    ollama(home / ".ollama" / "models", "registry.ollama.ai", "library/tiny", "1m", tiny_gguf())
    return {}


def in_ollama_service(home: Path) -> dict[str, str]:
    ollama(home / "service", "registry.ollama.ai", "library/tiny", "1m", tiny_gguf())
    return {}


def in_ollama_by_variable(home: Path) -> dict[str, str]:
    ollama(home / "models", "registry.ollama.ai", "library/tiny", "1m", tiny_gguf())
    return {"OLLAMA_MODELS": str(home / "models")}


def store_in(home: Path, variables: dict[str, str]) -> ModelStore:
    return ModelStore(home / "ours", environment={"HOME": str(home), **variables})


def tree(home: Path) -> dict[str, tuple[int, str]]:
    """Every file of a home with its time and content."""
    return {
        str(path.relative_to(home)): (path.lstat().st_mtime_ns, sha256(path.read_bytes()))
        for path in sorted(home.rglob("*"))
        if path.is_file() and "ours" not in path.parts
    }


PLACES: list[tuple[Lay, str, str, bool]] = [
    (in_hub_cache, "hf-cache", "tiny:Q8_0", True), (in_hub_cache_by_home, "hf-cache", "tiny:Q8_0", True),
    (in_hub_cache_by_variable, "hf-cache", "tiny:Q8_0", True), (in_lm_studio, "lmstudio", "tiny:Q8_0", False),
    (in_old_lm_studio, "lmstudio", "tiny:Q8_0", False), (in_moved_lm_studio, "lmstudio", "tiny:Q8_0", False),
    (in_new_llama_cpp, "llama.cpp", "tiny:Q8_0", True), (in_llama_cpp, "llama.cpp", "tiny:Q8_0", False),
    (in_llama_cpp_by_variable, "llama.cpp", "tiny:Q8_0", False), (in_ollama, "ollama", "tiny:1m", True),
    (in_ollama_service, "ollama", "tiny:1m", True), (in_ollama_by_variable, "ollama", "tiny:1m", True),
]  # fmt: skip


@pytest.mark.parametrize(("lay", "origin", "name", "hashed"), PLACES)
def test_a_foreign_model_is_listed_once_checked_by_its_name_and_never_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lay: Lay, origin: str, name: str, hashed: bool
) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    store = store_in(tmp_path, lay(tmp_path))
    before = tree(tmp_path)
    (model,) = store.installed()
    assert (model.name, model.origin, model.architecture) == (name, origin, "llama")
    assert model.usable and model.foreign and model.size == len(tiny_gguf())
    assert model.sha256 == (sha256(tiny_gguf()) if hashed else None)
    assert model.repo == (None if origin == "ollama" else "acme/Tiny-GGUF")
    checked = store.verify("tiny")
    assert not checked.problem and checked.expected == (model.sha256,)
    with pytest.raises(UsageError, match="belongs to") as stop:
        store.remove("tiny")
    assert "there" in stop.value.hint
    assert tree(tmp_path) == before


def test_a_blob_that_is_not_what_its_name_says_is_found_out(tmp_path: Path) -> None:
    store = store_in(tmp_path, in_ollama(tmp_path))
    (blob,) = (tmp_path / ".ollama" / "models" / "blobs").iterdir()
    content = bytearray(blob.read_bytes())
    content[-1] ^= 1
    blob.write_bytes(content)
    checked = store.verify("tiny:1m")
    assert "its bytes have changed" in checked.problem and "fetch it again there" in checked.hint


def test_only_the_repositorys_own_blobs_are_named_by_their_sha256(tmp_path: Path) -> None:
    content, cache = tiny_gguf(), tmp_path / ".cache" / "huggingface" / "hub"
    shared = written(cache / "blobs" / "ab" / ("ab" * 32), content)  # named by another kind of hash
    snapshot = cache / "models--acme--Tiny-GGUF" / "snapshots" / ("1" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "Tiny-Q8_0.gguf").symlink_to(shared)
    (model,) = store_in(tmp_path, {}).installed()
    assert model.usable and model.sha256 is None


def test_ollama_models_of_other_owners_and_hosts_keep_their_names(tmp_path: Path) -> None:
    models = tmp_path / ".ollama" / "models"
    ollama(models, "registry.ollama.ai", "library/tiny", "1m", tiny_gguf())
    ollama(models, "registry.ollama.ai", "someone/tiny", "latest", tiny_gguf(seed=2))
    ollama(models, "hf.co", "acme/Tiny-GGUF", "Q8_0", tiny_gguf(seed=3))
    found = {model.name: model.repo for model in store_in(tmp_path, {}).installed()}
    assert found == {"hf.co/acme/tiny-gguf:q8_0": "acme/Tiny-GGUF", "someone/tiny:latest": None, "tiny:1m": None}


def test_ollamas_layers_and_each_of_its_names_belong_to_a_model(tmp_path: Path) -> None:
    models = tmp_path / ".ollama" / "models"
    base = ollama(models, "registry.ollama.ai", "library/tiny", "1m", tiny_gguf())
    manifest = json.loads((models / "manifests/registry.ollama.ai/library/tiny/1m").read_text())
    given = {"adapter": b"adapter", "system": b" Be Mario. ", "params": b'{"temperature": 0.3, "stop": ["Luigi"]}'}
    given["template"] = b"Q: {{ .Prompt }} A: "
    for kind, content in given.items():
        written(models / "blobs" / f"sha256-{sha256(content)}", content)
        layer = {"mediaType": f"application/vnd.ollama.image.{kind}", "digest": f"sha256:{sha256(content)}"}
        manifest["layers"].append(layer)
    manifest["layers"] += [{"mediaType": 3}, 7, {"mediaType": "application/vnd.ollama.image.system", "digest": "../x"}]
    written(models / "manifests/registry.ollama.ai/library/mario/latest", json.dumps(manifest).encode())
    store = store_in(tmp_path, {})
    mario, tiny = store.installed()
    assert (mario.name, tiny.name) == ("mario:latest", "tiny:1m") and mario.path == tiny.path == base
    assert [path.read_bytes() for path in mario.extras.adapters] == [b"adapter"]
    assert (mario.extras.system, mario.extras.template) == ("Be Mario.", "Q: {{ .Prompt }} A: ")
    assert mario.extras.parameters == {"temperature": 0.3, "stop": ["Luigi"]} and tiny.extras == StoreExtras()
    assert store.find("mario").name == "mario:latest"


def test_damaged_foreign_folders_never_stop_the_list(tmp_path: Path) -> None:
    models = tmp_path / ".ollama" / "models"
    ollama(models, "registry.ollama.ai", "library/tiny", "1m", tiny_gguf())
    gone = ollama(models, "registry.ollama.ai", "library/gone", "1m", tiny_gguf(seed=2))
    gone.unlink()
    place = models / "manifests" / "registry.ollama.ai" / "library"
    written(place / "torn" / "latest", b'{"layers": [')
    written(place / "list" / "latest", b"[]")
    written(place / "words" / "latest", b'{"layers": [7, {"mediaType": "application/vnd.ollama.image.model"}]}')
    escape = {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:../../../../etc/passwd"}
    written(place / "escape" / "latest", json.dumps({"layers": [escape]}).encode())
    written(models / "manifests" / "stray", b"{}")
    written(tmp_path / ".lmstudio" / "models" / "alone.gguf", b"no model")
    written(tmp_path / ".lmstudio-home-pointer", b"\xff\x00")
    written(tmp_path / ".lmstudio" / "settings.json", b'{"downloadsFolder": 3}')
    written(tmp_path / ".cache" / "llama.cpp" / "x_y_z-Q8_0.gguf", tiny_gguf(seed=4))
    written(tmp_path / ".cache" / "llama.cpp" / "x_y_z-Q8_0.gguf.json", b"\xff\xfe")
    (tmp_path / ".cache" / "huggingface" / "hub").mkdir(parents=True)
    (tmp_path / ".cache" / "huggingface" / "hub" / "models--a--b").write_text("a file")
    found = {model.name: model.problem for model in store_in(tmp_path, {}).installed()}
    assert found.pop("tiny:1m") == "" and found.pop("x_y_z:Q8_0") == ""
    assert "no such file" in found.pop("gone:1m") and "not a GGUF file" in found.pop("alone") and not found


def test_one_file_in_several_places_is_listed_once_ours_first(tmp_path: Path) -> None:
    in_lm_studio(tmp_path)
    store = store_in(tmp_path, {})
    source = tmp_path / ".lmstudio" / "models" / "acme" / "Tiny-GGUF" / "Tiny-Q8_0.gguf"
    store.import_file(source)
    (model,) = store.installed()
    assert model.origin == "ours"
    store.remove("tiny")
    assert source.exists() and [model.origin for model in store.installed()] == ["lmstudio"]


def test_a_split_model_is_one_entry_and_without_an_environment_there_is_none(tmp_path: Path) -> None:
    for name, content in split_gguf("Big-Q4_K_M").items():
        written(tmp_path / ".lmstudio" / "models" / "acme" / "Big" / name, content)
    (model,) = store_in(tmp_path, {}).installed()
    assert isinstance(model, InstalledModel) and len(model.files) == 2
    in_lm_studio(tmp_path)
    assert ModelStore(tmp_path / "ours").installed() == []


def test_models_in_python_packages_are_found_by_the_packages_lists_which_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    written(site / "some_model" / "Tiny-Q8_0.gguf", tiny_gguf())
    written(site / "some_model" / "unlisted.gguf", tiny_gguf(seed=2))
    about = site / "some_model-1.0.dist-info"
    written(about / "METADATA", b"Metadata-Version: 2.1\nName: some-model\nVersion: 1.0\n")
    written(about / "RECORD", b"some_model/Tiny-Q8_0.gguf,,\nsome_model/__init__.py,,\nsome_model/mmproj-a.gguf,,\n")
    monkeypatch.setattr("sys.path", [str(site), str(tmp_path / "missing")])
    store = store_in(tmp_path / "home", {})
    (model,) = store.installed()
    assert (model.name, model.origin, model.usable) == ("tiny:Q8_0", "package", True)
    with pytest.raises(UsageError, match="belongs to a Python package"):
        store.remove("tiny")
    with monkeypatch.context() as patched:
        patched.setattr("importlib.metadata.distributions", lambda: pytest.fail("read again"))
        assert store_in(tmp_path / "home", {}).installed() == [model]
    for path in (about / "METADATA", about / "RECORD"):
        path.unlink()
    about.rmdir()
    assert store.installed() == []


def test_the_users_own_folders_and_files_are_listed_once_and_never_changed(tmp_path: Path) -> None:
    first = written(tmp_path / "mine" / "deep" / "Tiny-Q8_0.gguf", tiny_gguf())
    second = written(tmp_path / "Small-Q8_0.gguf", tiny_gguf(seed=2))
    places = [tmp_path / "mine", first, second, tmp_path / "gone", tmp_path / "gone.gguf"]
    store = ModelStore(tmp_path / "ours", places=lambda: places)
    assert [(model.name, model.path, model.origin) for model in store.installed()] == [
        ("small:Q8_0", second, "folder"),
        ("tiny:Q8_0", first, "folder"),
    ]
    with pytest.raises(UsageError, match="belongs to your own folder"):
        store.remove("tiny")
    store.import_file(first)
    assert [model.origin for model in store.installed()] == ["ours", "folder"]
