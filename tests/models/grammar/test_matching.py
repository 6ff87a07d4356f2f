"""Grammars and schemas from elsewhere: one answer to what may follow, and an error for what is too large."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.app.engine.test_grammar import random_schema

from slipstream.models.errors import UsageError
from slipstream.models.grammar import MOST_BYTES, GrammarKind
from slipstream.models.grammar.matching import GrammarTokens, matcher_of
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.placement import Placement

BUNDLED = Path(__file__).parents[3] / "models" / "bundled" / "slipstream-mini-q8_0.gguf"


@pytest.fixture(scope="module")
def tokens() -> Iterator[GrammarTokens]:
    model = LlamaModel(BUNDLED, placement=Placement(0), vocabulary_only=True)
    pieces = [model.piece(token) for token in range(model.n_vocab)]
    yield GrammarTokens(pieces, model.ends, lambda text: model.tokenize(text, False))
    model.close()


GRAMMARS: list[tuple[GrammarKind, str]] = [
    *[("json", json.dumps(random_schema(random.Random(seed)))) for seed in range(24)],
    ("json", "{}"),
    ("lark", 'start: "a"*'),
    ("lark", 'start: "a"{1,3} | "b"'),
    ("lark", 'start: ""'),
    ("lark", "start: /a?/"),
    ("gbnf", 'root ::= "a" | "ab" root'),
]


@pytest.mark.parametrize(("kind", "text"), GRAMMARS)
def test_what_is_allowed_fits_and_nothing_else_does(tokens: GrammarTokens, kind: GrammarKind, text: str) -> None:
    chance, matcher = random.Random(1), matcher_of(kind, text, tokens)
    for _ in range(12):
        allowed = matcher.allowed()
        assert [matcher.fits(token) for token in range(tokens.size)] == allowed.tolist()
        assert not matcher.fits(tokens.size) and matcher.copy().fits(int(allowed.argmax())) == allowed.max()
        going_on = [int(token) for token in np.flatnonzero(allowed) if not matcher.complete or token > 2]
        if not going_on:
            break
        matcher.take(chance.choice(going_on))


def _chain(rule: Callable[[int], str], count: int) -> str:
    return "\n".join(rule(number) for number in range(count))


def _references(count: int, to: Callable[[str], Any]) -> str:
    links = {f"d{n}": to(f"#/$defs/d{n + 1}") for n in range(count)}
    return json.dumps({"$ref": "#/$defs/d0", "$defs": links | {f"d{count}": {}}})


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("lark", "start: r0\n" + _chain(lambda n: f'r{n}: "a" r{n + 1}', 1500) + '\nr1500: "c"', "1,000 rules"),
        ("lark", "start: R0\n" + _chain(lambda n: f'R{n} : "a" R{n + 1}', 1500) + '\nR1500: "c"', "1,000 rules"),
        ("gbnf", "root ::= r0\n" + _chain(lambda n: f'r{n} ::= "a" r{n + 1}', 1500) + '\nr1500 ::= "c"', "1,000 rules"),
        ("lark", "start: " + '"a" ' * MOST_BYTES, "256 KiB"),
        ("json", json.dumps({"enum": ["x" * MOST_BYTES]}), "256 KiB"),
        ("json", '{"items":' * 2000 + "{}" + "}" * 2000, "recursion limit"),
        ("gbnf", "root ::= " + "(" * 5000 + '"a"' + ")" * 5000, "recursion"),
    ],
)
def test_a_grammar_that_is_too_large_is_refused(
    tokens: GrammarTokens, kind: GrammarKind, text: str, words: str
) -> None:
    with pytest.raises(UsageError, match=words) as refused:
        matcher_of(kind, text, tokens)
    assert "\n" not in refused.value.title and len(refused.value.title) < 250


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("lark", "start: r0\n" + _chain(lambda n: f'r{n}: "a" r{n + 1} | "b" r{7 * n % 900}', 900) + '\nr900: "c"'),
        ("json", _references(3000, lambda link: {"type": "object", "properties": {"x": {"$ref": link}}})),
        ("json", _references(3000, lambda link: {"anyOf": [{"$ref": link}, {"type": "null"}]})),
    ],
)
def test_long_chains_of_rules_do_not_end_the_process(tokens: GrammarTokens, kind: GrammarKind, text: str) -> None:
    assert matcher_of(kind, text, tokens).allowed().any()
