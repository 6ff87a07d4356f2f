"""Finds the tokens that a JSON schema or a grammar allows next.

llguidance computes the mask of a schema's state in about 14 microseconds for any size of vocabulary. Its lexer is
greedy, so it reads grammars in llama.cpp's notation otherwise than llama.cpp: these have an engine of their own.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from numpy.typing import NDArray

from slipstream.models.errors import SlipstreamError, UsageError
from slipstream.models.grammar import MOST_BYTES, GrammarKind
from slipstream.models.grammar.gbnf import GbnfTokens, GbnfVocabulary, Reached
from slipstream.models.grammar.schema import readable
from slipstream.models.outside import LONGEST_REASON, quoted
from slipstream.models.types import Token

_NAMES: Final = {"json": "the JSON schema", "lark": "the grammar", "gbnf": "the grammar"}
_SPACE: Final = r"\x20|\n\x20{0,16}"
"""Limits the whitespace between parts of JSON: otherwise a model may write empty lines forever."""
_MOST_DIGITS: Final = 16
"""Limits each part of a number, as llama.cpp's converter of schemas does: a model may write digits forever."""
_QUOTE, _BACKSLASH = b'"\\'
_RULE: Final = re.compile(r"^[ \t]*[?!]?[\w.-]+[ \t]*:", re.MULTILINE)
_MOST_RULES: Final = 1_000
_STACK_BYTES: Final = 128 << 20  # enough for 8,000 rules, each of which names the next


