"""Answers that follow a schema or a grammar, with the same text whatever drafts."""

import json
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pytest

from slipstream.app.chats.reasoning import split
from slipstream.app.engine.guide import Guide, GuideVocabulary
from slipstream.app.engine.load import load
from slipstream.app.engine.prompt import PromptBuilder
from slipstream.app.engine.session import Session
from slipstream.app.library.resolve_model import choose
from slipstream.app.platform.paths import HOME_VARIABLE, Paths
from slipstream.app.protocol.events import Done, Stepped
from slipstream.app.protocol.requests import Generate, Message, Sampling
from slipstream.models.chat_template.template import CHATML, ChatTemplate
from slipstream.models.errors import UsageError
from slipstream.models.grammar import GrammarKind
from slipstream.models.grammar.matching import GrammarTokens, matcher_of
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import History

DRAFTERS: Final = ("auto", "draft", "medusa", "lookup", "recycle", "lookahead", "draft|lookup")
WORDS: Final = ("fox", "sea", "moon", "name", "small", "list")
Schema = dict[str, Any]


def random_schema(rng: random.Random, depth: int = 0) -> Schema:
    """A schema whose texts are short enough to end."""
    kind = rng.choice(["string", "enum", "integer", "number", "boolean", "pattern"] + ["object", "array"] * (depth < 2))
    if kind == "enum":
        return {"enum": rng.sample([*WORDS, 1, 2.5, None, True], 3)}
    if kind == "pattern":
        return {"type": "string", "pattern": rng.choice(["^[a-f]{2,5}$", "^[0-9]{3}-[0-9]{2}$", "^(yes|no)$"])}
    if kind == "object":
        names = rng.sample(WORDS, rng.randint(1, 3))
        return {
            "type": "object",
            "properties": {name: random_schema(rng, depth + 1) for name in names},
            "required": names[: rng.randint(1, len(names))],
            "additionalProperties": False,
        }
    if kind == "array":
        return {"type": "array", "items": random_schema(rng, depth + 1), "minItems": 1, "maxItems": 3}
    if kind == "integer":
        low = rng.randint(-20, 20)
        return {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 500)}
    if kind == "number":
        return {"enum": [0.5, 1, 2.25]}
    return {"type": kind} | ({"maxLength": rng.randint(1, 12)} if kind == "string" else {})


def fits(value: Any, schema: Schema) -> bool:
    if "enum" in schema:
        return any(value == one and type(value) is type(one) for one in schema["enum"])
    kind = schema["type"]
    if kind == "object":
        known = schema["properties"]
        return (
            isinstance(value, dict)
            and set(schema["required"]) <= value.keys() <= known.keys()
            and all(fits(one, known[name]) for name, one in value.items())
        )
    if kind == "array":
        return isinstance(value, list) and 1 <= len(value) <= 3 and all(fits(one, schema["items"]) for one in value)
    if kind == "integer":
        whole = isinstance(value, int) and not isinstance(value, bool)
        return whole and schema["minimum"] <= value <= schema["maximum"]
    if kind == "boolean":
        return isinstance(value, bool)
    return (
        isinstance(value, str)
        and len(value) <= schema.get("maxLength", 99)
        and re.search(schema.get("pattern", ""), value) is not None
    )


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    home = tmp_path_factory.mktemp("home")
    opened, _ = load(choose(Paths.default({HOME_VARIABLE: str(home)})), lambda _: None)
    yield opened
    opened.close()


def reply(session: Session, asked: Generate) -> tuple[Done, list[int]]:
    tokens = list[int]()

    def take(event: object) -> None:
        tokens.extend(event.tokens if isinstance(event, Stepped) else [])

    return session.reply(asked, take, lambda: False), tokens


def asked_for(schema: Schema, seed: int = 1, temperature: float = 0.8) -> Generate:
    question = [Message("user", "Tell me about a fox, as JSON.")]
    return Generate(1, question, Sampling(temperature, seed=seed), max_tokens=300, grammar=json.dumps(schema))


@pytest.mark.parametrize("block", range(10))
def test_random_schemas_with_and_without_drafting(session: Session, block: int) -> None:
    rng = random.Random(block)
    for number in range(5):
        schema = random_schema(rng)
        asked = asked_for(schema, seed=number, temperature=rng.choice([0.0, 0.8, 1.5]))
        plain, tokens = reply(session, asked)
        assert plain.reason == "stop" and plain.complete, plain.text
        assert fits(json.loads(plain.text), schema), (schema, plain.text)
        for name in DRAFTERS:
            drafted, its_tokens = reply(session, replace(asked, drafter=name))
            assert (drafted.text, its_tokens) == (plain.text, tokens), (name, schema)


