"""Which mmproj file belongs to a model, beside it and in other folders."""

import hashlib
import json
from pathlib import Path

import pytest
from tests.drafters.changed_file import changed
from tests.models.kinds import WIDTH, write_kind
from tests.models.tiny_mmproj import write_mmproj

from slipstream.models.library.places import (
    ProjectorChoice,
    ollama_projector,
    projector_beside,
    projector_files,
    projector_of,
)
from slipstream.models.memory.need import projector_bytes


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_kind(tmp_path / "tiny-q8_0.gguf", "llama")


def test_the_file_of_the_model_s_width_is_taken_in_its_best_precision(model: Path) -> None:
    assert projector_beside(model) is None
    write_mmproj(model.with_name("mmproj-wide-f16.gguf"), "mlp", 2 * WIDTH)
    (model.parent / "mmproj-broken.gguf").write_bytes(b"GGUF")
    write_kind(model.with_name("mmproj-llama.gguf"), "llama")
    assert projector_beside(model) is None
    last = write_mmproj(model.with_name("tiny-mmproj-f32.gguf"), "mlp", WIDTH)
    assert projector_beside(model) == last
    best = write_mmproj(model.with_name("tiny.mmproj-F16.gguf"), "mlp", WIDTH)
    assert projector_beside(model) == best
    write_mmproj(model.with_name("notmmprojf16.gguf"), "mlp", WIDTH)
    assert projector_beside(model) == best
    assert projector_bytes(best) > best.stat().st_size and projector_bytes(None) == 0


def test_names_in_the_headers_tell_projectors_apart(model: Path) -> None:
    own = write_mmproj(model.with_name("mmproj-b.gguf"), "mlp", WIDTH, title="Tiny llama")
    write_mmproj(model.with_name("mmproj-a.gguf"), "mlp", WIDTH, title="Another model")
    assert projector_beside(model) == own
    write_mmproj(own, "mlp", WIDTH, title="A third model")
    assert projector_beside(model) is None, "it cannot tell which"


def test_a_folder_that_cannot_be_read_has_none(tmp_path: Path) -> None:
    assert projector_beside(tmp_path / "nowhere" / "model.gguf") is None


FOLDERS = {
    "our own, of another repository": "models/acme/tiny-GGUF",
    "LM Studio": ".lmstudio/models/acme/tiny-GGUF",
    "the hub's cache": ".cache/huggingface/hub/models--acme--Tiny-GGUF/snapshots/1111",
    "llama.cpp": ".cache/llama.cpp",
}


def choice(model: Path, home: Path) -> ProjectorChoice:
    return projector_of(model, lambda: projector_files(home / "models", {"HOME": str(home)}))


@pytest.mark.parametrize("program", FOLDERS)
def test_one_in_another_folder_is_taken_where_its_header_names_the_model(
    model: Path, tmp_path: Path, program: str
) -> None:
    home, folder = tmp_path / "home", tmp_path / "home" / FOLDERS[program]
    folder.mkdir(parents=True)
    assert choice(model, home) == ProjectorChoice()
    own = write_mmproj(folder / "mmproj-tiny-f32.gguf", "mlp", WIDTH, title="Tiny llama")
    write_mmproj(folder / "mmproj-wide-f16.gguf", "mlp", 2 * WIDTH, title="Tiny llama")
    write_mmproj(folder / "mmproj-other-f16.gguf", "mlp", WIDTH, title="Tiny alpaca")
    write_mmproj(folder / "mmproj-nameless-f16.gguf", "mlp", WIDTH)
    assert choice(model, home) == ProjectorChoice(own)
    better = write_mmproj(folder / "mmproj-tiny-f16.gguf", "mlp", WIDTH, title="tiny LLAMA")
    assert choice(model, home) == ProjectorChoice(better)
    beside = write_mmproj(model.with_name("mmproj.gguf"), "mlp", WIDTH)
    assert choice(model, home) == ProjectorChoice(beside), "the one in its folder goes first"


def test_one_that_does_not_name_the_model_is_offered_and_never_taken(model: Path, tmp_path: Path) -> None:
    home, folder = tmp_path / "home", tmp_path / "home" / FOLDERS["LM Studio"]
    folder.mkdir(parents=True)
    write_mmproj(folder / "mmproj-other-f16.gguf", "mlp", WIDTH, title="Tiny alpaca")
    assert choice(model, home) == ProjectorChoice(), "it names another model"
    nameless = write_mmproj(folder / "mmproj-a.gguf", "mlp", WIDTH)
    assert choice(model, home) == ProjectorChoice(unsure=(nameless,))
    tuned = write_mmproj(folder / "mmproj-b.gguf", "mlp", WIDTH, title="Tiny llama", tuning="chat")
    other = changed(model, tmp_path / "code.gguf", {"general.finetune": "code"})
    assert choice(other, home) == ProjectorChoice(unsure=(nameless, tuned)), "another fine-tuned model of this name"
    assert choice(model, home) == ProjectorChoice(tuned)


def test_ollamas_manifest_pairs_a_model_with_its_projector(tmp_path: Path) -> None:
    folder = tmp_path / "ollama"
    blobs, manifests = folder / "blobs", folder / "manifests" / "registry.ollama.ai" / "library" / "tiny"
    blobs.mkdir(parents=True)
    manifests.mkdir(parents=True)
    files = {"model": write_kind(tmp_path / "m.gguf", "llama"), "projector": write_mmproj(tmp_path / "p", "mlp", WIDTH)}
    blob: dict[str, Path] = {}
    for kind, file in files.items():
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        blob[kind] = file.rename(blobs / f"sha256-{digest}")
    layers = [
        {"mediaType": f"application/vnd.ollama.image.{kind}", "digest": path.name.replace("-", ":")}
        for kind, path in blob.items()
    ]
    (manifests / "text").write_text(json.dumps({"layers": layers[:1]}))
    (manifests / "broken").write_text(json.dumps({"layers": [3, {}]}))
    assert ollama_projector(blob["model"]) is None
    (manifests / "vision").write_text(json.dumps({"layers": layers}))
    assert choice(blob["model"], tmp_path / "home") == ProjectorChoice(blob["projector"])
    assert ollama_projector(blob["projector"]) is None
    narrow = write_mmproj(blob["projector"], "mlp", 2 * WIDTH)
    assert narrow.exists() and choice(blob["model"], tmp_path / "home") == ProjectorChoice()
