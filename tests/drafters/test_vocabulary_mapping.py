from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drafters.changed_file import in_other_tokens, in_sentencepiece
from tests.models.fake_target import FakeTarget

from slipstream.app.engine.load import load
from slipstream.app.engine.session import Session
from slipstream.app.library.load_request import BUNDLED_DRAFT, BUNDLED_TARGET
from slipstream.app.library.resolve_model import choose
from slipstream.app.platform.paths import Paths
from slipstream.app.protocol.events import Done
from slipstream.app.protocol.requests import Generate, Message, Sampling
from slipstream.drafters.base import NO_DRAFT, ShouldExtend, Step
from slipstream.drafters.draft_model import TranslatedModel
from slipstream.drafters.vocabulary_mapping import Tokenizer, VocabularyMapping, shared_controls
from slipstream.models.gguf.reader import read_header
from slipstream.models.llama.model import LlamaModel
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import History, Token

BUNDLED = Paths.default({}).bundled
CONTROLS = ("<end>", "<turn>")


class Longest:
    """A vocabulary that takes the longest piece that fits; the last tokens are control tokens."""

    def __init__(
        self, pieces: Sequence[str | bytes], controls: Sequence[str] = CONTROLS, opening: bool = False
    ) -> None:
        self.all = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
        self.names = dict(zip(controls, range(len(self.all), 99), strict=False))
        self.ends = frozenset({self.names["<end>"]})
        self.size = len(self.all) + len(controls)
        self.start = [self.names["<turn>"]] if opening else []

    def tokenize(self, text: str, special: bool) -> list[Token]:
        raw, tokens = text.encode(), list[Token]()
        while raw:
            token = max((t for t, p in enumerate(self.all) if raw.startswith(p)), key=lambda t: len(self.all[t]))
            tokens.append(token)
            raw = raw[len(self.all[token]) :]
        return tokens

    def piece(self, token: Token) -> bytes:
        return self.all[token] if token < len(self.all) else b""

    def opening(self) -> list[Token]:
        return self.start

    def text(self, tokens: Sequence[Token]) -> bytes:
        return b"".join(map(self.piece, tokens))


TARGET = Longest(["a", "b", " ", "\n", b"\xc3", b"\xa9", " a", "ab", "bab", "é", "\ufffd"])
DRAFT = Longest(["é", "ba", "\n", "b", " ", "a", " b", b"\xa9", b"\xc3", " ab", "\ufffd"], CONTROLS[::-1], opening=True)
SHARED = {TARGET.names[name]: DRAFT.names[name] for name in CONTROLS}
TEXTS = st.lists(st.integers(0, TARGET.size - 1), min_size=1, max_size=200)


def mapping() -> VocabularyMapping:
    return VocabularyMapping(TARGET, DRAFT, SHARED)


def followed(one: VocabularyMapping, history: list[Token]) -> list[Token]:
    """Follows a history to its end and checks that no more was touched than was said."""
    for _ in range(9):
        before = list(one.tokens)
        kept = one.follow(history)
        assert one.tokens[:kept] == before[:kept]
        if one.whole:
            return one.tokens
    pytest.fail("it never got there")


@settings(max_examples=30, deadline=None)
@given(TEXTS, st.data())
def test_the_mapped_text_is_that_of_the_history_however_it_grew(history: list[Token], data: st.DataObject) -> None:
    history.append(TARGET.all.index(b"a"))  # a character that is cut in two waits for its end
    one = mapping()
    while data.draw(st.booleans(), "cut and grow"):
        one.rewind(data.draw(st.integers(0, len(history))))
        start = data.draw(st.integers(0, len(history)))
        one.begin()
        one.follow(history[:start] + data.draw(TEXTS))
        one.begin()
    tokens = followed(one, history)
    stretches = [list(group) for control, group in groupby(history, SHARED.__contains__) if not control]
    said = "".join(TARGET.text(stretch).decode("utf-8", "replace") for stretch in stretches)
    assert DRAFT.text(tokens).decode("utf-8", "replace") == said
    controls = [SHARED[token] for token in history if token in SHARED]
    assert [token for token in tokens if token in SHARED.values()] == [*DRAFT.start, *controls]


