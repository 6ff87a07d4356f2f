"""The model store: what it lists, takes in, checks, removes and brings back."""

import hashlib
import os
import shutil
from pathlib import Path

import pytest
from tests.models.conftest import small_model
from tests.models.hub_models import split_gguf, tiny_gguf
from tests.models.kinds import TOKENS

from slipstream.models.errors import ModelFileError, SlipstreamError, UsageError
from slipstream.models.gguf.file_name import shown_name, split_name
from slipstream.models.hub.types import RemoteFile
from slipstream.models.library.names import matching, plain_name
from slipstream.models.library.records import read_record, record_path
from slipstream.models.library.store import ModelStore
from slipstream.models.library.trash import freed_by


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "models")


def put(store: ModelStore, name: str, content: bytes | None = None) -> Path:
    path = store.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tiny_gguf() if content is None else content)
    return path


def adopted(store: ModelStore, name: str, content: bytes | None = None, sha256: str | None = None) -> Path:
    path = put(store, name, content)
    found = sha256 or hashlib.sha256(path.read_bytes()).hexdigest()
    owner, repo, file = name.split("/", 2)
    store.record([RemoteFile(f"{owner}/{repo}", "c0ffee", file, path.stat().st_size, found)])
    store.listed(path)
    return path


def names(store: ModelStore) -> list[str]:
    return [model.name for model in store.installed()]


@pytest.mark.parametrize(
    ("stem", "base", "label"),
    [
        ("Qwen3-4B-Q4_K_M", "Qwen3-4B", "Q4_K_M"),
        ("qwen2.5-7b-instruct-q8_0-00001-of-00003", "qwen2.5-7b-instruct", "Q8_0"),
        ("Qwen3-4B-UD-Q4_K_XL", "Qwen3-4B", "UD-Q4_K_XL"),
        ("model-fp16", "model", "F16"),
        ("Phi-Q", "Phi-Q", ""),
    ],
)
def test_a_files_name_is_the_models_and_its_quantization(stem: str, base: str, label: str) -> None:
    assert split_name(stem) == (base, label)
    assert shown_name(Path(f"/x/{stem}.gguf"), "Ckpt 12") == ("Ckpt 12" if base == "model" else base)
    assert plain_name(stem, "Q5_0") == f"{base.lower()}:{label or 'Q5_0'}"


def test_an_empty_home_has_no_models_and_a_downloaded_one_says_all_that_is_known_of_it(store: ModelStore) -> None:
    assert store.installed() == [] and not store.folder.exists()
    path = adopted(store, "acme/Tiny-GGUF/Tiny-1M-Q8_0.gguf", tiny_gguf(q8_0=True))
    (model,) = store.installed()
    assert (model.name, model.path, model.origin, model.repo) == ("tiny-1m:Q8_0", path, "ours", "acme/Tiny-GGUF")
    assert (model.quant, model.architecture, model.title) == ("Q8_0", "llama", "Tiny-1M")
    assert model.size == path.stat().st_size and model.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert model.params > 2 * 32 * len(TOKENS) and model.context == 2048
    assert model.usable and not model.foreign and len(model.fingerprint) == 64


def test_a_split_model_is_one_entry_and_a_missing_part_is_told(store: ModelStore) -> None:
    parts = split_gguf("Big-Q4_K_M", 3)
    for name, content in parts.items():
        put(store, f"acme/Big/{name}", content)
    (model,) = store.installed()
    assert model.name == "big:Q4_K_M" and len(model.files) == 3 and model.size == sum(map(len, parts.values()))
    model.files[1].unlink()
    (broken,) = store.installed()
    assert not broken.usable and "00002-of-00003.gguf is missing" in broken.problem
    model.files[0].unlink()
    (broken,) = store.installed()
    assert "part 3 of 3" in broken.problem and "Name its first file" in broken.hint


