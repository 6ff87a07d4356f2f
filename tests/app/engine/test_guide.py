"""A budget of thoughts is ended by the model's own mark, at the same token with every drafter."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from tests.app.engine.forced import Forced
from tests.models.fake_target import FakeTarget

from slipstream.app.chats.reasoning import split
from slipstream.app.engine.guide import Guide, GuideVocabulary
from slipstream.app.engine.load import load
from slipstream.app.engine.loop import generate
from slipstream.app.engine.prompt import PromptBuilder
from slipstream.app.engine.session import Session
from slipstream.app.engine.stopping import FixedBudget, StopRules
from slipstream.app.protocol.events import Done, Stepped
from slipstream.app.protocol.requests import Generate, Load, Message, Sampling
from slipstream.drafters import registry
from slipstream.drafters.accept import Typical
from slipstream.drafters.base import Drafter, Plain
from slipstream.drafters.resources import Resources
from slipstream.models.chat_template.template import CHATML, ChatTemplate
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import Floats, History, Token

BUNDLED: Final = Path(__file__).parents[3] / "models" / "bundled"
MARK: Final = "</think>"
PIECES: Final[list[str]] = [
    *"abcdefghij klmnopqrstuvwxy", *sorted(set(MARK) - set("abcdefghijklmnopqrstuvwxy")), "ab", "</t", "é",
]  # fmt: skip
SIZE: Final = 64


def piece(token: Token) -> bytes:
    """Bytes of a token; two of them are each half of a character."""
    if token >= SIZE - 2:
        return b"\xc3" if token == SIZE - 1 else b"\xa9"
    return PIECES[token % len(PIECES)].encode()


def tokens_of(text: str) -> list[Token]:
    return [PIECES.index(char) for char in text]


VOCABULARY: Final = GuideVocabulary(piece, tokens_of)


def write(
    drafter: Drafter, budget: int, seed: int, thinks: str = MARK, size: int = 60, typical: bool = False
) -> list[Token]:
    target, history = FakeTarget(SIZE, seed=seed), History([1, 2, 3])
    sampler = Sampler(temperature=0.7, seed=seed)
    guide = Guide(sampler, 3, thinks, VOCABULARY, budget)
    rules = StopRules(frozenset(), 4000, size, (), piece)
    drafter.begin(history)
    target.prefill(history.tokens[:-1])
    room = FixedBudget(rules, least=0.0)
    rule = {"rule": Typical(0.3)} if typical else {}
    for step in generate(target, drafter, sampler, history, room, rules, lambda: False, guide=guide, **rule):
        room.add(step)
    return history.tokens[3:]


def row_of(size: int = SIZE) -> Floats:
    return np.random.default_rng(1).standard_normal(size, np.float32)


def text_of(tokens: Sequence[Token]) -> str:
    return b"".join(map(piece, tokens)).decode("utf-8", "replace")


@pytest.mark.parametrize("budget", [0, 1, 7, 23, 40])
def test_the_mark_stands_at_the_same_token_with_every_drafter(budget: int) -> None:
    abilities = FakeTarget(SIZE).abilities
    for seed in range(3):
        plain = write(Plain(), budget, seed)
        at = text_of(plain).find(MARK)
        thoughts = next(n for n in range(len(plain)) if MARK in text_of(plain[: n + 1])) + 1 - len(MARK)
        assert at >= 0 and budget <= thoughts <= budget + 8, text_of(plain)
        assert plain[thoughts : thoughts + len(MARK)] == tokens_of(MARK)
        parts = Resources(abilities)
        names = [name for name in registry.METHODS if name != "none" and not registry.why_not(name, parts)]
        assert len(names) >= 3
        for name in names:
            with closing(registry.make(name, parts)) as drafter:
                assert write(drafter, budget, seed) == plain, name
        for right in (0.0, 0.6, 1.0):
            for width in (1, 3):
                assert write(Forced(plain, abilities, right, 6, width), budget, seed) == plain, (right, width)
                shifted = Forced(plain[1:], abilities, right, 6, width)  # drafts of what stands elsewhere
                assert write(shifted, budget, seed) == plain


def test_a_reply_that_ends_its_thoughts_in_time_is_not_touched() -> None:
    said = "ab" + MARK + "cd"
    budget = Guide(Sampler(0.0), 0, MARK, VOCABULARY, 9)
    row, history = row_of(), History([])
    for token in tokens_of(said):
        assert budget.pick(row, history) == Sampler(0.0).pick(row, history)
        history.tokens.append(token)
    for _ in range(20):
        assert budget.pick(row, history) == Sampler(0.0).pick(row, history)
        history.tokens.append(3)


def test_a_character_and_a_mark_are_whole_before_the_forced_one() -> None:
    row = row_of()
    free = Sampler(0.0).pick(row, History([]))

    def next_after(said: list[Token], budget: int = 1) -> Token:
        return Guide(Sampler(0.0), 0, MARK, VOCABULARY, budget).pick(row, History(said))

    first = tokens_of(MARK)[0]
    assert free != first
    assert next_after(tokens_of("a")) == first
    assert next_after([SIZE - 1]) == free, "half a character"
    assert next_after([SIZE - 1, SIZE - 2]) == first
    assert next_after(tokens_of("</")) == free, "the mark may come by itself"
    assert next_after(tokens_of("</a")) == first
    assert next_after(tokens_of("<" * 9)) == first, "but it is not waited for without end"
    assert next_after(tokens_of("a" + MARK[:3])) == tokens_of(MARK)[3]
    assert next_after(tokens_of("a" + MARK)) == free
    assert next_after(tokens_of("abc")) == first, "written without a budget"


def test_typical_acceptance_keeps_the_budget_too() -> None:
    plain = write(Plain(), 9, 2)
    text = text_of(write(Forced(plain, FakeTarget(SIZE).abilities, 0.5, 6, 3), 9, 2, typical=True))
    assert 9 <= text.find(MARK) <= 20


def test_a_channel_of_gpt_oss_is_closed_and_that_of_the_answer_opened() -> None:
    names = ["<|end|>", "<|start|>", "assistant", "<|channel|>", "final", "<|message|>", "analysis", *"abc"]
    pieces = [b"", *(name.encode() for name in names[1:])]  # llama.cpp gives no text for the end of a message
    said = [names.index(name) for name in ("<|channel|>", "analysis", "<|message|>", "a", "b")]
    vocabulary = GuideVocabulary(pieces.__getitem__, lambda text: [names.index(name) for name in _cut(text, names)])
    budget = Guide(Sampler(0.0), 0, "", vocabulary, 2)
    row, history = row_of(len(names)), History(said)
    for expected in ("<|end|>", "<|start|>", "assistant", "<|channel|>", "final", "<|message|>"):
        assert names[budget.pick(row, history)] == expected
        history.tokens.append(names.index(expected))
    assert budget.pick(row, history) == Sampler(0.0).pick(row, history)


def _cut(text: str, names: Sequence[str]) -> Iterator[str]:
    while text:
        name = next(name for name in names if text.startswith(name))
        text = text.removeprefix(name)
        yield name


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    opened, _ = load(Load(str(BUNDLED / "slipstream-mini-q8_0.gguf"), exact="always", n_ctx=1024), lambda _: None)
    tokenize, own = opened.model.prompts.control_tokens, opened.model.prompts
    opened.model.prompts = PromptBuilder(
        ChatTemplate(CHATML + "{% if add_generation_prompt %}{{ '<think>\n' }}{% endif %}"),
        lambda text, special, written=(), *, joins=False: tokenize(text) if special else own.tokens_of(text),
        [],
    )
    yield opened
    opened.close()


def reply(session: Session, request: Generate) -> tuple[Done, list[Token]]:
    tokens = list[Token]()

    def take(event: object) -> None:
        tokens.extend(event.tokens if isinstance(event, Stepped) else [])

    return session.reply(request, take, lambda: False), tokens


ASKED: Final = Generate(
    1,
    [Message("user", "Tell me a story about a small fox.")],
    Sampling(0.8, seed=1, reasoning_budget=20),
    max_tokens=70,
)


def test_the_bundled_model_thinks_no_longer_with_any_drafter(session: Session) -> None:
    plain, tokens = reply(session, ASKED)
    parts = split(plain.text, opened=True)
    mark = session.model.prompts.control_tokens(MARK)
    assert parts.thoughts and parts.answer and tokens[20 : 20 + len(mark)] == mark
    assert plain.speed.thought <= 20 + len(mark)
    names = [offer.name for offer in session.drafters.offers() if offer.usable]
    assert len(names) >= 4
    for name in names:
        assert reply(session, replace(ASKED, drafter=name))[1] == tokens, name
    session.drafters.put("forced", Forced(tokens, session.target.abilities, 0.7, 5, 3))
    assert reply(session, replace(ASKED, drafter="forced"))[1] == tokens


@pytest.mark.parametrize("size", [5, 19, 20, 21, 30])
def test_a_reply_that_goes_on_keeps_the_place_of_the_mark(session: Session, size: int) -> None:
    whole, tokens = reply(session, ASKED)
    begun = replace(ASKED, begun=tokens[:size])
    assert reply(session, begun)[1] == tokens[size:]
    said = [*ASKED.messages, Message("assistant", "", tokens[:size])]
    first = session.model.vocabulary
    text = b"".join(map(first.piece, tokens[:size])).decode("utf-8", "replace")
    said[-1] = replace(said[-1], content=text)
    rest, more = reply(session, replace(ASKED, messages=said, max_tokens=70 - size))
    assert more == tokens[size:] and text + rest.text == whole.text


def test_the_bundled_model_answers_once_it_is_told_to_and_a_budget_repeats_that(session: Session) -> None:
    names = [offer.name for offer in session.drafters.offers() if offer.usable]
    assert len(names) > 4
    free = replace(ASKED, sampling=replace(ASKED.sampling, reasoning_budget=-1))
    unending = reply(session, free)[1]
    for name in names:
        request, tokens = replace(free, drafter=name), list[Token]()

        def take(event: object, tokens: list[Token] = tokens) -> None:
            tokens += event.tokens if isinstance(event, Stepped) else ()

        done = session.reply(request, take, lambda: False, answer_now=lambda tokens=tokens: len(tokens) >= 12)  # type: ignore[misc]
        assert done.thoughts_closed >= 12 and MARK in done.text, name
        assert tokens[: done.thoughts_closed] == unending[: done.thoughts_closed], name
        budget = replace(ASKED.sampling, reasoning_budget=done.thoughts_closed)
        assert reply(session, replace(ASKED, sampling=budget))[1] == tokens, name


def test_there_is_nothing_to_end_before_and_after_the_thoughts() -> None:
    row, history = row_of(), History([])
    guide = Guide(Sampler(0.0), 0, "", VOCABULARY)
    for token in tokens_of("ab"):
        guide.close(history)
        assert guide.pick(row, history) == Sampler(0.0).pick(row, history) and guide.closed == -1
        history.tokens.append(token)
