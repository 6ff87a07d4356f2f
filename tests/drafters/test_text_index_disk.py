"""The folder of the index through kills, full disks, company and damage."""

from __future__ import annotations

import errno
import json
import os
import random
import stat
import struct
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from slipstream.drafters.text_index import storage
from slipstream.drafters.text_index.index import TextIndex
from slipstream.drafters.text_index.segment import Matches
from slipstream.drafters.text_index.storage import MANIFEST
from slipstream.drafters.text_index.text import PADDING, Ids, Piece, sorted_contexts
from slipstream.models.errors import SlipstreamError
from slipstream.models.types import Token

VOCABULARY = 200_000


@pytest.fixture(scope="module", autouse=True)
def quick_disk() -> Iterator[None]:
    """Waiting for the disk would take most of the time here, and shows nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


def opened(folder: Path, n_vocab: int = VOCABULARY) -> TextIndex:
    return TextIndex(folder, "v1", n_vocab)


def continuations(found: Matches) -> Counter[tuple[Token, ...]]:
    """What followed, in reading order, up to the end of the piece."""
    rows = [row[::-1] for row in found.ahead]
    return Counter(row[: row.index(-1)] if -1 in row else row for row in rows)


def words(seed: int, size: int, vocabulary: int = 50) -> list[Token]:
    """Text of repeated words."""
    rng = random.Random(seed)
    known = [[rng.randrange(vocabulary) for _ in range(rng.randint(1, 9))] for _ in range(12)]
    return [token for _ in range(size) for token in rng.choice(known)][:size]


# --- kills, full disks, company -------------------------------------------------------------------------------------


class Killed(BaseException):
    """The process ends here."""


def dying(monkeypatch: pytest.MonkeyPatch, at: int, error: BaseException, calls: Sequence[str]) -> list[int]:
    """Makes the call of this number to the system the last one; a write is done by half."""
    count = [0]

    def cut(name: str, real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            count[0] += 1
            if count[0] - 1 == at:
                if name == "write":
                    real(args[0], args[1][: len(args[1]) // 2])  # type: ignore[index,arg-type]
                raise error
            return real(*args, **kwargs)

        return call

    for name in calls:
        monkeypatch.setattr(os, name, cut(name, getattr(os, name)))
    return count


def add_two(index: TextIndex) -> None:
    index.add([Piece("a", [1, 2, 3, 4]), Piece("c", words(3, 50))])


def remove_one(index: TextIndex) -> None:
    index.remove(["a"])


@pytest.mark.slow
@pytest.mark.parametrize("change", [add_two, remove_one, TextIndex.tidy])
def test_killed_at_any_call_it_holds_the_old_or_the_new(
    change: Callable[[TextIndex], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[tuple[tuple[str, int], ...]] = set()
    for at in range(100):
        folder = tmp_path / str(at)
        index = opened(folder)
        for size in (30_000, 20_000):  # too large to be merged by adding
            index.add([Piece("a", words(size, size)), Piece("b", [5, 6, 7])])
        before = index.documents()
        with monkeypatch.context() as patch:
            count = dying(patch, at, Killed(), ("open", "write", "fsync", "replace", "unlink"))
            with suppress(Killed):
                change(index)
            ended = count[0] <= at
        again = opened(folder)
        state = tuple(sorted((name, document.tokens) for name, document in again.documents().items()))
        seen.add(state)
        assert continuations(again.search([5, 6])) == {(7,): 2}
        assert {path.name for path in folder.iterdir()} == {s.name for s in again.segments} | {MANIFEST, storage.LOCK}
        if ended:
            assert at > 6, "nothing was cut"
            break
        change(again)  # goes through now
        assert continuations(again.search([5, 6])) == {(7,): 2}
    else:
        pytest.fail("it never came to its end")
    assert tuple(sorted((name, document.tokens) for name, document in before.items())) in seen
    assert len(seen) == (1 if change is TextIndex.tidy else 2)


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_full_disk_is_an_error_in_words_and_changes_nothing(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = opened(tmp_path)
    index.add([Piece("a", [1, 2, 3])])
    with monkeypatch.context() as patch:
        dying(patch, 0, OSError(errno.ENOSPC, "No space left on device"), (call,))
        with pytest.raises(SlipstreamError, match="no space left on device"):
            index.add([Piece("b", [4, 5, 6])])
    assert set(index.documents()) == {"a"}
    index.add([Piece("b", [4, 5, 6])])
    assert set(opened(tmp_path).documents()) == {"a", "b"}


def test_two_who_share_a_folder_hear_of_each_other(tmp_path: Path) -> None:
    mine, theirs = opened(tmp_path), opened(tmp_path)
    mine.add([Piece("a", [1, 2, 3])])
    theirs.add([Piece("b", [4, 5, 6])])
    assert set(theirs.documents()) == {"a", "b"}
    assert mine.search([4, 5]) == Matches()
    mine.refresh()
    assert mine.search([4, 5]).matched == 2
    theirs.remove(["a"])
    mine.refresh()
    assert mine.search([1, 2]) == Matches()


def test_a_merge_that_was_overtaken_is_thrown_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, theirs = opened(tmp_path), opened(tmp_path)
    for seed in (1, 2):
        mine.add([Piece("a", words(seed, 20_000)), Piece("b", [5, 6, 7])])
    real = sorted_contexts

    def slow(stream: Ids) -> Ids:
        theirs.remove(["a"])
        return real(stream)

    monkeypatch.setattr("slipstream.drafters.text_index.index.sorted_contexts", slow)
    mine.tidy()
    assert set(mine.documents()) == {"b"} == set(opened(tmp_path).documents())
    assert continuations(mine.search([5, 6])) == {(7,): 2}


@pytest.mark.slow
def test_two_processes_lose_nothing(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from slipstream.drafters.text_index.index import Piece, TextIndex\n"
        "index = TextIndex(Path(sys.argv[1]), 'v1', 200_000)\n"
        "for n in range(15):\n"
        "    index.add([Piece(f'{sys.argv[2]} {n}', list(range(100 * n, 100 * n + 30)))])\n"
        "    if n % 5 == 4:\n"
        "        index.remove([f'{sys.argv[2]} {n - 1}'])\n"
    )
    running = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path), who]) for who in ("one", "two")]
    assert [process.wait(120) for process in running] == [0, 0]
    index = opened(tmp_path)
    assert set(index.documents()) == {f"{who} {n}" for who in ("one", "two") for n in range(15) if n % 5 != 3}
    assert len(index.search([100, 101]).ahead) == 2


def test_threads_may_add_tidy_and_search_at_once(tmp_path: Path) -> None:
    index, errors = opened(tmp_path), list[BaseException]()
    index.add([Piece("always", [1, 2, 3])])

    def work(number: int) -> None:
        try:
            for n in range(10):
                if number == 2:
                    index.tidy()
                elif number == 3:
                    assert continuations(index.search([1, 2])) == {(3,): 1}
                    index.refresh()
                else:
                    index.add([Piece(f"{number} {n}", [*words(n, 30), 100])])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(index.documents()) == 21 == len(opened(tmp_path).documents())


def test_waiting_for_the_lock_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = opened(tmp_path)
    monkeypatch.setattr(storage, "_LOCK_SECONDS", 0.01)
    with storage.locked(tmp_path), pytest.raises(SlipstreamError, match="another slipstream"):
        index.add([Piece("a", [1, 2, 3])])
    index.add([Piece("a", [1, 2, 3])])


# --- foreign and damaged files --------------------------------------------------------------------------------------


def test_only_the_owner_can_read_it(tmp_path: Path) -> None:
    folder = tmp_path / "home" / "index"
    folder.mkdir(parents=True, mode=0o755)
    before = os.umask(0)
    try:
        index = opened(folder)
        for name in "abc":
            index.add([Piece(name, words(1, 40))])
        index.remove(["b"])
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


def test_another_vocabulary_is_refused(tmp_path: Path) -> None:
    opened(tmp_path).add([Piece("a", [1, 2, 3])])
    for vocabulary, n_vocab in (("v2", VOCABULARY), ("v1", 300)):
        with pytest.raises(SlipstreamError, match="another vocabulary"):
            TextIndex(tmp_path, vocabulary, n_vocab)
    assert TextIndex.existing(tmp_path / "none") is None
    assert (found := TextIndex.existing(tmp_path)) and found.search([1, 2]).matched == 2


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    for name in ("notes.segment", "1.segment.bak", "letter.txt"):
        (tmp_path / name).write_text("mine")
    (tmp_path / "77.segment").write_text("left by a kill")
    index = opened(tmp_path)
    index.add([Piece("a", [1, 2, 3])])
    assert {path.name for path in tmp_path.iterdir()} >= {"notes.segment", "1.segment.bak", "letter.txt"}
    assert not (tmp_path / "77.segment").exists()


def manifest_with(folder: Path, **changes: object) -> str:
    return json.dumps({**json.loads((folder / MANIFEST).read_bytes()), **changes})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"format": 2}, "format"),
        ({"segments": ["../secret.segment"]}, "damaged"),
        ({"segments": ["9.segment"]}, "missing"),
        ({"segments": 5}, "damaged"),
        ({"next": "x"}, "damaged"),
        ({"vocabulary": None}, "another vocabulary"),
    ],
)
def test_a_manifest_that_makes_no_sense(changes: dict[str, object], says: str, tmp_path: Path) -> None:
    opened(tmp_path).add([Piece("a", [1, 2, 3])])
    (tmp_path / MANIFEST).write_text(manifest_with(tmp_path, **changes))
    with pytest.raises(SlipstreamError, match=says) as refusal:
        opened(tmp_path)
    assert refusal.value.hint
    assert (tmp_path / "1.segment").exists()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b"null"])
def test_a_manifest_that_is_none(content: bytes, tmp_path: Path) -> None:
    opened(tmp_path)
    (tmp_path / MANIFEST).write_bytes(content)
    with pytest.raises(SlipstreamError, match="damaged"):
        opened(tmp_path)


@pytest.mark.slow
def test_a_segment_of_any_shorter_length_is_damaged(tmp_path: Path) -> None:
    opened(tmp_path).add([Piece("a", [1, 2, 3])])
    path = tmp_path / "1.segment"
    whole = path.read_bytes()
    for content in (*(whole[:length] for length in range(len(whole))), whole + b"x", b"GGUF" + whole[4:]):
        path.write_bytes(content)
        with pytest.raises(SlipstreamError, match="damaged"):
            opened(tmp_path)


def test_ids_and_places_out_of_bounds_are_damage(tmp_path: Path) -> None:
    opened(tmp_path).add([Piece("a", [1, 2, 3])])
    path = tmp_path / "1.segment"
    whole = path.read_bytes()
    text = 40 + 4 * PADDING
    places = 40 + 4 * (2 * PADDING + 4)
    assert struct.unpack_from(">4i", whole, text) == (3, 2, 1, -1)
    for at, number in ((text, struct.pack(">I", VOCABULARY)), (places, struct.pack("=I", 5)), (places, b"\xff" * 4)):
        path.write_bytes(whole[:at] + number + whole[at + 4 :])
        with pytest.raises(SlipstreamError, match=r"damaged: 1\.segment"):
            opened(tmp_path)


@pytest.mark.parametrize("seed", range(3))
def test_a_flipped_byte_is_refused_or_harmless(seed: int, tmp_path: Path) -> None:
    index = opened(tmp_path, 50)
    index.add([Piece("a", words(seed, 60)), Piece("b", words(seed + 1, 30))])
    path = tmp_path / "1.segment"
    whole = path.read_bytes()
    rng, refused = random.Random(seed), 0
    for _ in range(150):
        at = rng.randrange(len(whole))
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << rng.randrange(8)]) + whole[at + 1 :])
        try:
            index = opened(tmp_path, 50)
        except SlipstreamError:
            refused += 1
            continue
        for end in range(20):
            found = index.search(words(seed, 60)[:end])
            assert all(-1 <= token < 50 for row in found.ahead for token in row)
    assert refused > 50


def test_damage_that_happens_later_leaves_what_was_open(tmp_path: Path) -> None:
    index = opened(tmp_path)
    index.add([Piece("a", [1, 2, 3])])
    (tmp_path / MANIFEST).write_text("broken")
    for change in (index.refresh, index.tidy, lambda: index.remove(["a"])):
        with pytest.raises(SlipstreamError, match="damaged"):
            change()
    assert index.search([1, 2]).matched == 2