def test_broken_files_are_listed_with_what_is_wrong(store: ModelStore) -> None:
    put(store, "a/b/good-Q8_0.gguf")
    put(store, "a/b/page.gguf", b"<!DOCTYPE html><p>Not found")
    put(store, "a/b/cut.gguf", tiny_gguf()[:5000])
    put(store, "a/b/empty.gguf", b"")
    put(store, "a/b/pointer.gguf", b"version https://git-lfs.github.com/spec/v1\n")
    none = small_model().text("tokenizer.ggml.model", "none").drop("tokenizer.ggml.tokens")
    put(store, "a/b/mute.gguf", none.drop("tokenizer.ggml.token_type").drop("tokenizer.ggml.scores").bytes())
    (store.folder / "a/b/gone.gguf").symlink_to(store.folder / "nowhere.gguf")
    (store.folder / "a/b/folder.gguf").mkdir()
    problems = {model.name: model.problem for model in store.installed()}
    assert problems.pop("good:Q8_0") == ""
    told = {"page": "is a web page", "cut": "cut short", "empty": "is empty", "pointer": "Git LFS pointer"}
    for name, words in (told | {"mute": "no vocabulary", "gone": "no such file"}).items():
        assert words in problems.pop(name), name
    assert not problems


def test_a_file_of_another_size_than_was_published_is_told_without_reading_it(store: ModelStore) -> None:
    path = adopted(store, "a/b/Tiny-Q8_0.gguf")
    with path.open("ab") as file:
        file.write(bytes(32))
    (model,) = store.installed()
    assert "should have" in model.problem and "fetch it again" in model.hint


def test_heads_and_projectors_are_told_from_models_to_chat_with(store: ModelStore) -> None:
    put(store, "a/b/eagle.gguf", small_model().text("general.architecture", "eagle3").bytes())
    put(store, "a/b/vision.gguf", small_model().text("general.architecture", "clip").bytes())
    put(store, "a/b/mtp-Tiny.gguf")
    put(store, "a/b/mmproj-Tiny.gguf", small_model().text("general.architecture", "clip").bytes())
    assert {model.name: model.role for model in store.installed()} == {
        "eagle": "drafter", "vision": "other", "mtp-tiny": "drafter",
    }  # fmt: skip


def test_facts_are_kept_and_read_anew_when_a_file_changes(store: ModelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(store, "a/b/Tiny-Q8_0.gguf")
    first = store.installed()
    read: list[Path] = []
    monkeypatch.setattr("slipstream.models.library.records.read_header", lambda path: read.append(path))
    assert store.installed() == first and not read
    monkeypatch.undo()
    path.write_bytes(tiny_gguf("qwen3"))
    assert store.installed()[0].architecture == "qwen3"
    (store.folder / ".facts.json").write_text('{"version": 1, "files": {"' + str(path) + '": {"stamp": 3}}}')
    assert store.installed()[0].architecture == "qwen3"


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("qwen3-4b:q4_k_m", "qwen3-4b:Q4_K_M"), ("Qwen3-0", "qwen3-0.6b:Q8_0"), ("gem", "gemma-3:F16"),
        ("qwen3-4b:q8", "qwen3-4b:Q8_0"), ("Qwen/Qwen3-4B-GGUF:Q8_0", "qwen3-4b:Q8_0"),
        ("https://huggingface.co/Qwen/Qwen3-4B-GGUF/resolve/main/Qwen3-4B-Q8_0.gguf", "qwen3-4b:Q8_0"),
        ("google/gem", "gemma-3:F16"), ("32b", ""), ("qwen_qwen3-32b", "qwen_qwen3-32b:Q8_0"),
        ("qwen3-32b", "qwen_qwen3-32b:Q8_0"),
    ],
)  # fmt: skip
def test_a_model_is_found_by_any_name_that_people_type(store: ModelStore, typed: str, found: str) -> None:
    for place in (
        "Qwen/Qwen3-4B-GGUF/Qwen3-4B-Q4_K_M.gguf",
        "Qwen/Qwen3-4B-GGUF/Qwen3-4B-Q8_0.gguf",
        "Qwen/Qwen3-0.6B-GGUF/Qwen3-0.6B-Q8_0.gguf",
        "google/gemma/gemma-3-F16.gguf",
        "bartowski/Qwen_Qwen3-32B-GGUF/Qwen_Qwen3-32B-Q8_0.gguf",
    ):
        put(store, place, tiny_gguf(seed=1 + len(place)))
    assert [model.name for model in matching(typed, store.installed())] == ([found] if found else [])


