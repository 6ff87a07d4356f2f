"""Kept KV states: whole or not at all, for their owner alone, and no more than a limit."""

import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path

import pytest

from slipstream.app.engine.kv_cache_store import find_state, system_state, write_state

ROOM = 1 << 30


def kept(path: Path, key: str = "key") -> tuple[Sequence[int], bytes | None] | None:
    found = find_state(path, key)
    state = found.state(ROOM) if found else None
    return (found.tokens, None if state is None else bytes(state)) if found else None


def test_a_state_is_its_owners_and_good_for_its_key_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.state"
    write_state(path, "key", [1, -2], b"cache", ROOM)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["a.state"]
    assert kept(path) == ([1, -2], b"cache") and kept(path, "other") is None
    assert kept(tmp_path / "none.state") is None
    path = tmp_path / "a.state"
    write_state(path, "key", [1], b"cache", ROOM)
    found = find_state(path, "key")
    path.unlink()
    assert found and found.state(ROOM) is None


@pytest.mark.parametrize("change", ["cut", "flip", "longer"])
def test_whatever_happened_to_the_file_nothing_wrong_is_taken(tmp_path: Path, change: str) -> None:
    path = tmp_path / "a.state"
    write_state(path, "key", [1, -2, 3], b"cache", ROOM)
    raw = path.read_bytes()
    for at in range(len(raw)):
        flipped = bytes([*raw[:at], raw[at] ^ 0x41, *raw[at + 1 :]])
        path.write_bytes({"cut": raw[:at], "flip": flipped, "longer": raw + raw[: at + 1]}[change])
        found = kept(path)
        assert found is None or found == ([1, -2, 3], None)


def test_a_full_disk_leaves_what_was_there_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.state"
    write_state(path, "key", [1], b"cache", ROOM)

    def full(_old: object, _new: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="no space"):
        write_state(path, "key", [1, 2], b"more", ROOM)
    assert kept(path) == ([1], b"cache")
    assert [file.name for file in tmp_path.iterdir()] == ["a.state"]


def test_those_that_were_not_used_for_longest_leave_first(tmp_path: Path) -> None:
    for number, name in enumerate("abc"):
        write_state(tmp_path / f"{name}.state", "key", [1], bytes(1000), ROOM)
        os.utime(tmp_path / f"{name}.state", (number, number))
    (tmp_path / "other.txt").write_bytes(bytes(5000))
    limit = 3 * (tmp_path / "a.state").stat().st_size
    assert kept(tmp_path / "a.state")  # used: now b is the oldest
    write_state(tmp_path / "d.state", "key", [1], bytes(1000), limit)
    assert {path.name for path in tmp_path.iterdir()} == {"a.state", "c.state", "d.state", "other.txt"}
    write_state(tmp_path / "d.state", "key", [1], bytes(9000), limit)  # larger than all may be
    assert {path.name for path in tmp_path.iterdir()} == {"a.state", "c.state", "other.txt"}


def test_a_system_prompts_state_is_named_after_model_and_text(tmp_path: Path) -> None:
    names = {system_state(tmp_path, key, tokens) for key in ("a", "b") for tokens in ([1, 2], [1, 3])}
    assert len(names) == 4
    assert all(path.suffix == ".state" and not path.name[0].isalnum() for path in names)  # no chat is called so


@pytest.mark.skipif(os.name != "posix", reason="links and pipes are POSIX's")
def test_a_pipe_a_device_and_a_file_beyond_the_limit_are_no_states(tmp_path: Path) -> None:
    path = tmp_path / "a.state"
    os.mkfifo(path)
    assert find_state(path, "key") is None
    path.unlink()
    path.symlink_to("/dev/zero")
    assert find_state(path, "key") is None
    path.unlink()
    write_state(path, "key", [1], b"cache", ROOM)
    found = find_state(path, "key")
    os.truncate(path, 1 << 40)
    assert found and found.state(ROOM) is None
