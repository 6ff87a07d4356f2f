"""Grammars in llama.cpp's notation mean what its own engine, called directly, says that they mean."""

import ctypes
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from llama_cpp import llama_cpp as C
from numpy.typing import NDArray

from slipstream.models.errors import UsageError
from slipstream.models.grammar.matching import GrammarTokens, Matcher, matcher_of
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.placement import Placement

BUNDLED = Path(__file__).parents[3] / "models" / "bundled" / "slipstream-mini-q8_0.gguf"
ARITHMETIC = (  # llama.cpp's own example (MIT)
    'root ::= (expr "=" ws term "\\n")+\nexpr ::= term ([-+*/] term)*\nterm ::= ident | num | "(" ws expr ")" ws\n'
    "ident ::= [a-z] [a-z0-9_]* ws\nnum ::= [0-9]+ ws\nws ::= [ \\t\\n]*\n"
)
TEXTS = [  # a grammar, and a text that it accepts
    (r'root ::= "\u00e9"', "é"), (r"root ::= [\u00e0-\u00ff]+", "éü"), (r"root ::= [\U0001F600-\U0001F64F]+", "😀😃"),
    (r'root ::= "\[" [a-z] "\]"', "[a]"), (r"root ::= [+\-*/]+", "-+*"),
    ('root ::= start "b"\nstart ::= "a"', "ab"), ('root ::= fooBar foo-bar\nfooBar ::= "x"\nfoo-bar ::= "y"', "xy"),
    ('root ::= 1st\n1st ::= "x"', "x"), ('root ::= "a\tb"', "a\tb"), ("root ::= [a&&b]+", "a&b"),
    ("root ::= [~~a]+", "~a"), ("root ::= .{3}", "a\nb"),
    ('root ::= text "ANSWER: " [a-d]\ntext ::= [^:]*', "think ANSWER: a"),
    ('root ::= word "x"\nword ::= [a-z]+', "abx"), ('root ::= a b\na ::= "x"*\nb ::= "xy"', "xxxy"),
    ('root ::= num unit\nnum ::= [0-9]+ ("." [0-9]+)?\nunit ::= "." | "k"', "12."),
    (ARITHMETIC, "a=1\n(b +2) *c=d\n"), ('root ::= "a" ( # a comment\n  "b" |\n  "c")', "ac"),
    (r'root ::= "\x41" [\]\\^-] "]"', "A-]"), ('root ::= [] "a" ""', "a"), ('root ::= ("a" | "b"){2,3}', "aba"),
    ('root ::= "a"? "b"{0} [^"]', "aé"), ("root ::= [^\\n]+ [\\n]", "日本語 text\n"),
    ('root ::= r0\r\nr0 ::= "x"\r\n', "x"), ('root ::= "old"\nroot ::= "new"', "new"),
    ('root ::= "(" root ")" | ""', "((()))"), ('root ::= "🦊" | "🦊🦊" [🐱-🦊]', "🦊🦊🦊"),
]  # fmt: skip
REFUSED = [
    ("root ::= (", "expecting"), ('root ::= "a', "unexpected end"), ("root ::= [a", "unexpected end"),
    ('root ::= "\\q"', "expecting an escape"), ('root ::= "\\u12"', "4 hex characters"),
    ("root ::= other", "undefined rule identifier 'other'"), ('other ::= "a"', "'root' rule"),
    ('root ::= root "a" | "b"', "left recursion detected for nonterminal 'root'"),
    ('root ::= e root\ne ::= "a" | ', "left recursion"), ('root ::= "a"{3000}', "exceeds sane defaults"),
    ('root ::= ("a"{0,50}){0,50}', "exceeds sane defaults"), ("root ::= * ", "a preceding item"),
    ('root ::= "a"{1,99999999999999999999}', "exceeds sane defaults"),
    ('foo_bar ::= "a"', "expecting ::="), ("root ::= <no token>", "invalid token"),
]  # fmt: skip


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaModel]:
    opened = LlamaModel(BUNDLED, placement=Placement(0), vocabulary_only=True)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def tokens(model: LlamaModel) -> GrammarTokens:
    pieces = [model.piece(token) for token in range(model.n_vocab)]
    return GrammarTokens(
        pieces, model.ends, lambda text: model.tokenize(text, False), lambda t: model.tokenize(t, True)
    )


class Reference:
    def __init__(self, model: LlamaModel, grammar: str) -> None:
        self.state = C.llama_sampler_init_grammar(model._vocab, grammar.encode(), b"root")
        self._rows = (C.llama_token_data * model.n_vocab)()
        self._text = np.array([bool(model.piece(t)) or t in model.ends for t in range(model.n_vocab)])

    def allowed(self) -> NDArray[np.bool_]:
        for token, row in enumerate(self._rows):
            row.id, row.logit = token, 0.0
        candidates = C.llama_token_data_array(self._rows, len(self._rows), -1, False)
        C.llama_sampler_apply(self.state, ctypes.byref(candidates))
        drawable: NDArray[np.bool_] = np.array([row.logit == 0.0 for row in self._rows]) & self._text
        return drawable

    def take(self, token: int) -> None:
        C.llama_sampler_accept(self.state, token)


def compare(matcher: Matcher, reference: Reference, ends: frozenset[int], seed: int, steps: int) -> None:
    chance = random.Random(seed)
    for _ in range(steps):
        expected = reference.allowed()
        fits = [token for token in chance.sample(range(expected.size), 40) if matcher.fits(token) != expected[token]]
        assert not fits and np.array_equal(matcher.allowed(), expected)
        going_on = [int(token) for token in np.flatnonzero(expected) if token not in ends]
        if not going_on:
            break
        token = chance.choice(going_on)
        reference.take(token)
        matcher.take(token)