def test_drafts_are_pruned_before_they_are_checked(session: Session) -> None:
    """A drafter that guesses prose beside a grammar of digits costs no rows."""
    asked = replace(asked_for({"type": "string", "pattern": "^[0-9]{40}$"}), drafter="draft")
    done, _ = reply(session, asked)
    assert json.loads(done.text).isdigit() and len(json.loads(done.text)) == 40
    assert done.speed.drafted == 0 or done.speed.accepted / done.speed.drafted > 0.1


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("lark", 'start: "the " ("fox" | "sea") " is " /[a-z]{3,6}/ "."', r"the (fox|sea) is [a-z]{3,6}\."),
        ("gbnf", 'root ::= "the " ("fox" | "sea") " is " [a-z] [a-z] [a-z] "."', r"the (fox|sea) is [a-z]{3}\."),
        ("gbnf", 'root ::= text "ANSWER: " [a-d]\ntext ::= [^:]{0,90}', r"[^:]{0,90}ANSWER: [a-d]"),
        ("json", '{"type": "array", "items": {"type": "number"}, "maxItems": 4}', r"\[[-0-9.eE+, \n]*\]"),
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_every_drafter_gives_the_same_text_with_other_grammars(
    session: Session, kind: GrammarKind, text: str, expected: str, temperature: float
) -> None:
    asked = replace(asked_for({}, temperature=temperature), grammar=text, grammar_kind=kind)
    plain, tokens = reply(session, asked)
    assert re.fullmatch(expected, plain.text) and plain.reason == "stop"
    names = [offer.name for offer in session.drafters.offers() if offer.usable]
    assert len(names) > 10
    for name in [*names, "draft|lookup"]:
        assert reply(session, replace(asked, drafter=name))[1] == tokens, name


@pytest.mark.parametrize(
    "sampling",
    [
        {}, {"temperature": 0.0}, {"top_k": 5, "min_p": 0.0},
        {"top_k": 40, "min_p": 0.0, "top_p": 1.0, "temperature": 1.5}, {"top_k": 0, "top_p": 0.9},
        {"top_k": 20, "repetition_penalty": 1.3, "bias": ((5, 3.0), (300, -float("inf")))}, {"top_n_sigma": 1.0},
    ],
)  # fmt: skip
def test_a_draw_by_tests_of_the_best_tokens_is_that_of_the_mask(session: Session, sampling: dict[str, Any]) -> None:
    vocabulary = session.model.vocabulary
    pieces = [vocabulary.piece(token) for token in range(session.target.abilities.n_vocab)]
    tokens = GrammarTokens(pieces, vocabulary.ends, session.model.prompts.tokens_of)
    for seed in range(30):
        chance, sampler = np.random.default_rng(seed), Sampler(seed=seed, **sampling)
        grammar = ('root ::= [a-z ]+ ("." | "é" [0-9]+)', 'root ::= ("{" [^"]* "}" | "x")+')[seed % 2]
        history, matcher = History([0]), matcher_of("gbnf", grammar, tokens)
        guide = Guide(sampler, 1, "", GuideVocabulary(vocabulary.piece, lambda text: []), matcher=matcher.copy())
        for _ in range(12):
            logits = chance.normal(0, 3, len(pieces)).astype(np.float32)
            expected = sampler.pick(np.where(matcher.allowed(), logits, np.float32(-np.inf)), history)
            assert guide.pick(logits, history) == expected
            if expected in vocabulary.ends:
                break
            matcher.take(expected)
            history.tokens.append(expected)


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("json", "{", "the JSON schema cannot be used"),
        ("json", '{"type": "nonsense"}', "Invalid type: nonsense"),
        ("json", '{"type": "array", "uniqueItems": true}', "uniqueItems"),
        ("lark", 'start: "a" | b', "unknown name"),
        ("gbnf", "root ::= (", "the grammar cannot be used"),
    ],
)
def test_what_cannot_be_compiled_is_one_error(session: Session, kind: GrammarKind, text: str, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        reply(session, replace(asked_for({}), grammar=text, grammar_kind=kind))
    assert words in str(refused.value), refused.value
    assert "\n" not in refused.value.title and len(refused.value.title) < 250


def test_an_answer_that_is_cut_short_says_so(session: Session) -> None:
    asked = replace(asked_for({"type": "string", "minLength": 60}), max_tokens=6)
    done, _ = reply(session, asked)
    assert done.reason == "length" and not done.complete
    assert reply(session, replace(asked, grammar=""))[0].complete


@pytest.fixture
def thinking(session: Session) -> Iterator[Session]:
    own = session.model.prompts
    session.model.prompts = PromptBuilder(
        ChatTemplate(CHATML + "{% if add_generation_prompt %}{{ '<think>\n' }}{% endif %}"),
        lambda text, special, written=(), *, joins=False: own.control_tokens(text) if special else own.tokens_of(text),
        [],
    )
    yield session
    session.model.prompts = own


def test_thoughts_before_the_answer_are_free(thinking: Session) -> None:
    schema = {"type": "object", "properties": {"fox": {"type": "string", "maxLength": 9}}, "required": ["fox"]}
    asked = asked_for(schema, seed=2)
    asked = replace(asked, sampling=replace(asked.sampling, reasoning_budget=12))
    plain, tokens = reply(thinking, asked)
    parts = split(plain.text, opened=True)
    assert len(parts.thoughts) > 10 and "{" not in parts.thoughts
    assert "fox" in json.loads(parts.answer) and plain.complete
    for name in DRAFTERS:
        assert reply(thinking, replace(asked, drafter=name))[1] == tokens, name
