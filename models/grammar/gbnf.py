"""llama.cpp's grammar notation: its parser, and the states of a text.

It follows llama.cpp's own engine (``src/llama-grammar.cpp``) rule for rule: a grammar means the same here. That engine
tests every token of a vocabulary at each step, some 19 milliseconds for 152,000; here only the tokens that may be
drawn are tested, and each answer is kept for the state that the text has reached.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from slipstream.models.errors import UsageError
from slipstream.models.types import Token

Stacks = frozenset[int]  # ids of the stacks that a text may have; of each, the top is a terminal or it is empty

EMPTY: Final = 0  # id of the empty stack: the text may end
_END: Final = -1
_MOST_REPEATED: Final = 2_000  # rules that one repetition makes; as in llama.cpp
_MOST_ELEMENTS: Final = 100_000  # that one repetition makes
_MOST_STACKS: Final = 20_000  # in one state
_MOST_HELD: Final = 500_000  # ids in remembered steps
_MOST_STATES: Final = 2_000  # remembered tests
_MOST_MASKS: Final = 64  # remembered masks, one byte a token
_FOLLOWING: Final = (0, 0, 0, 0, 0, 0, 0, 0, -1, -1, -1, -1, 1, 1, 2, 3)  # bytes after a first one, by its upper half
_ESCAPES: Final[Mapping[str, str]] = {"t": "\t", "r": "\r", "n": "\n", **{char: char for char in '\\"[]-'}}
_HEX: Final[Mapping[str, int]] = {"x": 2, "u": 4, "U": 8}


@dataclass(frozen=True, slots=True)
class Chars:
    """A terminal: one character of some ranges, or one of no range."""

    ranges: tuple[tuple[int, int], ...]
    inside: bool = True

    @property
    def only(self) -> int:
        """The only character that it holds; -1 if there are others."""
        low, high = self.ranges[0] if len(self.ranges) == 1 else (0, -1)
        return low if low == high and self.inside else -1

    def holds(self, char: int) -> bool:
        return any(low <= char <= high for low, high in self.ranges) == self.inside

    def may_hold(self, value: int, left: int) -> bool:
        """Whether a character may fit whose first bytes give ``value``, and which has ``left`` more bytes."""
        if left == 1 and value < 2:
            return False
        low, high = value << 6 * left, (value + 1 << 6 * left) - 1
        low = low or {2: 1 << 11, 3: 1 << 16}.get(left, 0)
        return any(first <= high and low <= last for first, last in self.ranges) == self.inside


@dataclass(frozen=True, slots=True)
class OneToken:
    """A terminal: one token by its id, or any other one."""

    token: Token
    inside: bool

    def holds(self, token: Token) -> bool:
        return (token == self.token) == self.inside


Element = int | Chars | OneToken  # an int is the id of a rule
Rule = list[list[Element]]  # its alternatives


class GbnfParser:
    """Reads a grammar; raises ``ValueError`` with llama.cpp's words."""

    def __init__(self, text: str, token_of: Callable[[str], list[Token]]) -> None:
        """``token_of`` turns a name such as ``<think>`` into tokens."""
        self._text, self._at, self._token_of = text + "\0", 0, token_of
        self._ids: dict[str, int] = {}
        self._rules: dict[int, Rule] = {}
        self._count = 0
        self._skip(True)
        while self._next != "\0":
            self._rule()
        for name, rule in self._ids.items():
            if rule not in self._rules:
                raise ValueError(f"undefined rule identifier '{name}'")
        if "root" not in self._ids:
            raise ValueError("the grammar does not contain a 'root' rule")
        self.root = self._ids["root"]
        self.rules = [self._rules[rule] for rule in range(self._count)]
        if (again := _left_recursive(self.rules)) is not None:
            name = next((name for name, own in self._ids.items() if own == again), f"number {again}")
            raise ValueError(f"unsupported grammar, left recursion detected for nonterminal '{name}'")

    @property
    def _next(self) -> str:
        return self._text[self._at]

    def _expected(self, what: str) -> ValueError:
        line = self._text.count("\n", 0, self._at) + 1
        rest = self._text[self._at : self._at + 40].strip("\0").split("\n")[0]
        return ValueError(f"expecting {what} in line {line} at {rest or 'its end'}")

    def _skip(self, lines: bool) -> None:
        while self._next in (" \t#\r\n" if lines else " \t#"):
            if self._next == "#":
                while self._next not in "\r\n\0":
                    self._at += 1
            else:
                self._at += 1

    def _word(self, fits: Callable[[str], bool], what: str) -> str:
        start = self._at
        while fits(self._next):
            self._at += 1
        if start == self._at:
            raise self._expected(what)
        return self._text[start : self._at]

    def _take(self, text: str) -> None:
        if not self._text.startswith(text, self._at):
            raise self._expected(text)
        self._at += len(text)

    def _id(self, name: str) -> int:
        if name not in self._ids:
            self._ids[name] = self._new()
        return self._ids[name]

    def _new(self) -> int:
        self._count += 1
        return self._count - 1

    def _rule(self) -> None:
        rule = self._id(self._word(_in_name, "a name"))
        self._skip(False)
        self._take("::=")
        self._skip(True)
        self._alternatives(rule, nested=False)
        if self._next not in "\r\n\0":
            raise self._expected("newline or end")
        self._skip(True)

    def _alternatives(self, rule: int, nested: bool) -> None:
        found = [self._sequence(nested)]
        while self._next == "|":
            self._at += 1
            self._skip(True)
            found.append(self._sequence(nested))
        self._rules[rule] = found

    def _sequence(self, nested: bool) -> list[Element]:
        found, start, made = list[Element](), 0, 1  # ``start``: the last symbol; ``made``: the rules that it stands for
        while True:
            begin = self._next
            if begin in "*+?{" and begin != "\0":
                least, most = self._times(nested)
                made = self._repeat(found, start, made, least, most)
                continue
            last, start, made = start, len(found), 1
            if begin == '"':
                self._at += 1
                found += [Chars(((char, char),)) for char in self._until('"')]
            elif begin == "[":
                found += self._class()
            elif begin == "." or begin in "<!":
                found.append(self._dot() if begin == "." else self._token())
            elif _in_name(begin):
                found.append(self._id(self._word(_in_name, "a name")))
            elif begin == "(":
                self._at += 1
                self._skip(True)
                before, rule = self._count, self._new()
                self._alternatives(rule, nested=True)
                self._take(")")
                made = max(1, self._count - before)
                found.append(rule)
            else:
                start = last
                return found
            self._skip(nested)

    def _times(self, nested: bool) -> tuple[int, int | None]:
        """Reads a repetition: the least and the most times; None for no limit."""
        sign = self._next
        self._at += 1
        self._skip(nested)
        if sign != "{":
            return (1 if sign == "+" else 0), (1 if sign == "?" else None)
        least = int(self._word(_is_digit, "an int"))
        most: int | None = least
        self._skip(nested)
        if self._next == ",":
            self._at += 1
            self._skip(nested)
            most = int(self._word(_is_digit, "an int")) if _is_digit(self._next) else None
            self._skip(nested)
        self._take("}")
        self._skip(nested)
        if least > _MOST_REPEATED:
            raise ValueError("number of repetitions exceeds sane defaults, please reduce the number of repetitions")
        return least, most if most is not None and most <= _MOST_REPEATED else None

    def _repeat(self, found: list[Element], start: int, made: int, least: int, most: int | None) -> int:
        """Repeats the last symbol by new rules, as llama.cpp does."""
        if start == len(found):
            raise self._expected("a preceding item to */+/?/{")
        total = most or least or 1
        if made * total > _MOST_REPEATED:
            raise ValueError(
                "number of rules that are going to be repeated multiplied by the new repetition exceeds sane defaults, "
                "please reduce the number of repetitions or rule complexity"
            )
        symbol = found[start:]
        if len(symbol) * total > _MOST_ELEMENTS:
            raise ValueError(f"a repetition makes more than {_MOST_ELEMENTS:,} elements")
        found[start:] = symbol * least
        rest: list[Element] = []
        for _ in range(1 if most is None else most - least):
            rule = self._new()
            self._rules[rule] = [[*symbol, rule] if most is None else [*symbol, *rest], []]
            rest = [rule]
        found += rest
        return made * total

    def _until(self, end: str) -> Iterator[int]:
        while self._next != end:
            yield self._char()
        self._at += 1

    def _char(self) -> int:
        char = self._next
        if self._at >= len(self._text) - 1:
            raise ValueError("unexpected end of input")
        self._at += 1
        if char != "\\":
            return ord(char)
        sign = self._next
        if sign in _ESCAPES:
            self._at += 1
            return ord(_ESCAPES[sign])
        size = _HEX.get(sign, 0)
        digits = self._text[self._at + 1 : self._at + 1 + size]
        if not size or len(digits) < size or digits.strip("0123456789abcdefABCDEF"):
            self._at -= 1
            raise self._expected(f"{size} hex characters" if size else "an escape of llama.cpp's notation")
        self._at += 1 + size
        return int(digits, 16)

    def _class(self) -> list[Element]:
        """A class of characters; nothing if it is empty, as in llama.cpp."""
        self._at += 1
        inside = self._next != "^"
        self._at += not inside
        ranges: list[tuple[int, int]] = []
        while self._next != "]":
            low = high = self._char()
            if self._next == "-" and self._text[self._at + 1] != "]":
                self._at += 1
                high = self._char()
            ranges.append((low, high))
        self._at += 1
        return [Chars(tuple(dict.fromkeys(ranges)), inside)] if ranges else []

    def _dot(self) -> Chars:
        self._at += 1
        return Chars((), inside=False)

    def _token(self) -> OneToken:
        inside = self._next != "!"
        self._at += not inside
        end = self._text.find(">", self._at) + 1
        name = self._text[self._at : end]
        if not name.startswith("<"):
            raise self._expected("<token>")
        self._at = end
        if name.startswith("<[") and name.endswith("]>") and name[2:-2].isdigit():
            return OneToken(int(name[2:-2]), inside)
        tokens = self._token_of(name)
        if len(tokens) != 1:
            raise ValueError(f"invalid token '{name}'")
        return OneToken(tokens[0], inside)


