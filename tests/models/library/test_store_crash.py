"""A store whose process is killed between any two moves of files: no model is lost, and nothing is in two places."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from tests.models.hub_models import split_gguf

from slipstream.models.errors import UsageError
from slipstream.models.hub.types import RemoteFile
from slipstream.models.library.store import ModelStore

REPO = "acme/Big"
MOVES = 12


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