def test_a_step_costs_work_for_its_new_tokens_only() -> None:
    history = TARGET.tokenize("ab bab ab a " * 200, False)
    one = mapping()
    followed(one, history)
    size = len(one.tokens)
    for _ in range(20):
        history += TARGET.tokenize("ab a", False)
        assert one.follow(history) > size - 20
        size = len(one.tokens)


def test_a_long_prompt_is_translated_in_parts_and_counted_without_that() -> None:
    for text in ("ab bab ab a " * 300, "ab" * 1500, "é" * 900):
        history = TARGET.tokenize(text, False)
        one = mapping()
        one.follow(history)
        assert not one.whole and 0 < len(one.tokens) < 2000
        assert DRAFT.text(followed(one, history)).decode() == text
    one = mapping()
    history = TARGET.tokenize("ab bab ab a " * 30, False)
    assert one.behind(history) == len(history)
    one.follow(history)
    before, left = list(one.tokens), one.behind(history)
    assert left < len(history) and one.behind([*history, history[0]]) == left + 1
    assert one.behind([history[1], *history]) > left + 1  # another chat, which it has not begun
    assert one.tokens == before and one.behind(history) == left


def test_words_that_would_have_changed_the_last_token_are_not_drafted() -> None:
    one = mapping()
    followed(one, TARGET.tokenize("b a", False))
    assert one.continued(b"b") == [(TARGET.all.index(b"b"), 1)]
    one.begin()
    followed(one, TARGET.tokenize("a", False))
    assert one.continued(b"b") == []  # the target would have written "ab" at once


@settings(max_examples=30, deadline=None)
@given(TEXTS, st.text("ab é\n", max_size=20))
def test_drafted_tokens_stand_for_the_drafted_bytes(history: list[Token], text: str) -> None:
    one = mapping()
    one.follow(history)
    at = 0
    for token, end in one.continued(text.encode()) if one.whole else ():
        assert TARGET.piece(token) == text.encode()[at:end]
        at = end
    assert at in (0, len(text.encode()))


def test_a_tokenizer_that_puts_a_space_first_is_not_taken_in() -> None:
    class Spaced(Longest):
        def tokenize(self, text: str, special: bool) -> list[Token]:
            return super().tokenize(" " + text, special)

    spaced = Tokenizer(Spaced(TARGET.all))
    for text in ("ab", " ab", "\nab", "\n\n", "é a"):
        assert TARGET.text(spaced.inside(text)).decode() == text


def always(_path: float, depth: int) -> bool:
    return depth <= 8


def likely(path: float, depth: int) -> bool:
    return path >= 0.3 and depth <= 8


def drafter() -> tuple[TranslatedModel, FakeTarget, VocabularyMapping]:
    model, one = FakeTarget(n_vocab=DRAFT.size, order=1), mapping()
    return TranslatedModel(model, FakeTarget(n_vocab=TARGET.size).abilities, one), model, one


def test_it_drafts_what_its_model_would_write() -> None:
    drafted = 0
    for at in range(40):
        some, _, one = drafter()
        history = History(TARGET.tokenize(f"{'ab' * (at % 3)} {'ba' * (at % 5)} a", False))
        some.begin(history)
        draft = some.draft(history, always, Sampler())
        alone = FakeTarget(n_vocab=DRAFT.size, order=1)
        last, text = one.tokens[-1], b""
        for _ in range(24):
            last = int(alone.evaluate(last).logits[0].argmax())
            alone.keep(())
            if not DRAFT.piece(last):
                break
            text += DRAFT.piece(last)
        assert text.startswith(TARGET.text(draft.tree.tokens))
        assert all(0 < prob <= 1 for prob in draft.probs) and len(draft.tree) <= 8
        drafted += len(draft.tree)
    assert drafted > 20


