"""What drafters learn, kept in files: whole, private, and never trusted."""

import os
import stat
from pathlib import Path

import pytest
from tests.soak.strange_engine import bad_file

from slipstream.drafters.memory import DrafterMemory


def test_what_is_written_is_read_back_by_its_model_and_name_alone(tmp_path: Path) -> None:
    memory = DrafterMemory(tmp_path / "new" / "folder", "a" * 64)
    assert memory.read("recycle") is None
    memory.write("recycle", b"first")
    memory.write("recycle", b"second")
    memory.write("other", b"")
    assert memory.read("recycle") == b"second" and memory.read("other") == b""
    for model in ("b" * 64, "a" * 16 + "b" * 48):  # the second has the same file
        assert DrafterMemory(tmp_path / "new" / "folder", model).read("recycle") is None
    assert len(list((tmp_path / "new" / "folder").iterdir())) == 2


def test_any_damage_is_noticed(tmp_path: Path) -> None:
    memory = DrafterMemory(tmp_path, "model")
    memory.write("recycle", b"some bytes")
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    for at in range(len(whole)):
        file.write_bytes(whole[:at])
        assert memory.read("recycle") is None
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert memory.read("recycle") is None
    memory.write("recycle", b"again")
    assert memory.read("recycle") == b"again"


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_only_its_owner_can_read_it(tmp_path: Path) -> None:
    memory = DrafterMemory(tmp_path / "cache", "model")
    memory.write("recycle", b"x")
    assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == 0o700
    assert [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "cache").iterdir()] == [0o600]


def test_a_place_that_cannot_be_written_costs_the_memory_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    blocked = DrafterMemory(tmp_path / "file", "model")
    blocked.write("recycle", b"x")
    assert blocked.read("recycle") is None
    memory = DrafterMemory(tmp_path / "cache", "model")
    memory.write("recycle", b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    memory.write("recycle", b"new")
    assert memory.read("recycle") == b"old"
    assert len(list((tmp_path / "cache").iterdir())) == 1  # nothing half-written is left


@pytest.mark.skipif(os.name != "posix", reason="links and pipes are POSIX's")
@pytest.mark.parametrize("kind", ["endless", "pipe", "folder", "large", "loop"])
def test_only_a_regular_file_of_a_fair_size_is_read(tmp_path: Path, kind: str) -> None:
    memory = DrafterMemory(tmp_path, "model")
    memory.write("costs", b"some bytes")
    (file,) = tmp_path.iterdir()
    bad_file(file, kind)
    assert memory.read("costs") is None