@pytest.mark.parametrize(("grammar", "text"), TEXTS)
def test_a_text_is_read_as_by_llama_cpp(model: LlamaModel, tokens: GrammarTokens, grammar: str, text: str) -> None:
    single = {model.piece(token): token for token in reversed(range(model.n_vocab))}
    matcher, reference = matcher_of("gbnf", grammar, tokens), Reference(model, grammar)
    for byte in text.encode():
        token = single[bytes([byte])]
        assert np.array_equal(matcher.allowed(), reference.allowed()) and matcher.fits(token)
        matcher.take(token)
        reference.take(token)
    assert matcher.complete and np.array_equal(matcher.allowed(), reference.allowed())
    compare(matcher_of("gbnf", grammar, tokens), Reference(model, grammar), model.ends, 1, 6)


@pytest.mark.parametrize(("grammar", "words"), REFUSED)
def test_what_llama_cpp_refuses_is_refused_with_the_reason(
    model: LlamaModel, tokens: GrammarTokens, capfd: pytest.CaptureFixture[str], grammar: str, words: str
) -> None:
    assert not Reference(model, grammar).state
    with pytest.raises(UsageError) as refused:
        matcher_of("gbnf", grammar, tokens)
    assert words in refused.value.title
    capfd.readouterr()


def generated(chance: random.Random) -> str:
    """A grammar whose rules name later rules alone, or themselves after a character."""
    names = ["root", "a", "b-1", "C"][: chance.randint(1, 4)]
    pieces = ("a", "b", "the", "\\n", " ", '\\"', "é", "\\u00e9", "1", "x", "🦊")
    classes = (
        *("[a-z]", "[^a-z]", "[0-9]", "[^\\n]", "[a\\-z]", "[-a]", "[é-ü]", "[^é]", "[\\]x]", "[a&&b]", "[~^]"),
        *("[ \\t\\n]", "[🐱-🦊]", "[A-Za-z]", "[^]", "[]"),
    )

    def atom(depth: int, rule: int) -> str:
        kind = chance.choice(["text", "text", "class", "dot", "name", "group" if depth < 2 else "class"])
        if kind == "text":
            return '"' + "".join(chance.choices(pieces, k=chance.randint(0, 3))) + '"'
        if kind == "group":
            return f"({alternatives(depth + 1, rule)})"
        later = [*names[rule + 1 :], f'"(" {names[rule]} ")"']
        return {"class": chance.choice(classes), "dot": ".", "name": chance.choice(later)}[kind]

    def item(depth: int, rule: int) -> str:
        found = atom(depth, rule)
        repeats = found not in ('""', "[]", "[^]") or chance.random() < 0.1  # llama.cpp refuses to repeat nothing
        return found + chance.choice(["", "", "", "", "*", "+", "?", "{2}", "{1,3}", "{0,2}"] if repeats else [""])

    def alternatives(depth: int, rule: int) -> str:
        rows = [[item(depth, rule) for _ in range(chance.randint(1, 3))] for _ in range(chance.randint(1, 3))]
        return " | ".join(" ".join(row) for row in rows)

    return "\n".join(f"{name} ::= {alternatives(0, rule)}" for rule, name in enumerate(names))


@pytest.mark.parametrize("block", [0, 1, *(pytest.param(block, marks=pytest.mark.slow) for block in range(2, 10))])
def test_generated_grammars_allow_what_llama_cpp_allows(
    model: LlamaModel, tokens: GrammarTokens, capfd: pytest.CaptureFixture[str], block: int
) -> None:
    compiled = 0
    for seed in range(50 * block, 50 * block + 50):
        grammar = generated(random.Random(seed))
        reference = Reference(model, grammar)
        if not reference.state:
            with pytest.raises(UsageError):
                matcher_of("gbnf", grammar, tokens)
            continue
        try:
            compare(matcher_of("gbnf", grammar, tokens), reference, model.ends, seed, 4)
        except UsageError as wide:  # llama.cpp reads such a text, in seconds a token
            assert "in more than" in wide.title
            continue
        compiled += 1
    assert compiled > 15
    capfd.readouterr()


def test_a_grammar_may_name_tokens(model: LlamaModel, tokens: GrammarTokens) -> None:
    end, start = (model.tokenize(name, True)[0] for name in ("<|im_end|>", "<|im_start|>"))
    matcher = matcher_of("gbnf", f'root ::= <|im_start|> "a" !<[{model.tokenize("b", False)[0]}]>', tokens)
    assert np.flatnonzero(matcher.allowed()).tolist() == [start] and matcher.fits(start) and not matcher.fits(end)
    matcher.take(start)
    matcher.take(model.tokenize("a", False)[0])
    assert not matcher.fits(model.tokenize("b", False)[0]) and matcher.fits(model.tokenize("c", False)[0])
    assert np.array_equal(matcher.allowed(), [matcher.fits(token) for token in range(model.n_vocab)])


def test_a_grammar_with_too_many_readings_is_one_error(tokens: GrammarTokens) -> None:
    matcher = matcher_of("gbnf", 'root ::= "a" ("a"? root){0,9} ("a" root)*', tokens)
    token = next(token for token, piece in enumerate(tokens.gbnf.pieces) if piece == b"a")
    with pytest.raises(UsageError, match="ways"):
        for _ in range(60):
            matcher.take(token)
