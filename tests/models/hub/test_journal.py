"""What a download keeps on the disk: the ranges, the journal and its lock; damage costs an interval, not a file."""

import hashlib
import importlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from filelock import lock_descriptor
from hypothesis import given, settings
from hypothesis import strategies as some
from tests.models.download_tests import BODY, NAME, PARTS, QUICK, REPO, job, leftovers, quant, run_until
from tests.models.hub_server import HubServer

from slipstream.models.files import HeldError, close_removed, open_locked
from slipstream.models.hub.downloads import partials
from slipstream.models.hub.journal import Journal, Ranges, read
from slipstream.models.hub.part_file import PartFile, Writer
from slipstream.models.hub.types import RemoteFile, Tuning

PAIRS = some.lists(some.tuples(some.integers(0, 40), some.integers(0, 40)), max_size=12)
FILE = RemoteFile("acme/Tiny-GGUF", "main", "a.gguf", 1000, "0" * 64)
httpx: Any = importlib.import_module("huggingface_hub.utils").httpx
HALF = len(BODY) // 2
pipes = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes of POSIX")


@settings(max_examples=300, deadline=None)
@given(PAIRS, some.integers(0, 40), some.integers(0, 40))
def test_ranges_are_a_set_of_bytes(pairs: list[tuple[int, int]], start: int, end: int) -> None:
    ranges, there = Ranges(), set[int]()
    for first, last in pairs:
        ranges.add(first, last)
        there |= set(range(first, last))
        assert ranges.total == len(there)
    gaps = ranges.missing(start, end)
    assert {place for first, last in gaps for place in range(first, last)} == set(range(start, end)) - there
    assert all(first < last for first, last in gaps) and gaps == sorted(gaps)
    assert set(range(ranges.contiguous())) <= there and ranges.contiguous() not in there
    other = ranges.copy()
    other.add(0, 50)
    assert ranges.total == len(there) and other.missing(0, 50) == []


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    handle = open_locked(path)
    with pytest.raises(HeldError):
        open_locked(path)
    os.close(handle)
    close_removed(open_locked(path), path)
    assert not path.exists()


def test_a_lock_on_a_file_that_was_removed_meanwhile_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    tuning = Tuning(connections=1, interval=300, reserve=0)
    part = PartFile([FILE], 0, tmp_path, tuning)
    writer = Writer(part, tuning)
    for offset in range(0, 1000, 200):
        writer.write(offset, bytes(200))
    writer.note()
    part.close()
    text = " ".join(calls)
    assert text.count("sync note") == text.count("note") == 4 and text.endswith("sync note")
    again = PartFile([FILE], 0, tmp_path, Tuning())
    assert list(again.check()) and again.whole
    again.close()


@pytest.mark.parametrize("damage", ["cut line", "garbage", "empty", "another file", "part gone"])
def test_a_journal_that_is_not_whole(server: HubServer, folder: Path, damage: str) -> None:
    run_until(server, job(folder), 200_000)
    path = quant().files[0].path_in(folder)
    journal, part = path.with_name(f"{NAME}.journal"), path.with_name(f"{NAME}.part")
    raw = journal.read_bytes()
    if damage == "part gone":
        part.unlink()
    else:
        other = raw.replace(hashlib.sha256(BODY).hexdigest().encode(), b"0" * 64)
        bent = {"cut line": raw[:-9], "garbage": b"\xff\x00{]" * 9, "empty": b"", "another file": other}
        journal.write_bytes(bent[damage])
    start = server.sent
    assert job(folder).run() == path and path.read_bytes() == BODY and leftovers(folder) == [NAME]
    again = server.sent - start - (len(BODY) - 200_000)
    assert again <= QUICK.interval if damage == "cut line" else again == 200_000


def test_a_split_model_counts_the_files_that_are_in_their_place(server: HubServer, folder: Path) -> None:
    parts = PARTS
    server.add(REPO, parts)
    files = quant("BF16").files
    run_until(server, job(folder, files), 100_000)
    (before,) = partials(folder)
    assert before.done == 100_000
    done = files[-1]
    assert not done.path_in(folder).exists()
    for left in folder.rglob(f"{done.name}.*"):
        left.unlink()  # as when a kill came once this one had its name
    done.path_in(folder).write_bytes(parts[done.name])
    (after,) = partials(folder)
    assert done.size <= after.done < after.total == before.total == sum(file.size for file in files)
    fetched = server.sent
    path = job(folder, files).run()
    assert path and leftovers(folder) == sorted(parts) and server.sent - fetched <= before.total - done.size


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("size", -1), ("size", 10**30), ("size", "5"), ("size", True), ("size", None)),
        *(("sha256", [1]), ("sha256", 5), ("index", -1), ("index", 1), ("index", True), ("index", "0")),
        *(("name", "a\ud800.gguf"), ("name", "../x"), ("name", 5), ("repo", "../x"), ("files", 5), ("files", [[1]])),
        ("version", 99),
    ],
)
def test_a_journal_that_cannot_be(server: HubServer, folder: Path, field: str, value: object) -> None:
    run_until(server, job(folder), HALF)
    (path,) = folder.rglob("*.journal")
    head, *rest = path.read_text().splitlines(keepends=True)
    row = json.loads(head)
    if field in ("name", "size", "sha256"):
        row["files"][0][("name", "size", "sha256").index(field)] = value
    else:
        row[field] = value
    path.write_text(json.dumps(row) + "\n" + "".join(rest))
    assert read(path) is None and partials(folder) == []
    check_again(folder)


@pytest.mark.parametrize(
    "line",
    [
        *(b"[" * 200_000, b'{"from":' + b"[" * 200_000, b'{"from": 0, "to": ' + b"9" * 5_000 + b', "crc": 0}'),
        *(b'{"from": NaN, "to": Infinity, "crc": 0}', b'{"from": true, "to": 5, "crc": 0}', b"\xff"),
    ],
    ids=lambda line: repr(line[:12]),
)
def test_a_line_of_a_journal_that_cannot_be(server: HubServer, folder: Path, line: bytes) -> None:
    run_until(server, job(folder), HALF)
    (path,) = folder.rglob("*.journal")
    path.write_bytes(path.read_bytes() + line + b"\n")
    (partial,) = partials(folder)
    assert partial.done == HALF
    fetched = server.sent
    check_again(folder)
    assert server.sent - fetched < len(BODY), "what was noted before was fetched again"


def check_again(folder: Path) -> None:
    path = job(folder).run()
    assert path and path.read_bytes() == BODY and leftovers(folder) == [NAME]