class GbnfVocabulary:
    """The tokens that grammars are tested with."""

    def __init__(
        self, pieces: Sequence[bytes], ends: Collection[Token], token_of: Callable[[str], list[Token]]
    ) -> None:
        self.pieces, self.ends, self.token_of = pieces, frozenset(ends), token_of

    def piece(self, token: Token) -> bytes:
        """The bytes of a token up to a zero byte, where llama.cpp's engine ends; empty for ids outside."""
        return self.pieces[token].split(b"\0")[0] if token < len(self.pieces) else b""

    @cached_property
    def sorted_pieces(self) -> tuple[list[bytes], list[Token]]:
        """The bytes of all tokens in order, and the ids of the tokens."""
        written = sorted((piece, token) for token in range(len(self.pieces)) if (piece := self.piece(token)))
        return [piece for piece, _ in written], [token for _, token in written]


class Gbnf:
    """A grammar's stacks, and which of them follow which by a character or a token."""

    def __init__(self, rules: Sequence[Rule], root: int) -> None:
        self._nodes: list[tuple[Element, int]] = []  # each element with the place of the next one
        self._first = [[self._laid(elements) for elements in rule] for rule in rules]
        self._stacks: list[tuple[int, int]] = [(_END, EMPTY)]  # place of the top element, and id of the rest
        self._known: dict[tuple[int, int], int] = {}
        self._steps: dict[tuple[Stacks, int], Stacks] = {}
        self._by_char: dict[Stacks, tuple[dict[int, list[int]], list[tuple[Chars, int]]]] = {}
        self._held = 0  # ids in these steps
        self.begin = self._closed(self._pushed(first, EMPTY) for first in self._first[root])

    def _laid(self, elements: Sequence[Element]) -> int:
        following = _END
        for element in reversed(elements):
            self._nodes.append((element, following))
            following = len(self._nodes) - 1
        return following

    def _pushed(self, node: int, rest: int) -> int:
        if node == _END:
            return rest
        key = node, rest
        if key not in self._known:
            self._known[key] = len(self._stacks)
            self._stacks.append(key)
        return self._known[key]

    def _closed(self, stacks: Iterable[int]) -> Stacks:
        """Replaces rules on top by their alternatives until every top is a terminal."""
        todo, seen, found = list(stacks), set[int](), list[int]()
        while todo:
            stack = todo.pop()
            if stack in seen:
                continue
            seen.add(stack)
            if len(seen) > _MOST_STACKS:
                raise UsageError(
                    f"the grammar can read one text in more than {_MOST_STACKS:,} ways.",
                    "Repeat nothing that may be empty or that repeats itself.",
                )
            node, rest = self._stacks[stack]
            element, following = self._nodes[node] if stack != EMPTY else (None, _END)
            if isinstance(element, int):
                rest = self._pushed(following, rest)
                todo += [self._pushed(first, rest) for first in self._first[element]]
            else:
                found.append(stack)
        return frozenset(found)

    def tops(self, stacks: Stacks) -> Iterator[tuple[Chars | OneToken, int]]:
        """The terminal on top of each stack, and the id of the stack behind it."""
        for stack in stacks:
            if stack != EMPTY:
                node, rest = self._stacks[stack]
                element, following = self._nodes[node]
                if not isinstance(element, int):
                    yield element, self._pushed(following, rest)

    def after(self, stacks: Stacks, char: int) -> Stacks:
        key = stacks, char
        found = self._steps.get(key)
        if found is None:
            single, others = self._readers(stacks)
            found = self._closed([*single.get(char, ()), *(rest for top, rest in others if top.holds(char))])
            self._held += len(found) + 1
            if self._held > _MOST_HELD:
                self._steps.clear()
                self._by_char.clear()
                self._held = len(found)
            self._steps[key] = found
        return found

    def may_read(self, stacks: Stacks, value: int, left: int) -> bool:
        """Whether a character may follow of which the first bytes are known: see ``Chars.may_hold``."""
        single, others = self._readers(stacks)
        tops = [*(Chars(((char, char),)) for char in single), *(top for top, _ in others)]
        return any(top.may_hold(value, left) for top in tops)

    def _readers(self, stacks: Stacks) -> tuple[dict[int, list[int]], list[tuple[Chars, int]]]:
        """The stacks behind each character that some of these stacks read, and the other terminals on top."""
        if stacks not in self._by_char:
            single, others = dict[int, list[int]](), list[tuple[Chars, int]]()
            for top, rest in self.tops(stacks):
                if isinstance(top, Chars) and top.only >= 0:
                    single.setdefault(top.only, []).append(rest)
                elif isinstance(top, Chars):
                    others.append((top, rest))
            self._by_char[stacks] = single, others
        return self._by_char[stacks]

    def after_token(self, stacks: Stacks, token: Token, text: bool) -> Stacks:
        """The stacks behind a token that the grammar names; without ``text``, it does not stand for any other one."""
        named = [
            rest
            for top, rest in self.tops(stacks)
            if isinstance(top, OneToken) and top.holds(token) and (text or top.inside)
        ]
        return self._closed(named) if named else frozenset()


