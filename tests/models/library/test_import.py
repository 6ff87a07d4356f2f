"""Imports and changes of the library that are killed or meet each other: all or nothing, and nothing is lost."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from tests.models.hub_models import split_gguf, tiny_gguf

from slipstream.models.errors import SlipstreamError, UsageError
from slipstream.models.files import locked
from slipstream.models.hub.types import RemoteFile
from slipstream.models.library.records import read_record
from slipstream.models.library.store import ModelStore

PARTS = split_gguf("Other-Q4_K_M", 3)
KILLED = """
import os, signal, sys
from pathlib import Path
from slipstream.models.library.store import ModelStore
left = [int(sys.argv[4])]
def hook(event, arguments):
    if event in ("os.rename", "os.link") or (event == "open" and str(arguments[1]).startswith("w")):
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(hook)
ModelStore(Path(sys.argv[1])).import_file(Path(sys.argv[2]), sys.argv[3])
"""
REPO = "acme/Big"
MOVES = 12


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for name, content in PARTS.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path / min(PARTS)


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file() and "/." not in str(path))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["link", "copy"])
def test_an_import_killed_anywhere_is_all_or_nothing_and_repeatable(tmp_path: Path, source: Path, how: str) -> None:
    ended = 0
    for moment in range(0, 40, 2):
        folder = tmp_path / f"models{moment}"
        done = subprocess.run([sys.executable, "-c", KILLED, folder, source, how, str(moment)], check=False)
        assert done.returncode in (0, -signal.SIGKILL)
        ended += done.returncode == 0
        store = ModelStore(folder)
        found = store.installed()
        assert visible(folder) in ([], sorted(PARTS)) and len(found) <= 1 and all(model.usable for model in found)
        assert not list(folder.glob(".import-*")), "a copy of gigabytes would stay for ever"
        if not found:
            assert store.import_file(source, "copy" if how == "copy" else "link").usable
        assert visible(folder) == sorted(PARTS)
        assert all(read_record(path).source for path in folder.rglob("Other*.gguf"))
        if ended > 1:
            return
    raise AssertionError("no import reached its end")


def test_parts_that_an_older_import_left_are_replaced(tmp_path: Path, source: Path) -> None:
    store = ModelStore(tmp_path / "models")
    left = tmp_path / "models" / "local" / "Other"
    left.mkdir(parents=True)
    (left / max(PARTS)).write_bytes(b"half")
    assert store.import_file(source, "copy").usable and (left / max(PARTS)).read_bytes() == PARTS[max(PARTS)]


def test_two_imports_of_one_name_at_once_keep_the_first(tmp_path: Path) -> None:
    store, outcomes = ModelStore(tmp_path / "models"), list[str]()
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "Tiny-F32.gguf").write_bytes(tiny_gguf(seed=len(outcomes) + ord(folder)))

    def take(folder: str) -> None:
        try:
            outcomes.append(store.import_file(tmp_path / folder / "Tiny-F32.gguf", "copy").name)
        except UsageError as error:
            outcomes.append("there already" if "there already" in error.title else error.title)

    threads = [threading.Thread(target=take, args=(folder,)) for folder in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["there already", "tiny:F32"] and visible(store.folder) == ["Tiny-F32.gguf"]


def test_a_change_waits_for_another_one_or_is_not_done(tmp_path: Path) -> None:
    path, store = tmp_path / "Tiny-F32.gguf", ModelStore(tmp_path / "models")
    path.write_bytes(tiny_gguf())
    store.import_file(path, "copy")
    with (
        locked(store.folder / ".lock"),
        pytest.raises(SlipstreamError, match="nothing was changed"),
        locked(store.folder / ".lock", 0.1),
    ):
        pass
    with locked(store.folder / ".lock"):
        thread = threading.Thread(target=store.remove, args=("tiny", True))
        thread.start()
        thread.join(0.2)
        assert thread.is_alive() and visible(store.folder) == ["Tiny-F32.gguf"]
    thread.join()
    assert visible(store.folder) == []


def test_facts_that_another_process_added_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    store = ModelStore(folder)
    for number in (1, 2):
        path = tmp_path / f"Tiny{number}-F32.gguf"
        path.write_bytes(tiny_gguf(seed=number))
        store.import_file(path, "copy")
    kept = json.loads((folder / ".facts.json").read_text())
    assert len(kept["files"]) == 2 and store.installed() == store.installed()


def test_a_download_is_recorded_before_it_is_in_its_place(tmp_path: Path) -> None:
    store = ModelStore(tmp_path / "models")
    file = RemoteFile("acme/Tiny", "c0ffee", "Tiny-F32.gguf", len(tiny_gguf()), "0" * 64)
    file.path_in(store.folder).parent.mkdir(parents=True)
    store.record([file])
    assert store.installed() == []
    file.path_in(store.folder).write_bytes(tiny_gguf())  # as after a kill between the two
    (model,) = store.installed()
    assert (model.repo, model.sha256) == ("acme/Tiny", "0" * 64)


def test_what_lies_in_a_folder_of_imports_cannot_leave_the_library(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    staging = folder / ".import-evil"
    staging.mkdir(parents=True)
    for name, content in (("lock", b""), ("place", b"../../outside"), ("evil.gguf", b"x")):
        (staging / name).write_bytes(content)
    assert ModelStore(folder).installed() == [] and not (tmp_path / "outside").exists() and not staging.exists()
    shutil.rmtree(folder)
    os.makedirs(folder)
    assert ModelStore(folder).installed() == []


class Killed(BaseException):
    pass


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    made = ModelStore(tmp_path / "models")
    parts = split_gguf("Big-Q4_K_M", 3)
    folder = made.folder / REPO
    folder.mkdir(parents=True)
    for name, content in parts.items():
        (folder / name).write_bytes(content)
    files = [RemoteFile(REPO, "c0ffee", name, len(content), "0" * 64) for name, content in parts.items()]
    made.record(files)
    made.listed(folder / files[0].name)
    return made


def killed_after(moves: int, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> bool:
    """Runs something until it has moved so many files; returns whether it got to its end."""
    left = [moves]

    def counted(move: Callable[[Path, Path], None]) -> Callable[[Path, Path], None]:
        def call(source: Path, target: Path) -> None:
            if not left[0]:
                raise Killed
            left[0] -= 1
            move(source, target)

        return call

    with monkeypatch.context() as patch:
        for name in ("replace", "rename"):
            patch.setattr(os, name, counted(getattr(os, name)))
        try:
            act()
        except Killed:
            return False
    return True


@pytest.mark.parametrize("moves", range(MOVES))
def test_a_removal_that_is_killed_can_be_undone(store: ModelStore, monkeypatch: pytest.MonkeyPatch, moves: int) -> None:
    before = store.installed()
    killed_after(moves, monkeypatch, lambda: store.remove("big"))
    later = ModelStore(store.folder)
    with suppress(UsageError):  # nothing was moved yet
        later.undo()
    assert later.installed() == before


@pytest.mark.parametrize("moves", range(MOVES))
def test_an_undo_that_is_killed_goes_on(store: ModelStore, monkeypatch: pytest.MonkeyPatch, moves: int) -> None:
    before = store.installed()
    store.remove("big")
    killed_after(moves, monkeypatch, store.undo)
    later = ModelStore(store.folder)
    if later.installed() != before:
        later.undo()
    assert later.installed() == before


def test_enough_moves_are_counted_to_reach_the_end(store: ModelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    assert killed_after(MOVES - 1, monkeypatch, lambda: store.remove("big"))
    assert killed_after(MOVES - 1, monkeypatch, store.undo)
    assert not killed_after(0, monkeypatch, lambda: store.remove("big"))
