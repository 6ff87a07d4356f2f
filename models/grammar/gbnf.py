"""The states of a text in llama.cpp's grammars.

It follows llama.cpp's own engine (``src/llama-grammar.cpp``) rule for rule: a grammar means the same here. That engine
tests every token of a vocabulary at each step, some 19 milliseconds for 152,000; here only the tokens that may be
drawn are tested, and each answer is kept for the state that the text has reached.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from slipstream.models.errors import UsageError
from slipstream.models.grammar.gbnf_parser import Chars, Element, GbnfParser, OneToken, Rule
from slipstream.models.types import Token

Stacks = frozenset[int]  # ids of the stacks that a text may have; of each, the top is a terminal or it is empty
EMPTY: Final = 0  # id of the empty stack: the text may end
_END: Final = -1
_MOST_STACKS: Final = 20_000  # in one state
_MOST_HELD: Final = 500_000  # ids in remembered steps
_MOST_STATES: Final = 2_000  # remembered tests
_MOST_MASKS: Final = 64  # remembered masks, one byte a token
_FOLLOWING: Final = (0, 0, 0, 0, 0, 0, 0, 0, -1, -1, -1, -1, 1, 1, 2, 3)  # bytes after a first one, by its upper half


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
