"""The folder of the index through kills, full disks, company and damage."""

import errno
import os
import random
import stat
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from tests.drafters import test_text_index
from tests.drafters.test_text_index import VOCABULARY, continuations, opened, words

from slipstream.drafters import text_index
from slipstream.drafters.text_index import FILE, LOCK, TextIndex, TextPiece
from slipstream.models.errors import SlipstreamError
from slipstream.models.files import locked

quick_disk = test_text_index.quick_disk


# --- kills, full disks, company -------------------------------------------------------------------------------------


class Killed(BaseException):
    pass


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


ADDED = [TextPiece("a", [1, 2, 3, 4]), TextPiece("c", words(3, 50))]


@pytest.mark.slow
@pytest.mark.parametrize("change", [lambda index: index.add(ADDED), lambda index: index.remove(["a"])])
def test_killed_at_any_call_it_holds_the_old_or_the_new(
    change: Callable[[TextIndex], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[tuple[tuple[str, int], ...]] = set()
    for at in range(100):
        folder = tmp_path / str(at)
        index = opened(folder)
        for size in (300, 200):
            index.add([TextPiece("a", words(size, size)), TextPiece("b", [5, 6, 7])])
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
        assert {path.name for path in folder.iterdir()} >= {FILE, LOCK}
        if ended:
            assert at > 4, "nothing was cut"
            break
        change(again)  # goes through now
        assert {path.name for path in folder.iterdir()} == {FILE, LOCK}
        assert continuations(again.search([5, 6])) == {(7,): 2}
    else:
        pytest.fail("it never came to its end")
    assert tuple(sorted((name, document.tokens) for name, document in before.items())) in seen
    assert len(seen) == 2


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_full_disk_is_said_and_changes_nothing(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = opened(tmp_path)
    index.add([TextPiece("a", [1, 2, 3])])
    with monkeypatch.context() as patch:
        dying(patch, 0, OSError(errno.ENOSPC, "No space left on device"), (call,))
        with pytest.raises(SlipstreamError, match="no space left on device"):
            index.add([TextPiece("b", [4, 5, 6])])
    assert set(index.documents()) == {"a"}
    index.add([TextPiece("b", [4, 5, 6])])
    assert set(opened(tmp_path).documents()) == {"a", "b"}


@pytest.mark.slow
def test_two_processes_lose_nothing(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from slipstream.drafters.text_index import TextPiece, TextIndex\n"
        "index = TextIndex(Path(sys.argv[1]), 'v1', 200_000)\n"
        "for n in range(15):\n"
        "    index.add([TextPiece(f'{sys.argv[2]} {n}', list(range(100 * n, 100 * n + 30)))])\n"
        "    if n % 5 == 4:\n"
        "        index.remove([f'{sys.argv[2]} {n - 1}'])\n"
    )
    running = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path), who]) for who in ("one", "two")]
    assert [process.wait(120) for process in running] == [0, 0]
    index = opened(tmp_path)
    assert set(index.documents()) == {f"{who} {n}" for who in ("one", "two") for n in range(15) if n % 5 != 3}
    assert len(index.search([100, 101]).ahead) == 2


def test_threads_may_add_and_search_at_once(tmp_path: Path) -> None:
    index, errors = opened(tmp_path), list[BaseException]()
    index.add([TextPiece("always", [1, 2, 3])])

    def work(number: int) -> None:
        try:
            for n in range(10):
                if number == 3:
                    assert continuations(index.search([1, 2])) == {(3,): 1}
                    index.refresh()
                else:
                    index.add([TextPiece(f"{number} {n}", [*words(n, 30), 100])])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(index.documents()) == 31 == len(opened(tmp_path).documents())


def test_waiting_for_the_lock_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = opened(tmp_path)
    monkeypatch.setattr(text_index, "_LOCK_SECONDS", 0.01)
    with locked(tmp_path / LOCK), pytest.raises(SlipstreamError, match="another slipstream"):
        index.add([TextPiece("a", [1, 2, 3])])
    index.add([TextPiece("a", [1, 2, 3])])