@pytest.mark.parametrize("should_extend", [always, likely])
def test_its_cache_follows_the_history_whatever_the_target_writes(should_extend: ShouldExtend) -> None:
    some, model, one = drafter()
    history = History(TARGET.tokenize("ab a", False))
    nothing = FakeTarget().evaluate(0)
    some.begin(history)
    for at in range(60):
        draft = some.draft(history, should_extend, Sampler())
        if draft != NO_DRAFT:
            assert list(model.tokens)[: len(one.tokens)] == one.tokens
        right = draft.tree.tokens[: at % 4]
        tokens = (*right, (at * 5) % TARGET.size)
        history.tokens += tokens
        some.observe(history, Step(draft, tuple(range(len(right))), tokens, nothing))


def test_controls_are_matched_by_name(tmp_path: Path) -> None:
    target, draft = (
        read_header(BUNDLED / BUNDLED_TARGET),
        read_header(in_other_tokens(BUNDLED / BUNDLED_DRAFT, tmp_path / "other.gguf")),
    )
    shared = shared_controls(target, draft)
    assert {target.tokens[ours] for ours in shared} >= {"<|im_start|>", "<|im_end|>"}
    assert all(target.tokens[ours] == draft.tokens[theirs] for ours, theirs in shared.items())


def other_vocabulary(folder: Path, kind: str) -> Path:
    source, copy = BUNDLED / BUNDLED_DRAFT, folder / "other.gguf"
    return in_sentencepiece(source, copy) if kind == "sentencepiece" else in_other_tokens(source, copy, 1500)


@pytest.mark.parametrize("kind", ["fewer merges", "sentencepiece"])
def test_text_comes_back_whole_through_the_tokenizers_of_llama_cpp(kind: str, tmp_path: Path) -> None:
    with (
        closing(LlamaModel(BUNDLED / BUNDLED_TARGET)) as target,
        closing(LlamaModel(other_vocabulary(tmp_path, kind))) as draft,
    ):
        one = VocabularyMapping(target, draft, shared_controls(target.header, draft.header))
        text = "Hello there,  it's a fox.\n\nIn 2024 a café \U0001f600!\n  - déjà vu 东京都\n"
        history = target.tokenize(f"<|im_start|>user\n{text}<|im_end|>\n", True)
        for size in range(1, len(history) + 1):
            one.follow(history[:size])
        assert draft.pieces(one.tokens).decode() == f"user\n{text}\n" and one.tokens != history
        named = [draft.text_of(token) for token in one.tokens if not draft.piece(token)]
        assert named[-2:] == ["<|im_start|>", "<|im_end|>"] and named[:-2] == [*map(draft.text_of, draft.opening())]
        words = " The small fox was happy."
        assert [token for token, _ in one.continued(words.encode())] == target.tokenize(words, False)


@pytest.fixture(scope="module", params=["fewer merges", "sentencepiece", "target"])
def translated(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """The bundled pair, of which one has another vocabulary."""
    folder = tmp_path_factory.mktemp("models")
    ask = choose(Paths.default({}))
    if request.param == "target":
        ask = replace(ask, model=str(in_other_tokens(BUNDLED / BUNDLED_TARGET, folder / "target.gguf")))
    else:
        ask = replace(ask, draft_model=str(other_vocabulary(folder, request.param)))
    session, _ = load(replace(ask, heads=[], derived=None, index=None), lambda _: None)
    yield session
    session.close()


def reply(session: Session, drafter: str, prompt: str, temperature: float) -> Done:
    sampling = Sampling(temperature=temperature, seed=5)
    request = Generate(1, [Message("user", prompt)], sampling, drafter, max_tokens=40)
    return session.reply(request, lambda _: None, lambda: False)


@pytest.mark.slow
def test_across_vocabularies_the_text_is_the_targets_own(translated: Session) -> None:
    accepted = rejected = 0
    for prompt in ("Tell me about the sea", "Tell me a story about a small fox."):
        for temperature in (0.0, 0.2, 0.8, 1.5):
            plain, drafted = (reply(translated, name, prompt, temperature) for name in ("none", "draft"))
            assert (drafted.text, drafted.tokens, drafted.reason) == (plain.text, plain.tokens, plain.reason)
            accepted += drafted.speed.accepted
            rejected += drafted.speed.drafted - drafted.speed.accepted
    assert accepted > 0 and rejected > 0
