from __future__ import annotations

import os
from pathlib import Path

import pytest
from filelock import lock_descriptor

from slipstream.models.files import HeldError, close_removed, open_locked
from slipstream.models.hub.journal import Journal
from slipstream.models.hub.part_file import PartFile
from slipstream.models.hub.types import RemoteFile, Tuning

FILE = RemoteFile("acme/Tiny-GGUF", "main", "a.gguf", 1000, "0" * 64)


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    handle = open_locked(path)
    with pytest.raises(HeldError):
        open_locked(path)
    os.close(handle)
    close_removed(open_locked(path), path)
    assert not path.exists()


def test_a_lock_on_a_file_that_its_holder_removed_meanwhile_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, lock, goes = tmp_path / "lock", lock_descriptor, [0]

    def late(handle: int, *, blocking: bool) -> bool:
        goes[0] += 1
        if goes[0] == 1:
            path.unlink()
        return lock(handle, blocking=blocking)

    monkeypatch.setattr("filelock.lock_descriptor", late)
    handle = open_locked(path)
    assert goes[0] == 2 and os.path.samestat(os.fstat(handle), path.stat())
    os.close(handle)


def test_a_range_is_noted_only_once_it_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    sync, note, put = PartFile.sync, Journal.note, PartFile.put

    def spied(name: str, call: object) -> object:
        def spy(*arguments: object) -> object:
            calls.append(name)
            return call(*arguments)  # type: ignore[operator]

        return spy

    monkeypatch.setattr(PartFile, "sync", spied("sync", sync))
    monkeypatch.setattr(PartFile, "put", spied("write", put))
    monkeypatch.setattr(Journal, "note", spied("note", note))
    part = PartFile([FILE], 0, tmp_path, Tuning(connections=1, interval=300, reserve=0))
    writer = part.writer()
    for offset in range(0, 1000, 200):
        writer.write(offset, bytes(200))
    writer.note()
    part.close()
    text = " ".join(calls)
    assert text.count("sync note") == text.count("note") == 4 and text.endswith("sync note")
    again = PartFile([FILE], 0, tmp_path, Tuning())
    assert list(again.check()) and again.whole
    again.close()
