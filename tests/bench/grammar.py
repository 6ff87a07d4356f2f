"""Part ``grammar``: what a JSON schema and a grammar cost a token, with a vocabulary of 152,000 tokens.

Logits are random, so that the reply wanders through the states of the grammar. A call is timed by the clock and by the
processor's time of its thread: where only the clock is late, another program ran meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from statistics import median
from time import perf_counter, thread_time
from typing import Final, TypeVar

import numpy as np

from slipstream.app.bench.report import table
from slipstream.app.engine.guide import Guide, GuideVocabulary
from slipstream.models.grammar import GrammarKind
from slipstream.models.grammar.matching import GrammarTokens, matcher_of
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import History

T = TypeVar("T")
_SIZE: Final = 151_936
_ROWS: Final = 16  # different rows of logits
_SCHEMA: Final = json.dumps(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 40},
            "teas": {
                "type": "array",
                "minItems": 3,
                "maxItems": 6,
                "items": {
                    "type": "object",
                    "properties": {
                        "kind": {"enum": ["green", "black", "white"]},
                        "cups": {"type": "integer", "minimum": 1, "maximum": 20},
                        "note": {"type": "string", "maxLength": 80},
                    },
                    "required": ["kind", "cups", "note"],
                },
            },
            "price": {"type": "number"},
        },
        "required": ["name", "teas", "price"],
    }
)
_LARK: Final = 'start: item ("," " " item){20,60}\nitem: /[a-z]{1,10}/ | NUM\nNUM: /[0-9]{1,6}(\\.[0-9]{1,4})?/\n'
_GBNF: Final = """root ::= item ("," " " item){20,60}
item ::= [a-z]+ | num
num ::= [0-9]{1,6} ("." [0-9]{1,4})?
"""
GRAMMARS: Final[tuple[tuple[str, GrammarKind, str], ...]] = (
    ("--json-schema", "json", _SCHEMA),
    ("--grammar", "lark", _LARK),
    ("--grammar", "gbnf", _GBNF),
)


@dataclass(frozen=True, slots=True)
class Calls:
    """Milliseconds of many calls."""

    count: int
    median: float
    worst: float  # processor's time
    worst_clock: float  # by the clock

    @staticmethod
    def of(processor: list[float], clock: list[float]) -> Calls:
        return Calls(len(clock), median(processor), max(processor), max(clock))


@dataclass(frozen=True, slots=True)
class GrammarCost:
    """The cost of one kind of grammar."""

    name: str
    compiled_ms: float
    mask: Calls  # the mask of a state alone
    pick: Calls  # all of a token's draw, the mask included
    plain: Calls  # the same draw without a grammar


@dataclass(frozen=True, slots=True)
class GrammarFigures:
    """What the part found."""

    vocabulary_ms: float  # of reading the vocabulary, once a model
    costs: list[GrammarCost]


def measure_grammar(replies: int, tell: Callable[[str], None]) -> GrammarFigures:
    """Writes some replies with each kind of grammar, and without one."""
    pieces = _pieces()
    began = thread_time()
    tokens = GrammarTokens(pieces, [_SIZE - 1], lambda text: list(text.encode()))
    vocabulary_ms = 1e3 * (thread_time() - began)
    costs = []
    for name, kind, grammar in GRAMMARS:
        tell(f"grammar: {name}")
        costs.append(_cost(name, kind, grammar, pieces, tokens, replies))
    return GrammarFigures(vocabulary_ms, costs)


def grammar_text(figures: GrammarFigures) -> str:
    rows = []
    for cost in figures.costs:
        for what, calls in (("mask", cost.mask), ("draw with it", cost.pick), ("draw without", cost.plain)):
            worst, clock = f"{calls.worst:.2f} ms", f"{calls.worst_clock:.2f} ms"
            rows.append([cost.name, what, f"{calls.count:,}", f"{calls.median:.3f} ms", worst, clock])
    compiled = ", ".join(f"{cost.name} {cost.compiled_ms:.1f} ms" for cost in figures.costs)
    once = f"The vocabulary is read once a model, in {figures.vocabulary_ms:.0f} ms"
    notes = [f"{once}; a grammar is compiled once a reply: {compiled}."]
    title = f"What a grammar costs, with {_SIZE:,} tokens of vocabulary, in the processor's time"
    return table(title, ["", "part of a token", "calls", "median", "worst", "worst by the clock"], rows, notes)


def _pieces() -> list[bytes]:
    """All bytes, what JSON is made of, and words of up to four letters with and without a space before them."""
    letters = "etaoinsrhdlucmfywgpbvk"
    words = ("".join(word).encode() for size in (2, 3, 4) for word in product(letters, repeat=size))
    found = [bytes([byte]) for byte in range(256)]
    found += [b'{"', b'": ', b'": "', b'", "', b'"}', b"}, {", b"[{", b"}]", b", ", b"\n  "]
    for word in words:
        found += [word, b" " + word]
        if len(found) >= _SIZE - 64:
            break
    return found + [b""] * (_SIZE - len(found))


def _cost(
    name: str, kind: GrammarKind, grammar: str, pieces: list[bytes], tokens: GrammarTokens, replies: int
) -> GrammarCost:
    rows = np.random.default_rng(1).normal(0, 2, (_ROWS, _SIZE)).astype(np.float32)
    vocabulary = GuideVocabulary(lambda token: pieces[token], lambda text: list(text.encode()))
    times: dict[str, tuple[list[float], list[float]]] = {each: ([], []) for each in ("made", "mask", "pick", "plain")}

    def timed(what: str, call: Callable[[], T]) -> T:
        clock, processor = perf_counter(), thread_time()
        found = call()
        times[what][0].append(1e3 * (thread_time() - processor))
        times[what][1].append(1e3 * (perf_counter() - clock))
        return found

    for seed in range(replies):
        sampler, history = Sampler(seed=seed), History([0])
        matcher = matcher_of(kind, grammar, tokens)
        timed("made", partial(matcher_of, kind, grammar, tokens))
        beside = matcher.copy()
        guide = Guide(sampler, 1, "", vocabulary, matcher=matcher)
        for at in range(400):
            row = rows[(seed + at) % _ROWS]
            timed("mask", beside.allowed)
            timed("plain", partial(sampler.pick, row, history))
            token = timed("pick", partial(guide.pick, row, history))
            if not pieces[token]:
                break
            beside.take(token)
            history.tokens.append(token)
    made = median(times["made"][0])
    return GrammarCost(name, made, *(Calls.of(*times[each]) for each in ("mask", "pick", "plain")))