def test_a_name_for_several_models_lists_them_and_an_unknown_one_says_what_there_is(store: ModelStore) -> None:
    put(store, "a/b/Qwen3-4B-Q4_K_M.gguf", tiny_gguf(seed=1))
    put(store, "a/b/Qwen3-4B-Q8_0.gguf", tiny_gguf(q8_0=True))
    with pytest.raises(UsageError, match="may mean 2 models") as stop:
        store.find("qwen3")
    assert "qwen3-4b:Q4_K_M, qwen3-4b:Q8_0" in stop.value.hint
    with pytest.raises(UsageError, match="there is no model named 'qwen4-4b'") as stop:
        store.find("qwen4-4b")
    assert "qwen3-4b" in stop.value.hint
    with pytest.raises(UsageError, match="no model named"):
        store.find("")


def test_equal_names_are_told_apart_and_one_file_in_two_places_is_no_doubt(store: ModelStore) -> None:
    put(store, "a/x/Tiny-Q8_0.gguf", tiny_gguf(seed=1))
    put(store, "b/x/Tiny-Q8_0.gguf", tiny_gguf("qwen3"))
    put(store, "b/y/Other-Q8_0.gguf", tiny_gguf(seed=3))
    put(store, "b/x/copy/Tiny-Q8_0.gguf", tiny_gguf("qwen3"))
    assert names(store) == ["other:Q8_0", "tiny:Q8_0", "b/tiny:Q8_0", "tiny:Q8_0@ours-2"]
    assert store.find("tiny:q8_0").architecture == "llama"  # the first one keeps the name
    assert store.find("b/tiny").architecture == "qwen3"  # the same bytes: whichever


def test_importing_links_without_taking_room_and_checks_the_header_first(store: ModelStore, tmp_path: Path) -> None:
    source = tmp_path / "elsewhere" / "Mine-Q8_0.gguf"
    source.parent.mkdir()
    source.write_bytes(tiny_gguf())
    model = store.import_file(source)
    assert model.name == "mine:Q8_0" and model.origin == "ours" and model.repo is None
    assert os.path.samefile(model.path, source) and read_record(model.path).source == str(source)
    with pytest.raises(UsageError, match="is here already, as mine:Q8_0"):
        store.import_file(source)
    with pytest.raises(UsageError, match="is here already, as mine:Q8_0"):
        store.import_file(model.path)
    again = tmp_path / source.name
    again.write_bytes(tiny_gguf(seed=3))
    with pytest.raises(UsageError, match="is there already"):
        store.import_file(again)
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"<html>")
    with pytest.raises(ModelFileError, match="web page"):
        store.import_file(bad)
    with pytest.raises(ModelFileError, match="no such file"):
        store.import_file(tmp_path / "none.gguf")
    bad.write_bytes(small_model().text("general.architecture", "clip").bytes())
    with pytest.raises(ModelFileError, match="not a model to chat with"):
        store.import_file(bad)
    assert names(store) == ["mine:Q8_0"] and not list(store.folder.rglob("bad*"))


