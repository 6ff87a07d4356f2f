"""Pairing: who can draft for a model, in which order, and exactly why somebody cannot."""

import hashlib
import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.drafters.changed_file import changed
from tests.drafters.mtp_file import write_mtp
from tests.models.conftest import RawModel, small_model
from tests.models.kinds import CHAINS, PLAIN, WIDTH, write_kind
from tests.models.tiny_mmproj import write_mmproj

from slipstream.models.gguf.architectures import NO_ROLLBACK
from slipstream.models.gguf.reader import Header, read_header
from slipstream.models.heads.matching_heads import TARGET_KEY, matching_heads
from slipstream.models.library import places
from slipstream.models.library.catalog import CatalogFile, CatalogPair
from slipstream.models.library.names import names_of
from slipstream.models.library.pairing import PairOffer, Surroundings, pairs_for
from slipstream.models.library.places import ProjectorChoice, ollama_projector, projector_beside, projector_files
from slipstream.models.library.records import InstalledModel
from slipstream.models.library.store import ModelStore
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.target import ContextOptions
from slipstream.models.memory.need import projector_bytes

BUNDLED = Path(__file__).parents[3] / "models" / "bundled"
TARGET = BUNDLED / "slipstream-mini-q8_0.gguf"
EAGLE = BUNDLED / "slipstream-mini-eagle3-q8_0.gguf"
NAMES = [f"token {n}" for n in range(10)]