# --- foreign and damaged files --------------------------------------------------------------------------------------


def test_only_the_owner_can_read_it(tmp_path: Path) -> None:
    folder = tmp_path / "home" / "index"
    folder.mkdir(parents=True, mode=0o755)
    before = os.umask(0)
    try:
        index = opened(folder)
        for name in "abc":
            index.add([TextPiece(name, words(1, 40))])
        index.remove(["b"])
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


def test_another_vocabulary_is_refused(tmp_path: Path) -> None:
    opened(tmp_path).add([TextPiece("a", [1, 2, 3])])
    for vocabulary, n_vocab in (("v2", VOCABULARY), ("v1", 300)):
        with pytest.raises(SlipstreamError, match="another vocabulary"):
            TextIndex(tmp_path, vocabulary, n_vocab)
    assert TextIndex.existing(tmp_path / "none") is None
    assert (found := TextIndex.existing(tmp_path)) and found.search([1, 2]).matched == 2


@pytest.mark.parametrize(
    "table", [b"[]", b"null", b'["v1", 200000, 5]', b'["v1", 200000, [["a", 0, 3, -4]]]', b"[" * 100_000, b"\xff"]
)
def test_a_list_of_documents_that_makes_no_sense(table: bytes, tmp_path: Path) -> None:
    opened(tmp_path).add([TextPiece("a", [1, 2, 3])])
    whole = (tmp_path / FILE).read_bytes()
    _, _, length, *_ = struct.unpack_from("=8sIIQQ", whole)
    head = whole[:12] + struct.pack("=I", len(table))
    (tmp_path / FILE).write_bytes(head + whole[16 : len(whole) - length] + table)
    with pytest.raises(SlipstreamError, match="damaged"):
        opened(tmp_path)


@pytest.mark.slow
def test_a_file_of_any_shorter_length_is_damaged(tmp_path: Path) -> None:
    opened(tmp_path).add([TextPiece("a", [1, 2, 3])])
    whole = (tmp_path / FILE).read_bytes()
    for content in (*(whole[:length] for length in range(len(whole))), whole + b"x", b"GGUF" + whole[4:]):
        (tmp_path / FILE).write_bytes(content)
        with pytest.raises(SlipstreamError, match="damaged"):
            opened(tmp_path)


def test_ids_and_places_out_of_bounds_are_damage(tmp_path: Path) -> None:
    opened(tmp_path).add([TextPiece("a", [1, 2, 3])])
    path = tmp_path / FILE
    whole = path.read_bytes()
    text = 32 + 4 * text_index.DEPTH
    places = 32 + 4 * (2 * text_index.DEPTH + 4)
    assert struct.unpack_from(">4i", whole, text) == (3, 2, 1, -1)
    for at, number in ((text, struct.pack(">I", VOCABULARY)), (places, struct.pack("=I", 5)), (places, b"\xff" * 4)):
        path.write_bytes(whole[:at] + number + whole[at + 4 :])
        with pytest.raises(SlipstreamError, match=r"damaged: text\.index"):
            opened(tmp_path)


@pytest.mark.parametrize("seed", range(3))
def test_a_flipped_byte_is_refused_or_harmless(seed: int, tmp_path: Path) -> None:
    index = opened(tmp_path, 50)
    index.add([TextPiece("a", words(seed, 60)), TextPiece("b", words(seed + 1, 30))])
    path = tmp_path / FILE
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


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such file")
def test_a_file_without_an_end_is_not_read(tmp_path: Path) -> None:
    opened(tmp_path).add([TextPiece("a", [1, 2, 3])])
    (tmp_path / FILE).unlink()
    (tmp_path / FILE).symlink_to("/dev/zero")
    with pytest.raises(SlipstreamError, match="damaged"):
        opened(tmp_path)