def test_a_link_across_disks_is_symbolic(store: ModelStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    source = tmp_path / "Mine-Q8_0.gguf"
    source.write_bytes(tiny_gguf())
    monkeypatch.setattr(os, "link", refused)
    model = store.import_file(source)
    assert model.path.is_symlink() and model.usable and freed_by(model.files) == 0
    source.unlink()
    assert "no such file" in store.installed()[0].problem
    store.remove("mine")
    assert names(store) == []


def test_copying_takes_all_parts_hashes_them_and_leaves_nothing_if_stopped(store: ModelStore, tmp_path: Path) -> None:
    for name, content in split_gguf("Big-Q4_K_M").items():
        (tmp_path / name).write_bytes(content)
    first = tmp_path / "Big-Q4_K_M-00001-of-00002.gguf"
    with pytest.raises(KeyboardInterrupt):
        store.import_file(first, "copy", cancelled=lambda: True)
    assert names(store) == [] and not list(store.folder.rglob("*.gguf*"))
    seen: list[tuple[int, int]] = []
    model = store.import_file(first, "copy", lambda done, size: seen.append((done, size)))
    assert seen[-1] == (model.size, model.size) and [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert not os.path.samefile(model.path, first) and not store.verify("big").problem
    assert freed_by(model.files) == model.size


def test_a_copy_that_is_too_large_is_refused(
    store: ModelStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "Mine-Q8_0.gguf"
    source.write_bytes(tiny_gguf())
    usage = type(shutil.disk_usage(tmp_path))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(1 << 30, 1 << 30, 1 << 20))
    with pytest.raises(SlipstreamError, match=r"only 0\.0 GB are free") as stop:
        store.import_file(source, "copy")
    assert "link" in stop.value.hint and names(store) == []


def test_verifying_finds_one_changed_byte(store: ModelStore) -> None:
    path = adopted(store, "acme/Tiny-GGUF/Tiny-Q8_0.gguf")
    seen: list[tuple[int, int]] = []
    checked = store.verify("tiny", lambda done, size: seen.append((done, size)))
    assert not checked.problem and checked.sha256 == checked.expected
    assert seen[-1] == (path.stat().st_size, path.stat().st_size)
    with path.open("r+b") as file:
        file.seek(-5, os.SEEK_END)
        file.write(b"?")
    checked = store.verify("tiny")
    assert "its bytes have changed" in checked.problem
    assert "slipstream models pull acme/Tiny-GGUF:Q8_0" in checked.hint
    with pytest.raises(KeyboardInterrupt):
        store.verify("tiny", cancelled=lambda: True)


def test_verifying_a_model_of_unknown_hash_keeps_it_for_the_next_time(store: ModelStore) -> None:
    path = put(store, "a/b/Tiny-Q8_0.gguf")
    assert store.verify("tiny").expected == (None,)
    assert store.verify("tiny").expected == (hashlib.sha256(path.read_bytes()).hexdigest(),)
    path.write_bytes(tiny_gguf()[:9000])
    assert "cut short" in store.verify("tiny").problem


def in_trash() -> list[str]:
    return sorted(path.name for path in Path(os.environ["XDG_DATA_HOME"], "Trash", "files").glob("*"))


def test_a_removed_model_is_in_the_systems_trash_and_comes_back_as_it_was(store: ModelStore) -> None:
    path = adopted(store, "acme/Tiny-GGUF/Tiny-Q8_0.gguf")
    adopted(store, "acme/Tiny-GGUF/Tiny-F16.gguf")
    before, size, held = store.installed(), path.stat().st_size, in_trash()
    removed = store.remove("tiny:Q8_0")
    assert removed.freed == size and removed.files == (path,) and names(store) == ["tiny:F16"]
    assert len(in_trash()) == len(held) + 1
    assert store.undo().name == "tiny:Q8_0" and store.installed() == before and in_trash() == held
    assert store.find("tiny:Q8_0").repo == "acme/Tiny-GGUF"  # its record stays
    store.remove("tiny:Q8_0")
    store.remove("tiny:F16")
    assert names(store) == [] and store.undo().name == "tiny:F16"  # the last one
    with pytest.raises(UsageError, match="nothing to bring back"):
        store.undo()
    assert names(store) == ["tiny:F16"]


def test_a_removed_link_leaves_what_it_names_and_comes_back(store: ModelStore, tmp_path: Path) -> None:
    source = tmp_path / "Tiny-Q8_0.gguf"
    source.write_bytes(tiny_gguf())
    store.folder.mkdir()
    (store.folder / source.name).symlink_to(source)
    before, held = store.installed(), in_trash()
    assert store.remove("tiny").freed == 0 and source.exists() and in_trash() == held and names(store) == []
    store.undo()
    assert store.installed() == before


def test_a_model_that_has_left_the_trash_is_not_brought_back(store: ModelStore) -> None:
    path = adopted(store, "acme/Tiny-GGUF/Tiny-Q8_0.gguf")
    store.remove("tiny")
    shutil.rmtree(Path(os.environ["XDG_DATA_HOME"], "Trash"))  # as a desktop empties it
    with pytest.raises(SlipstreamError, match="was deleted there") as stop:
        store.undo()
    assert str(path) in stop.value.hint


def test_what_was_removed_does_not_overwrite_what_came_since(store: ModelStore) -> None:
    path = adopted(store, "acme/Tiny-GGUF/Tiny-Q8_0.gguf")
    store.remove("tiny")
    put(store, "acme/Tiny-GGUF/Tiny-Q8_0.gguf", tiny_gguf("qwen3"))
    with pytest.raises(UsageError, match="is there again"):
        store.undo()
    path.unlink()
    assert store.undo().files == (path,) and store.installed()[0].architecture == "llama"


def test_a_removal_that_fails_halfway_changes_nothing(store: ModelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, content in split_gguf("Big-Q4_K_M").items():
        put(store, f"acme/Big/{name}", content)
    before, move = store.installed(), os.rename

    def stubborn(source: str | bytes, target: str | bytes) -> None:
        if b"00002-of" in os.fsencode(source):
            raise PermissionError(1, "Operation not permitted", source)
        move(source, target)

    monkeypatch.setattr(os, "rename", stubborn)
    with pytest.raises(SlipstreamError, match="big:Q4_K_M cannot be moved to the trash") as stop:
        store.remove("big")
    assert "slipstream models rm big:Q4_K_M --now" in stop.value.hint
    monkeypatch.undo()
    assert store.installed() == before
    with pytest.raises(UsageError, match="nothing to bring back"):
        store.undo()


def test_a_full_disk_keeps_no_model_from_being_deleted(store: ModelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    path = adopted(store, "acme/Tiny-GGUF/Tiny-Q8_0.gguf")
    before, size = store.installed(), path.stat().st_size

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)  # the note is written safely
    with pytest.raises(SlipstreamError, match="no space left"):
        store.remove("tiny")
    assert store.installed() == before and store.remove("tiny", now=True).freed == size and store.installed() == []
    assert not any(store.folder.rglob("*acme*"))


def test_models_that_ship_are_listed_by_their_headers_names_and_stay(tmp_path: Path) -> None:
    shipped = tmp_path / "mini.gguf"
    shipped.write_bytes(tiny_gguf())
    store = ModelStore(tmp_path / "models", {"bundled": shipped})
    assert store.find("bundled").origin == "bundled"
    with pytest.raises(UsageError, match="ships with slipstream"):
        store.remove("bundled")
    assert shipped.exists() and not store.verify("bundled").problem and not record_path(shipped).exists()
    tuned = Path(__file__).parents[3] / "models" / "bundled" / "slipstream-mini-tuned-q8_0.gguf"
    assert shown_name(tuned, "Ours, tuned") == "Ours, tuned"
    assert shown_name(Path("/x/qwen3-8b-q8_0.gguf"), "Qwen3 8B") == "Qwen3 8B"
    assert shown_name(Path("/x/Qwen3-8B-Q8_0.GGUF"), "") == "Qwen3-8B"
    assert shown_name(Path("/x/Qwen3-8B-Q8_0.gguf"), "qwen3 8b") == "Qwen3-8B"
    assert shown_name(Path("/x/made-1b-0123456789ab.gguf"), "Made, 1b") == "Made, 1b"