def sized(params: int, name: str = "Small") -> RawModel:
    return small_model().text("general.name", name).weights((8, params // 8))


@pytest.fixture
def target(tmp_path: Path) -> Header:
    path = tmp_path / "Big-1M-Q8_0.gguf"
    path.write_bytes(sized(1_000_000, "Big").bytes())
    return read_header(path)


def installed(tmp_path: Path, **models: RawModel | bytes) -> list[InstalledModel]:
    folder = tmp_path / "models" / "acme" / "models"
    folder.mkdir(parents=True)
    for name, model in models.items():
        (folder / f"{name}.gguf").write_bytes(model if isinstance(model, bytes) else model.bytes())
    return ModelStore(tmp_path / "models").installed()


def offer(offers: Sequence[PairOffer], name: str) -> PairOffer:
    (found,) = [each for each in offers if each.name == name]
    return found


def names(offers: Sequence[PairOffer]) -> list[str]:
    return [each.name for each in offers]


def pair(method: str = "draft", drafter: str = "tiny", **more: Any) -> CatalogPair:
    return CatalogPair(
        "x", method, CatalogFile("Big"), CatalogFile(drafter, "acme/tiny-GGUF"), evidence="catalogue", **more
    )


def test_every_model_here_is_offered_or_says_exactly_why_not(tmp_path: Path, target: Header) -> None:
    other = sized(50_000, "Other").vocabulary([*NAMES[:7], "else", *NAMES[8:]])
    models = installed(
        tmp_path, good=sized(50_000), large=sized(600_000, "Large"), other=other, broken=b"GGUF",
        stateful=sized(60_000, "Stateful").text("general.architecture", "mamba2"),
    )  # fmt: skip
    theirs = small_model().vocabulary(NAMES)
    path = tmp_path / "Named-1M.gguf"
    path.write_bytes(theirs.text("general.name", "Named").weights((8, 125_000)).bytes())
    offers = pairs_for(read_header(path), Surroundings(models))
    assert "it is too large: 600k parameters for a model of 1" in offer(offers, "large").why_not
    assert "at most 5" in offer(offers, "large").instead and "broken" in offer(offers, "broken").why_not
    assert not offer(offers, "stateful").why_not  # a draft model goes back to its mark
    translated = offer(offers, "other")
    assert translated.source == "other vocabulary" and translated.ready and not translated.sound
    assert "token 7 is 'token 7' in one and 'else' in the other" in translated.note
    same = offer(pairs_for(target, Surroundings(models)), "good")
    assert same.source == "same vocabulary" and same.sound and same.ratio == pytest.approx(20, rel=0.01)
    assert [bool(each.why_not) for each in offers] == sorted(bool(each.why_not) for each in offers)


@pytest.mark.parametrize("kind", [*CHAINS, *PLAIN])
def test_a_model_is_offered_what_the_engine_can_serve(tmp_path: Path, kind: str) -> None:
    header = read_header(write_kind(tmp_path / "target.gguf", kind))
    around = Surroundings(installed(tmp_path, small=sized(4_000)), {"medusa": EAGLE}, [pair(), pair("mtp", "mtp-x")])
    reasons = [each.why_not for each in pairs_for(header, around)]
    of_memory = [why for why in reasons if "hands out no features" not in why]  # which is said of MTP layers first
    assert of_memory and all(("cannot take back" in why) == (kind in PLAIN) for why in of_memory)
    with closing(LlamaModel(header.path)) as model, closing(LlamaTarget(model, ContextOptions(n_ctx=256))) as target:
        assert (header.architecture not in NO_ROLLBACK) == (target.abilities.max_leaves > 0) == (kind in CHAINS)


def test_a_model_never_drafts_for_itself(tmp_path: Path, target: Header) -> None:
    models = installed(tmp_path, big=target.path.read_bytes())
    assert pairs_for(target, Surroundings(models)) == []


def test_of_several_draft_models_the_one_of_the_best_size_comes_first(tmp_path: Path, target: Header) -> None:
    models = installed(
        tmp_path, half=sized(450_000, "H"), tenth=sized(90_000, "T"), dust=sized(500, "D"), fifth=sized(200_000, "F")
    )
    assert names(pairs_for(target, Surroundings(models))) == ["tenth", "fifth", "half", "dust"]


def test_what_the_catalogue_names_comes_before_what_only_fits(tmp_path: Path, target: Header) -> None:
    models = installed(tmp_path, tiny=sized(20_000, "T"), tenth=sized(90_000, "S"))
    offers = pairs_for(target, Surroundings(models, pairs=[pair(note="they say so")]))
    assert names(offers) == ["tiny", "tenth"]
    assert offers[0].source == "catalogue" and offers[0].note == "catalogue: they say so"


def test_a_drafter_that_is_not_here_is_to_be_fetched_and_named_once(tmp_path: Path, target: Header) -> None:
    around = Surroundings([], pairs=[pair(), replace(pair(), id="y"), pair("dflash", "tiny-dflash")])
    first, second = pairs_for(target, around)
    assert first.fetch and first.fetch.repo == "acme/tiny-GGUF" and not first.ready and not first.why_not
    assert second.method == "dflash" and second.fetch and not second.why_not


@pytest.mark.parametrize(
    ("architecture", "reason"),
    [("laguna", "hands out no layers of the architecture laguna"), ("qwen3next", "cannot take back tokens")],
)
def test_heads_are_not_fetched_for_a_model_they_cannot_serve(target: Header, architecture: str, reason: str) -> None:
    other = replace(target, architecture=architecture)
    (found,) = pairs_for(other, Surroundings([], pairs=[pair("dflash", "tiny-dflash")]))
    assert reason in found.why_not and not found.ready
    assert ("lookup" in found.instead) == (architecture == "laguna")  # nothing serves the other one


def test_files_that_are_not_the_heads_of_the_catalogue_say_so(tmp_path: Path, target: Header) -> None:
    heads = {"mtp-Big": sized(3000, "M"), "big-dflash": sized(3000, "D").text("general.architecture", "dflash")}
    models = installed(tmp_path, **heads)
    around = Surroundings(models, pairs=[pair("mtp", "mtp-Big"), pair("dflash", "big-dflash")])
    found = {each.method: each.why_not for each in pairs_for(target, around) if each.drafter}
    assert "hands out no features for MTP" in found["mtp"] and "does not say which layers" in found["dflash"]


def test_gains_of_this_machine_order_everything(tmp_path: Path) -> None:
    header = read_header(TARGET)
    heads = matching_heads(header, sorted(BUNDLED.glob("*.gguf")))
    assert set(heads) == {"medusa", "kangaroo", "space", "eagle3", "dflash"}
    around = Surroundings(heads=heads, gains={"kangaroo": 1.7, "medusa": 2.1, "eagle3": 0.8})
    offers = pairs_for(header, around)
    assert [each.method for each in offers] == ["medusa", "kangaroo", "dflash", "space", "eagle3"]
    assert [each.sound for each in offers] == [True, True, True, True, False]
    assert all(each.source == "trained for it" for each in offers)


def test_the_gain_of_draft_models_counts_only_where_there_is_one(tmp_path: Path, target: Header) -> None:
    models = installed(tmp_path, tenth=sized(90_000, "T"), fifth=sized(200_000, "F"))
    gains = {"draft": 1.5}
    assert [each.gain for each in pairs_for(target, Surroundings(models, gains=gains))] == [None, None]
    one = [model for model in models if model.name == "tenth"]
    assert [each.gain for each in pairs_for(target, Surroundings(one, gains=gains))] == [1.5]


@pytest.mark.parametrize("architecture", ["glm4moe", "qwen35"])
def test_layers_in_the_model_itself_come_first(tmp_path: Path, architecture: str) -> None:
    header = read_header(write_mtp(tmp_path / "Deep.gguf", architecture))
    (found,) = pairs_for(header, Surroundings())
    assert (found.method, found.source, found.path, found.sound) == ("mtp", "in the model", None, True)


def test_layers_that_cannot_be_run_say_why_and_a_head_which_layers_are_missing(tmp_path: Path) -> None:
    source = write_mtp(tmp_path / "Deep.gguf", "glm4moe")
    header = read_header(source)
    last = (header.n_layer or 0) - 1
    cut = changed(source, tmp_path / "cut.gguf", tensors={f"blk.{last}.nextn.eh_proj.weight": None})
    (found,) = pairs_for(read_header(cut), Surroundings())
    assert found.why_not == "this file leaves out the model's MTP layers" and "lookup" in found.instead
    head = published(tmp_path, **{"eagle3.target_layers": [1, 4, 99]})
    (found,) = pairs_for(read_header(TARGET), Surroundings(ModelStore(tmp_path / "models").installed()))
    assert "reads the input of layer 99, which this model does not hand out" in found.why_not
    assert matching_heads(read_header(TARGET), [head]) == {}


def published(tmp_path: Path, **keys: Any) -> Path:
    """An EAGLE-3 head as others publish it: it does not name its model."""
    folder = tmp_path / "models" / "acme" / "heads"
    folder.mkdir(parents=True)
    return changed(EAGLE, folder / "eagle3-head.gguf", {TARGET_KEY: "", **keys})


def test_a_published_head_is_offered_by_its_sizes_and_surely_where_the_catalogue_names_it(tmp_path: Path) -> None:
    header, head = read_header(TARGET), published(tmp_path)
    models = ModelStore(tmp_path / "models").installed()
    (found,) = pairs_for(header, Surroundings(models))
    assert found.source == "sizes fit" and found.ready and not found.sound and found.path == head
    (known,) = [p for p in pairs_for(header, Surroundings(models, pairs=[pair("eagle3", "eagle3-head")])) if p.drafter]
    assert known.source == "catalogue" and known.sound
    assert matching_heads(header, [head]) == {"eagle3": head}
    assert matching_heads(header, [EAGLE, head]) == matching_heads(header, [head, EAGLE]) == {"eagle3": EAGLE}


def test_a_model_goes_by_the_names_of_its_header_file_and_repository(tmp_path: Path) -> None:
    model = small_model().text("general.basename", "Qwen3").text("general.size_label", "8B")
    path = tmp_path / "q.gguf"
    path.write_bytes(model.bytes())
    found = names_of(read_header(path), "acme/Thing-GGUF", "tiny")
    assert found == ["Small", "q", "tiny", "Qwen3-8B", "acme/Thing-GGUF"]


def test_without_reasons_what_may_fit_is_read(tmp_path: Path, target: Header, monkeypatch: pytest.MonkeyPatch) -> None:
    models = installed(
        tmp_path,
        same=sized(50_000),
        other=sized(50_000).vocabulary([*NAMES[:9], "else"]),
        padded=sized(50_000).vocabulary([*target.tokens, "<pad>"]).drop("tokenizer.ggml.scores"),
    )
    read: list[Path] = []

    def reader(path: Path) -> Header:
        read.append(path)
        return read_header(path)

    monkeypatch.setattr("slipstream.models.library.pairing.read_header", reader)
    found = pairs_for(target, Surroundings(models, reasons=False))
    assert sorted((each.name, each.source) for each in found) == [
        ("padded", "same vocabulary"), ("same", "same vocabulary"),
    ]  # fmt: skip
    assert [path.stem for path in read] == ["padded"]


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


def test_names_in_the_headers_tell_projectors_apart(model: Path, tmp_path: Path) -> None:
    own = write_mmproj(model.with_name("mmproj-b.gguf"), "mlp", WIDTH, title="Tiny llama")
    write_mmproj(model.with_name("mmproj-a.gguf"), "mlp", WIDTH, title="Another model")
    assert projector_beside(model) == own
    write_mmproj(own, "mlp", WIDTH, title="A third model")
    assert projector_beside(model) is None, "it cannot tell which"
    assert projector_beside(tmp_path / "nowhere" / "model.gguf") is None


FOLDERS = {
    "our own, of another repository": "models/acme/tiny-GGUF",
    "LM Studio": ".lmstudio/models/acme/tiny-GGUF",
    "the hub's cache": ".cache/huggingface/hub/models--acme--Tiny-GGUF/snapshots/1111",
    "llama.cpp": ".cache/llama.cpp",
}


def choice(model: Path, home: Path) -> ProjectorChoice:
    return places.projector_of(model, lambda: projector_files(home / "models", {"HOME": str(home)}))


@pytest.mark.parametrize("program", FOLDERS)
def test_one_in_another_folder_is_taken_if_it_names_the_model(model: Path, tmp_path: Path, program: str) -> None:
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
