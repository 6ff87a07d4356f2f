"""The index on disk against plain comparing: its order, what it finds, what adding and removing leave."""

import os
import random
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.bench import text_index as costs
from tests.models.conftest import TOKENS, TYPES, RawModel, small_model

from slipstream.app.chats.deletion_hooks import forget
from slipstream.drafters import text_index
from slipstream.drafters.text_index import DEPTH, FILE, Matches, TextIndex, TextPiece, folder_of, open_index
from slipstream.models.errors import SlipstreamError
from slipstream.models.gguf.reader import Header, read_header
from slipstream.models.gguf.vocabulary import tokenizer_digest
from slipstream.models.types import Token

Texts = list[list[Token]]
VOCABULARY = 200_000
small_texts = st.lists(st.lists(st.integers(0, 2), max_size=30), max_size=5)
wide_texts = st.lists(st.lists(st.sampled_from([0, 1, 65_534, 65_535, 199_999]), max_size=30), max_size=5)


@pytest.fixture(scope="module", autouse=True)
def quick_disk() -> Iterator[None]:
    """Waiting for the disk would take most of the time here, and shows nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


def opened(folder: Path, n_vocab: int = VOCABULARY) -> TextIndex:
    return TextIndex(folder, "v1", n_vocab)


def pieces(texts: Texts) -> list[TextPiece]:
    return [TextPiece(f"text {number}", text) for number, text in enumerate(texts)]


def continuations(found: Matches) -> Counter[tuple[Token, ...]]:
    """What followed, in reading order, up to the end of the piece."""
    rows = [row[::-1] for row in found.ahead]
    return Counter(row[: row.index(-1)] if -1 in row else row for row in rows)


def plain_search(texts: Texts, tail: list[Token]) -> tuple[int, Counter[tuple[Token, ...]]]:
    """The longest match of 2 to 16 tokens that something follows, and what follows it."""
    for matched in range(min(len(tail), DEPTH), 1, -1):
        following: Counter[tuple[Token, ...]] = Counter()
        for text in texts:
            for end in range(matched, len(text)):
                if text[end - matched : end] == tail[-matched:]:
                    following[tuple(text[end : end + DEPTH])] += 1
        if following:
            return matched, following
    return 0, Counter()


def words(seed: int, size: int, vocabulary: int = 50) -> list[Token]:
    rng = random.Random(seed)
    known = [[rng.randrange(vocabulary) for _ in range(rng.randint(1, 9))] for _ in range(12)]
    return [token for _ in range(size) for token in rng.choice(known)][:size]


# --- searching ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@given(st.one_of(small_texts, wide_texts), st.data())
@settings(max_examples=100, deadline=None)
def test_search_is_plain_comparing(tmp_path_factory: pytest.TempPathFactory, texts: Texts, data: st.DataObject) -> None:
    index = opened(tmp_path_factory.mktemp("index"))
    for piece in pieces(texts):
        index.add([piece])
    known = [text for text in texts if text]
    tail = data.draw(st.lists(st.integers(0, 2), max_size=8))
    if known:
        text = known[data.draw(st.integers(0, len(known) - 1))]
        tail += text[: data.draw(st.integers(0, len(text)))]
    found = index.search(tail, most=10_000)
    assert (found.matched, continuations(found)) == plain_search(texts, tail)


def test_many_places_are_sampled_evenly_over_the_whole_range(tmp_path: Path) -> None:
    index = opened(tmp_path)
    index.add([TextPiece("a", [token for n in range(300) for token in (n, 7, 8, 1000 + n)])])
    index.add([TextPiece("b", [token for n in range(100) for token in (300 + n, 7, 8, 2000 + n)])])
    found = index.search([7, 8], most=40)
    assert (found.matched, len(found.ahead)) == (2, 40)
    nexts = [row[-1] for row in found.ahead]
    of_a = [token for token in nexts if token < 2000]
    assert len(of_a) == 30
    assert sorted(nexts) == sorted(set(nexts))
    assert max(of_a) > 1250 and min(of_a) < 1050


def test_a_match_needs_as_many_tokens_as_asked_for(tmp_path: Path) -> None:
    index = opened(tmp_path)
    index.add([TextPiece("a", [1, 2, 3, 4])])
    assert index.search([9, 2]) == Matches() == index.search([]) == index.search([9, 9, 9])
    assert continuations(index.search([9, 2], least=1)) == {(3, 4): 1}
    assert index.search([2, 3], least=3) == Matches()
    assert index.search([3, 4]) == Matches()  # nothing follows


def test_nothing_is_matched_across_pieces(tmp_path: Path) -> None:
    index = opened(tmp_path)
    index.add([TextPiece("a", [1, 2, 3]), TextPiece("a", [4, 5, 6]), TextPiece("b", [7, 8, 9])])
    assert continuations(index.search([1, 2])) == {(3,): 1}
    for tail in ([3, 4], [6, 7], [3, 7], [6, 4], [9, 1], [9, 4]):
        assert index.search(tail) == Matches()


# --- adding and removing --------------------------------------------------------------------------------------


def test_an_index_lives_on_in_its_folder(tmp_path: Path) -> None:
    index = opened(tmp_path)
    index.add([TextPiece("chat", [1, 2, 3], stamp=5)])
    index.add([TextPiece("chat", [4, 5, 6, 7], stamp=9), TextPiece("notes", [])])
    index.close()
    assert index.search([1, 2]) == Matches()
    index = opened(tmp_path)
    chat, notes = index.documents()["chat"], index.documents()["notes"]
    assert (chat.stamp, chat.tokens, notes.tokens) == (9, 7, 0)
    assert continuations(index.search([4, 5])) == {(6, 7): 1}
    size = index.size()
    assert (size.tokens, size.documents) == (7, 2)
    assert size.bytes == (tmp_path / FILE).stat().st_size


@pytest.mark.parametrize("seed", range(6))
def test_any_life_finds_what_a_plain_list_of_texts_holds(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    index, texts = opened(tmp_path), dict[str, Texts]()
    for step in range(60):
        event = rng.random()
        if event < 0.6:
            new = [
                (f"d{rng.randrange(9)}", words(rng.randrange(99), rng.randint(0, 60), 6))
                for _ in range(rng.choice([1, 3]))
            ]
            index.add([TextPiece(name, text, step) for name, text in new])
            for name, text in new:
                texts.setdefault(name, []).append(text)
        elif event < 0.8:
            names = rng.sample([f"d{n}" for n in range(9)], 2)
            tokens = sum(len(text) for name in names for text in texts.pop(name, []))
            assert index.remove(names) == tokens
        elif event < 0.9:
            index = opened(tmp_path)
        else:
            name, text = f"d{rng.randrange(9)}", words(step, 9, 6)
            index.add([TextPiece(name, text, step)], instead_of=[name])
            texts[name] = [text]
        assert {name: d.tokens for name, d in index.documents().items()} == {
            name: sum(map(len, parts)) for name, parts in texts.items()
        }
        flat = [text for parts in texts.values() for text in parts]
        tail = rng.choice(flat)[:20] if flat else [1, 2]
        found = index.search(tail, most=10_000)
        assert (found.matched, continuations(found)) == plain_search(flat, tail)
        assert {path.name for path in tmp_path.iterdir()} <= {FILE, text_index.LOCK}


def test_removed_tokens_are_in_no_file(tmp_path: Path) -> None:
    index = opened(tmp_path)
    secret = [150_000 + 7 * n for n in range(40)]
    for number in range(5):
        index.add([TextPiece(f"d{number}", words(number, 90))])
        index.add([TextPiece("secret", secret[8 * number : 8 * number + 8])])
    assert index.search(secret[:3]).matched == 3

    def traces() -> int:
        raw = [path.read_bytes() for path in tmp_path.iterdir()]
        return sum(struct.pack(order, token) in file for file in raw for token in secret for order in ("<I", ">I"))

    assert traces() >= 40
    assert index.remove(["secret", "never heard of"]) == 40
    assert traces() == 0
    assert all(b"secret" not in path.read_bytes() for path in tmp_path.iterdir())
    assert index.search(secret[:3]) == Matches() == opened(tmp_path).search(secret[:3])
    assert set(index.documents()) == {f"d{number}" for number in range(5)}


def test_forgetting_reaches_every_vocabulary(tmp_path: Path) -> None:
    for vocabulary in ("one", "two"):
        TextIndex(tmp_path / vocabulary, vocabulary, 50).add(
            [TextPiece("chat", [1, 2, 3]), TextPiece("other", [4, 5, 6])]
        )
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("not an index")
    assert forget(tmp_path, "chat".__eq__) == {"chat"}
    assert [TextIndex(tmp_path / v, v, 50).size().tokens for v in ("one", "two")] == [3, 3]
    assert forget(tmp_path, "chat".__eq__) == set() == forget(tmp_path / "missing", "chat".__eq__)
    (tmp_path / "one" / FILE).write_text("broken")
    with pytest.raises(SlipstreamError, match="damaged"):
        forget(tmp_path, "other".__eq__)
    assert TextIndex(tmp_path / "two", "two", 50).size().tokens == 0  # the whole one was done all the same


def test_text_that_is_no_longer_wanted_is_not_added(tmp_path: Path) -> None:
    index, other = opened(tmp_path), opened(tmp_path)
    index.add([TextPiece("a", [1, 2, 3])])

    def known() -> bool:
        return "b" in index.documents()  # asked under the lock, with all that others have changed

    other.add([TextPiece("c", [1, 2, 4])])
    assert not index.add([TextPiece("d", [1, 2, 5])], known)
    assert set(opened(tmp_path).documents()) == set(index.documents()) == {"a", "c"}
    other.add([TextPiece("b", [6, 7])])
    assert index.add([TextPiece("d", [1, 2, 5])], known)
    assert set(opened(tmp_path).documents()) == {"a", "b", "c", "d"}


def test_an_index_is_empty_until_it_holds_a_token(tmp_path: Path) -> None:
    index = opened(tmp_path)
    assert index.empty
    index.add([TextPiece("a", [], 7)])
    assert index.empty and index.documents()["a"].stamp == 7
    index.add([TextPiece("b", [1])])
    assert not index.empty and not opened(tmp_path).empty
    assert index.remove(["a"]) == 0 and set(opened(tmp_path).documents()) == {"b"}


def test_tokens_outside_the_vocabulary_are_refused(tmp_path: Path) -> None:
    index = opened(tmp_path, 10)
    for token in (-1, 10):
        with pytest.raises(ValueError, match="vocabulary"):
            index.add([TextPiece("a", [1, token])])
    assert index.size().documents == 0


@pytest.mark.slow
def test_an_index_is_built_and_drafted_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "_BATCH", 4_000)
    found = costs.measure(tmp_path / "index", 9_000, (50, 400))
    assert found.tokens == 9_000
    assert 8 <= found.bytes < 9
    assert min(found.build, found.reply, found.remove) > 0
    assert [step.history for step in found.steps] == [50, 400]
    assert all(step.microseconds > 0 and step.nodes > 0.1 for step in found.steps)
    assert "retrieval, 9,000 indexed tokens" in str(found) and "step at 400 tokens of history" in str(found)


# --- which models share an index --------------------------------------------------------------------------------------


def header(tmp_path: Path, model: RawModel) -> Header:
    path = tmp_path / "model.gguf"
    path.write_bytes(model.bytes())
    return read_header(path)


def test_models_that_spell_alike_share_an_index(tmp_path: Path) -> None:
    mine = header(tmp_path, small_model())
    again = header(tmp_path, small_model().text("general.name", "Another").weights((8,)))
    ends = header(tmp_path, small_model().number("tokenizer.ggml.eos_token_id", 9).text("tokenizer.chat_template", "x"))
    assert mine.fingerprint != again.fingerprint
    assert folder_of(tmp_path, mine) == folder_of(tmp_path, again) == folder_of(tmp_path, ends)
    open_index(tmp_path / "index", mine).add([TextPiece("a", [1, 2, 3])])
    assert open_index(tmp_path / "index", again).size().tokens == 3


@pytest.mark.parametrize(
    "other",
    [
        small_model().vocabulary([*TOKENS[:-1], "<|end|>"], TYPES),
        small_model().vocabulary(TOKENS, [*TYPES[:-1], 1]),
        small_model().text("tokenizer.ggml.pre", "llama-bpe"),
        small_model().number("tokenizer.ggml.add_space_prefix", 0, 7),
        small_model().array("tokenizer.ggml.scores", 6, [0.0] * len(TOKENS)),
    ],
)
def test_another_spelling_has_an_index_of_its_own(other: RawModel, tmp_path: Path) -> None:
    mine, theirs = header(tmp_path, small_model()), header(tmp_path, other)
    assert tokenizer_digest(mine) != tokenizer_digest(theirs)
    root = tmp_path / "index"
    open_index(root, mine).add([TextPiece("a", [1, 2, 3])])
    assert open_index(root, theirs).empty
    assert root.stat().st_mode & 0o077 == 0


def test_a_place_that_cannot_be_written_is_an_error_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SlipstreamError, match="cannot write the text index"):
        open_index(tmp_path / "file", header(tmp_path, small_model()))
