"""Grammars and schemas from elsewhere: one answer to what may follow, and an error for what is too large."""

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
    *[("json", json.dumps(random_schema(random.Random(seed)))) for seed in range(24)], ("json", "{}"),
    ("lark", 'start: "a"*'), ("lark", 'start: "a"{1,3} | "b"'), ("lark", 'start: ""'), ("lark", "start: /a?/"),
    ("gbnf", 'root ::= "a" | "ab" root'),
]  # fmt: skip


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
        ("gbnf", 'root ::= "' + "a" * 200_000 + '"{2000}', "100,000 elements"),
        ("gbnf", "root ::= " + "(" * 5000 + '"a"' + ")" * 5000, "recursion"),
    ],
)
def test_too_large_a_grammar_is_refused(tokens: GrammarTokens, kind: GrammarKind, text: str, words: str) -> None:
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


@pytest.fixture(scope="module")
def letters() -> GrammarTokens:
    """A vocabulary of single bytes, in which a text has one spelling."""
    return GrammarTokens([*(bytes([byte]) for byte in range(256)), b""], [256], lambda text: list(text.encode()))


def spelled(letters: GrammarTokens, schema: Any, text: str) -> bool:
    matcher = matcher_of("json", json.dumps(schema), letters)
    for byte in text.encode():
        if not matcher.fits(byte):
            return False
        matcher.take(byte)
    return matcher.complete


PYDANTIC = (
    "path file-path directory-path json json-string password base64url base64 byte binary int32 int64 float double"
)
STANDARD = (
    "iri iri-reference idn-email idn-hostname uri-reference uri-template json-pointer relative-json-pointer regex"
)


@pytest.mark.parametrize("name", [*PYDANTIC.split(), *STANDARD.split(), "", "Order", "date_time"])
def test_a_format_that_is_unknown_is_an_annotation(letters: GrammarTokens, name: str) -> None:
    field = {"type": "string", "format": name, "maxLength": 5}
    schema = {"type": "object", "properties": {"format": field, "enum": {"anyOf": [field]}}, "required": ["format"]}
    assert spelled(letters, schema, '{"format": "/a b"}') and not spelled(letters, schema, '{"format": "/a bcdef"}')
    assert not spelled(letters, {"type": "string", "format": "date"}, '"/a b"')
    assert spelled(letters, {"const": {"format": name}}, json.dumps({"format": name}))


@pytest.mark.parametrize(
    "extra",
    [
        {"title": "T", "description": "d", "examples": [1], "deprecated": True, "readOnly": True},
        {
            "nullable": True, "example": {"not": 1}, "xml": {"name": "x"}, "x-order": 1,
            "discriminator": {"propertyName": "k"},
        },
        {"$schema": "order.json"},
        {"uniqueItems": False},
        {"unevaluatedItems": True},
        {"not": False},
        {"if": {"minItems": 1}},
        {"then": {"minItems": 9}},
        {"maxContains": 1},
        {"contentMediaType": "text/plain", "contentEncoding": "base64"},
    ],
)  # fmt: skip
def test_keywords_without_effect_are_left_out(letters: GrammarTokens, extra: dict[str, Any]) -> None:
    schema = {"type": "array", "items": {"type": "integer"}} | extra
    assert spelled(letters, schema, "[1, 1]") and not spelled(letters, schema, '["1"]')


@pytest.mark.parametrize(
    ("schema", "ends_at"),
    [({}, 16), ({"type": "number"}, 16), ({"type": "integer"}, 16), ({"items": {}, "type": "array"}, 17)],
)
def test_a_number_ends_at_some_time(letters: GrammarTokens, schema: dict[str, Any], ends_at: int) -> None:
    start, end = ("[", "]") if ends_at == 17 else ("", "")
    assert spelled(letters, schema, start + "1" * 16 + end)
    assert not spelled(letters, schema, start + "1" * 17 + end)
    assert spelled(letters, schema, f"{start}-{'1' * 16}.{'2' * 16}e-{'3' * 16}{end}") == ("integer" not in str(schema))
    assert spelled(letters, {"type": "string"}, f'"{"1" * 40} \\" {"2" * 40}"')
    assert spelled(letters, {"type": "integer", "minimum": 10**17}, "1" + "0" * 17)


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda schema: {"name": "order", "schema": schema},
        lambda schema: {"name": "order", "description": "d", "schema": schema, "strict": True},
        lambda schema: {"type": "json_schema", "json_schema": {"name": "order", "schema": schema}},
        lambda schema: {"response_format": {"type": "json_schema", "json_schema": {"name": "order", "schema": schema}}},
        lambda schema: {"text": {"format": {"type": "json_schema", "name": "order", "schema": schema}}},
        lambda schema: {"type": "function", "function": {"name": "order", "parameters": schema}},
        lambda schema: {"name": "order", "description": "d", "input_schema": schema},
        lambda schema: {"name": "order", "inputSchema": schema},
        lambda schema: {"response_mime_type": "application/json", "response_schema": schema},
        lambda schema: {"response_schema": {**schema, "type": "OBJECT"}},
        lambda schema: schema,
    ],
)
def test_a_schema_is_taken_out_of_a_request(letters: GrammarTokens, wrapped: Callable[[Any], Any]) -> None:
    schema = wrapped({"type": "object", "properties": {"schema": {"enum": [7]}}, "required": ["schema"]})
    assert spelled(letters, schema, '{"schema": 7}') and not spelled(letters, schema, '"Sit"')


def test_a_reason_of_several_lines_is_told_whole(letters: GrammarTokens) -> None:
    with pytest.raises(UsageError, match=r"regex parse error: .* look-ahead and look-behind, is not supported"):
        matcher_of("json", json.dumps({"type": "string", "pattern": "^(?!x)"}), letters)


def test_what_is_no_schema_is_refused(letters: GrammarTokens) -> None:
    for schema in ({"name": "string"}, {"city": {"type": "string"}}, {"type": "json_schema"}):
        with pytest.raises(UsageError, match=r"no key|Invalid type"):
            matcher_of("json", json.dumps(schema), letters)
