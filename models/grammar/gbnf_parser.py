"""Reads grammars in llama.cpp's notation, as its own parser (``src/llama-grammar.cpp``) does."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from slipstream.models.types import Token

_MOST_REPEATED: Final = 2_000  # rules that one repetition makes; as in llama.cpp
_MOST_ELEMENTS: Final = 100_000  # that one repetition makes
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
            elif begin == ".":
                self._at += 1
                found.append(Chars((), inside=False))
            elif begin in "<!":
                found.append(self._token())
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
        if least > _MOST_REPEATED or (most or 0) >> 64:
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