class GrammarTokens:
    """A vocabulary that is prepared for grammars; the preparation takes up to a second."""

    def __init__(
        self,
        pieces: Sequence[bytes],
        ends: Collection[Token],
        tokenize: Callable[[str], list[Token]],
        control: Callable[[str], list[Token]] | None = None,
    ) -> None:
        """Reads the vocabulary.

        Args:
            pieces: The bytes of each token; empty for tokens without text, which a grammar allows only by their names.
            tokenize: Turns text into tokens, none of them special.
            control: Turns names of control tokens into those tokens.
        """
        self.pieces, self.size = pieces, len(pieces)
        self.gbnf = GbnfVocabulary(pieces, ends, control or tokenize)
        self.own = LLTokenizer(_Wrapped(pieces, ends, tokenize), n_vocab=self.size, eos_token=sorted(ends))  # type: ignore[arg-type]

    @cached_property
    def digits(self) -> NDArray[np.uint8]:
        """A bit for each token, as in a mask: whether it begins with a digit."""
        begins = np.zeros((self.size // 64 + 2) * 64, np.bool_)  # a mask may be longer than the vocabulary
        begins[[token for token, piece in enumerate(self.pieces) if piece[:1].isdigit()]] = True
        return np.packbits(begins, bitorder="little")


class _Wrapped:
    bos_token_id = None
    is_tokenizer_wrapper = True

    def __init__(
        self, pieces: Sequence[bytes], ends: Collection[Token], tokenize: Callable[[str], list[Token]]
    ) -> None:
        self.tokens, self.eos_token_id = pieces, min(ends)
        self.special_token_ids = [token for token, piece in enumerate(pieces) if not piece]
        self._tokenize = tokenize

    def __call__(self, text: str) -> list[Token]:
        return self._tokenize(text)


class GbnfMatcher:
    """The state of a grammar in llama.cpp's notation after some text; ``LexedMatcher`` has the same methods."""

    def __init__(self, grammar: GbnfTokens, reached: Reached | None = None) -> None:
        self._grammar, self._reached = grammar, reached or grammar.begin

    @property
    def complete(self) -> bool:
        """Whether the text so far fits the grammar."""
        return self._grammar.ends(self._reached)

    @property
    def refused(self) -> AbstractSet[Token] | None:
        """Tokens that are known not to fit; None if ``allowed`` costs less than tests of single tokens."""
        return self._grammar.refused(self._reached)

    def copy(self) -> GbnfMatcher:
        return GbnfMatcher(self._grammar, self._reached)

    def allowed(self) -> NDArray[np.bool_]:
        """Whether each token may follow, [n_vocab]; an end token may follow if the text may end here."""
        return self._grammar.mask(self._reached)

    def fits(self, token: Token) -> bool:
        """Whether ``allowed`` holds a token."""
        return self._grammar.fits(self._reached, token)

    def take(self, token: Token) -> None:
        """Advances by a token that fits."""
        if not (self.complete and self._grammar.ending(token)):
            self._reached = self._grammar.after(self._reached, token)


@dataclass(frozen=True, slots=True)
class _Number:
    """Whether some JSON ends inside a string, and otherwise the digits at its end."""

    quoted: bool = False
    escaped: bool = False
    digits: int = 0

    def after(self, piece: bytes) -> _Number:
        quoted, escaped, digits = self.quoted, self.escaped, self.digits
        for byte in piece:
            if quoted:
                quoted, escaped = escaped or byte != _QUOTE, not escaped and byte == _BACKSLASH
            else:
                quoted, digits = byte == _QUOTE, digits + 1 if byte in b"0123456789" else 0
        return _Number(quoted, escaped, digits)


class LexedMatcher:
    """The state of a JSON schema, or of a grammar in Lark's notation; with the methods of ``GbnfMatcher``."""

    refused: Final = None

    def __init__(self, state: LLMatcher, tokens: GrammarTokens, number: _Number | None) -> None:
        """Stores llguidance's state; see ``matcher_of``. ``number`` is None where numbers may have any length."""
        self._state, self._tokens, self._number = state, tokens, number
        self._size = tokens.size
        self._mask: bytes | None = None  # of the state, once it is known

    def copy(self) -> LexedMatcher:
        copied = LexedMatcher(self._state.deep_copy(), self._tokens, self._number)
        copied._mask = self._mask
        return copied

    def allowed(self) -> NDArray[np.bool_]:
        bits = np.frombuffer(self._bits(), np.uint8)
        return np.unpackbits(bits, count=self._size, bitorder="little").view(np.bool_)

    def fits(self, token: Token) -> bool:
        # llguidance's own test also accepts other spellings of the same text
        return token < self._size and bool(self._bits()[token >> 3] >> (token & 7) & 1)

    def take(self, token: Token) -> None:
        self._mask = None
        self._state.consume_token(token)
        if self._number:
            self._number = self._number.after(self._tokens.pieces[token])

    def _bits(self) -> bytes:
        if self._mask is None:
            self._mask = self._state.compute_bitmask()
            if self._number and self._number.digits >= _MOST_DIGITS:
                bits = np.frombuffer(self._mask, np.uint8)
                shorter = bits & ~self._tokens.digits[: bits.size]
                self._mask = shorter.tobytes() if shorter.any() else self._mask  # the schema may name a longer number
        return self._mask

    @property
    def complete(self) -> bool:
        return self._state.is_accepting() or (self._state.is_stopped() and not self._state.is_error())


Matcher = GbnfMatcher | LexedMatcher


def matcher_of(kind: GrammarKind, text: str, tokens: GrammarTokens) -> Matcher:
    problem = ""
    if len(text.encode("utf-8", "replace")) > MOST_BYTES:
        problem = f"it has more than {MOST_BYTES >> 10} KiB"
    elif kind != "json" and len(_RULE.findall(text)) > _MOST_RULES:
        problem = f"it has more than {_MOST_RULES:,} rules"
    if not problem:
        made = _deep(lambda: _compiled(kind, text, tokens))
        if not isinstance(made, str):
            return made
        problem = quoted(made, LONGEST_REASON)
    raise UsageError(f"{_NAMES[kind]} cannot be used: {problem}.", "Mend it; nothing was written.")


def _compiled(kind: GrammarKind, text: str, tokens: GrammarTokens) -> Matcher | str:
    try:
        if kind == "gbnf":
            return GbnfMatcher(GbnfTokens(text, tokens.gbnf))
        if kind == "json":
            made = LLMatcher.grammar_from_json_schema(readable(text), overrides={"whitespace_pattern": _SPACE})
        else:
            made = LLMatcher.grammar_from_lark(text)
        state = LLMatcher(tokens.own, made, log_level=0)
        why = state.get_error()
    except Exception as error:  # llguidance raises its own types of errors
        state, why = None, str(error) or type(error).__name__
    if state and not why:
        return LexedMatcher(state, tokens, _Number() if kind == "json" else None)
    return " ".join(why.split()) or "no reason was given"


def _deep(call: Callable[[], Matcher | str]) -> Matcher | str:
    """Runs a call with a large stack: llguidance follows rules recursively, and ends the process at the stack's end."""
    results = list[Matcher | str]()
    before = threading.stack_size(_STACK_BYTES)
    try:
        thread = threading.Thread(target=lambda: results.append(call()), name="grammar")
        thread.start()
    except RuntimeError as error:
        raise SlipstreamError("there is not enough memory to read the grammar.", "Close other programs.") from error
    finally:
        threading.stack_size(before)
    thread.join()
    return results[0]