@dataclass(frozen=True, slots=True)
class Reached:
    """Where a text stands: its stacks, and the bytes of an unfinished character."""

    stacks: Stacks
    value: int = 0
    left: int = 0  # number of bytes that the character still needs


_NOWHERE: Final = Reached(frozenset())


class GbnfTokens:
    """Which tokens of a vocabulary a grammar allows after a text; each answer is kept."""

    def __init__(self, text: str, vocabulary: GbnfVocabulary) -> None:
        parsed = GbnfParser(text, vocabulary.token_of)
        self._grammar, self._vocabulary = Gbnf(parsed.rules, parsed.root), vocabulary
        self.begin = Reached(self._grammar.begin)
        self._tested: dict[Reached, dict[bool, set[Token]]] = {}
        self._masks: dict[Reached, NDArray[np.bool_]] = {}

    def ending(self, token: Token) -> bool:
        return token in self._vocabulary.ends

    def ends(self, reached: Reached) -> bool:
        return EMPTY in reached.stacks

    def fits(self, reached: Reached, token: Token) -> bool:
        tested = self._known(reached)
        if token in tested[True] or token in tested[False]:
            return token in tested[True]
        ends = self.ending(token)
        fits = self.ends(reached) if ends else self._possible(self.after(reached, token))
        tested[fits].add(token)
        return fits

    def refused(self, reached: Reached) -> set[Token]:
        """The tokens that are known not to fit."""
        return self._known(reached)[False]

    def _known(self, reached: Reached) -> dict[bool, set[Token]]:
        if reached not in self._tested:
            if len(self._tested) >= _MOST_STATES:
                self._tested.clear()
            self._tested[reached] = {True: set(), False: set()}
        return self._tested[reached]

    def after(self, reached: Reached, token: Token) -> Reached:
        """What a token leads to; without stacks if it does not fit."""
        piece = self._vocabulary.piece(token)
        named = self._grammar.after_token(reached.stacks, token, bool(piece))
        for byte in piece:
            reached = self._after_byte(reached, byte)
        return Reached((reached.stacks if piece else frozenset()) | named, reached.value, reached.left)

    def mask(self, reached: Reached) -> NDArray[np.bool_]:
        """Whether each token fits."""
        if reached not in self._masks:
            if len(self._masks) >= _MOST_MASKS:
                self._masks.clear()
            self._masks[reached] = self._walked(reached)
        return self._masks[reached]

    def _walked(self, reached: Reached) -> NDArray[np.bool_]:
        """Tests all tokens in the order of their bytes; those with a beginning that does not fit are skipped."""
        vocabulary = self._vocabulary
        allowed = np.zeros(len(vocabulary.pieces), np.bool_)
        pieces, order = vocabulary.sorted_pieces
        path, before, at = [reached], b"", 0
        while at < len(pieces):
            piece = pieces[at]
            size = 0
            for mine, theirs in zip(piece, before, strict=False):
                if mine != theirs or size >= len(path) - 1:
                    break
                size += 1
            del path[size + 1 :]
            while path[-1].stacks and len(path) <= len(piece):
                path.append(self._after_byte(path[-1], piece[len(path) - 1]))
            if path[-1].stacks:
                allowed[order[at]] = self._possible(path[-1])
                at += 1
            else:
                dead = piece[: len(path) - 1]
                at = bisect_left(pieces, dead + b"\xff" * 256, at)
            before = piece
        if any(isinstance(top, OneToken) for top, _ in self._grammar.tops(reached.stacks)):
            allowed[:] = [self.fits(reached, token) for token in range(allowed.size)]
        allowed[[token for token in vocabulary.ends if token < allowed.size]] = self.ends(reached)
        return allowed

    def _after_byte(self, reached: Reached, byte: int) -> Reached:
        if reached.left:
            if byte >> 6 != 2:
                return _NOWHERE
            value, left = reached.value << 6 | byte & 0x3F, reached.left - 1
        else:
            left = _FOLLOWING[byte >> 4]
            if left < 0:
                return _NOWHERE
            value = byte & (1 << 7 - left) - 1
        if left:
            return Reached(reached.stacks - {EMPTY}, value, left)
        return Reached(self._grammar.after(reached.stacks, value))

    def _possible(self, reached: Reached) -> bool:
        """Whether a text may stand here: its stacks can take the unfinished character."""
        if not reached.left:
            return bool(reached.stacks)
        return self._grammar.may_read(reached.stacks, reached.value, reached.left)


def _left_recursive(rules: Sequence[Rule]) -> int | None:
    """A rule that may begin with itself; as in llama.cpp, only a rule with an empty alternative counts as empty."""
    empty = [not all(rule) for rule in rules]
    begins: list[list[int]] = []
    for rule in rules:
        found = list[int]()
        for alternative in rule:
            for element in alternative:
                if not isinstance(element, int):
                    break
                found.append(element)
                if not empty[element]:
                    break
        begins.append(found)
    done, path = set[int](), dict[int, Iterator[int]]()
    for first in range(len(rules)):
        if first not in done:
            path[first] = iter(begins[first])
        while path:
            rest = next(reversed(path.values()))
            following = next(rest, None)
            if following is None:
                done.add(path.popitem()[0])
            elif following in path:
                return following
            elif following not in done:
                path[following] = iter(begins[following])
    return None


def _is_digit(char: str) -> bool:
    return "0" <= char <= "9"


def _in_name(char: str) -> bool:
    return "a" <= char <= "z" or "A" <= char <= "Z" or char == "-" or _is_digit(char)
