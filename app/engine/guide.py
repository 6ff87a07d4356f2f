"""Constrains the sampler: ends the reasoning at its token budget, and makes the answer follow a grammar."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from slipstream.app.chats.reasoning import Thinking
from slipstream.drafters.base import Draft
from slipstream.drafters.tree import some_of
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.sampling.top_k import Doubles, Ids
from slipstream.models.types import ROOT, Floats, History, Token

if TYPE_CHECKING:  # grammars are seldom used
    from slipstream.models.grammar.matching import Matcher

_PATIENCE: Final = 8  # maximum tokens beyond the budget to complete a character or a mark
_NO_LIMIT: Final = sys.maxsize
_TURNS: Final = 4  # tests of the best tokens before all are tested, each of ``_AT_ONCE`` or more
_AT_ONCE: Final = 64
_LEADING: Final = 2  # maximum tokens of empty lines between the reasoning and an answer with a grammar


@dataclass(frozen=True, slots=True)
class GuideVocabulary:
    """The part of a model's vocabulary that a guide uses."""

    piece: Callable[[Token], bytes]  # the bytes of a token
    tokenize: Callable[[str], list[Token]]  # turns a mark into tokens, which may be control tokens
    # tokens that may open the reasoning at the start of a reply; empty if the model has none, or the prompt opened it
    openers: frozenset[Token] = frozenset()
    blanks: frozenset[Token] = frozenset()  # tokens of empty lines


@dataclass(slots=True)
class _State:
    thinking: Thinking  # separates reasoning from answer
    matcher: Matcher | None = None  # the grammar's state
    count: int = 0  # tokens of the reasoning, between the marks
    forced: tuple[Token, ...] = ()  # tokens that must follow
    waiting: bytes = b""  # bytes of an incomplete character
    leading: int = 0  # tokens of empty lines since the reasoning; -1 once the answer has begun

    def copy(self) -> _State:
        matcher = self.matcher.copy() if self.matcher else None
        return replace(self, thinking=copy(self.thinking), matcher=matcher)

    @property
    def settled(self) -> bool:
        """Whether the sampler alone chooses all tokens that follow."""
        return self.thinking.over and not self.forced and self.matcher is None

    @property
    def constrained(self) -> bool:
        """Whether the grammar constrains the next token: inside the answer, or where the answer may begin."""
        return self.matcher is not None and (self.leading < 0 or self.thinking.answers_next)


class Guide:
    """A sampler that ends the reasoning at its budget, and makes the answer follow its grammar.

    Both depend on the reply's tokens alone: every drafter gives the same text, and a rejected draft needs no undo. The
    mask of a grammar is applied before penalties and truncation. ``closed`` is the number of reasoning tokens when
    ``close`` ended the reasoning; -1 if it did not.
    """

    def __init__(
        self,
        sampler: Sampler,
        start: int,
        thinks: str,
        vocabulary: GuideVocabulary,
        budget: int = -1,
        matcher: Matcher | None = None,
    ) -> None:
        """Begins a reply at index ``start`` of the history.

        ``thinks`` is the closing mark of the reasoning if the prompt has opened it, otherwise empty; a ``budget`` of -1
        is none.
        """
        self._sampler, self._vocabulary = sampler, vocabulary
        self._budget = budget if budget >= 0 else _NO_LIMIT
        self.closed = -1
        self._done, self._state = start, _State(Thinking(thinks), matcher)
        self._close_if_due(self._state)

    def pick(self, logits: Floats, history: History, ahead: Sequence[Token] = ()) -> Token:
        """Draws the token after ``history`` and ``ahead``, or returns the forced one."""
        state = self._after(history, ahead)
        if state.forced:
            return state.forced[0]
        return self._sampler.pick(self._masked(logits, state, history, ahead), history, ahead)

    def distribution(self, logits: Floats, history: History, ahead: Sequence[Token] = ()) -> tuple[Ids, Doubles]:
        """The distribution that ``pick`` draws from, see ``Sampler``; a forced token has probability 1."""
        state = self._after(history, ahead)
        if state.forced:
            return np.array([state.forced[0]]), np.ones(1)
        return self._sampler.distribution(self._masked(logits, state, history, ahead), history, ahead)

    def pruned(self, draft: Draft, history: History) -> Draft:
        """Removes nodes that cannot be accepted, except from a draft with probes: its drafter learns from them."""
        tree = draft.tree
        if not tree.tokens or tree.probes:
            return draft
        root = self._after(history, ())
        if root.settled or (root.matcher is None and not root.forced and root.count + tree.depth < self._budget):
            return draft
        states = {ROOT: root}
        kept = list[int]()
        for node, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True)):
            if parent in states and self._fits(states[parent], token):
                states[node] = states[parent].copy()
                self._advance(states[node], token)
                kept.append(node)
        return draft if len(kept) == len(tree) else some_of(draft, kept)

    def close(self, history: History) -> None:
        """Ends the reasoning as a budget of its present length would; works once, and only inside the reasoning."""
        state = self._after(history, ())
        if self.closed < 0 and state.thinking.under_way and not state.forced:
            self._budget = self.closed = state.count
            self._close_if_due(state)

    def complete(self, history: History) -> bool:
        matcher = self._after(history, ()).matcher
        return matcher is None or matcher.complete

    def _after(self, history: History, ahead: Sequence[Token]) -> _State:
        state = self._state
        if state.settled:
            return state
        for token in history.tokens[self._done :]:
            self._advance(state, token)
        self._done = len(history.tokens)
        if ahead and not state.settled:
            state = state.copy()
            for token in ahead:
                self._advance(state, token)
        return state

    def _masked(self, logits: Floats, state: _State, history: History, ahead: Sequence[Token]) -> Floats:
        """The logits without the tokens that do not fit; it may leave in those that cannot be drawn for other reasons.

        Most grammars are tested token by token, the best ones first: once all of those fit that truncation compares,
        the rest cannot change what is drawn.
        """
        if state.matcher is None or not state.constrained:
            return logits
        if (refused := state.matcher.refused) is not None and self._sampler.compared:
            row = logits.copy()
            row[[token for token in refused - self._extra(state) if token < row.size]] = -np.inf
            for turn in range(_TURNS):
                ids, compared = self._sampler.contenders(row, history, ahead, 1 if turn == 0 else _AT_ONCE)
                wrong = [token for token in ids if not self._fits(state, token)]
                row[wrong] = -np.inf
                if not set(wrong).intersection(ids[:compared]):
                    return row
        allowed = np.zeros(logits.size, np.bool_)
        mask = state.matcher.allowed()[: logits.size]
        allowed[: mask.size] = mask
        allowed[[token for token in self._extra(state) if token < logits.size]] = True
        return np.where(allowed, logits, np.float32(-np.inf))

    def _extra(self, state: _State) -> frozenset[Token]:
        """Extra tokens allowed before the answer: marks that open the reasoning, then empty lines after it."""
        if state.leading < 0 or state.leading >= _LEADING:
            return frozenset()
        return self._vocabulary.blanks if state.thinking.thought else self._vocabulary.openers

    def _fits(self, state: _State, token: Token) -> bool:
        if state.forced:
            return token == state.forced[0]
        if state.matcher is None or not state.constrained:
            return True
        return state.matcher.fits(token) or token in self._extra(state)

    def _advance(self, state: _State, token: Token) -> None:
        if state.settled:
            return
        thinks, thought = state.thinking.under_way, state.thinking.thought
        constrained, extra = state.constrained, self._extra(state)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        state.thinking.feed(decoder.decode(state.waiting + self._vocabulary.piece(token)))
        state.waiting = decoder.getstate()[0]
        state.count += thinks and state.thinking.under_way
        if state.matcher and constrained:
            if token in extra and not (thought and state.matcher.fits(token)):
                state.leading += thought
            else:
                state.matcher.take(token)
                state.leading = -1
        if state.forced and token == state.forced[0]:
            state.forced = state.forced[1:]
        else:  # not the forced token: the text was written without this budget
            self._close_if_due(state)

    def _close_if_due(self, state: _State) -> None:
        """Forces the closing mark once the budget is spent and the last character and mark are complete."""
        late, state.forced = state.count - self._budget, ()
        complete = late >= _PATIENCE or not (state.waiting or state.thinking.amid_mark)
        if late >= 0 and state.thinking.under_way and complete:
            state.forced = tuple(self._vocabulary.tokenize(state.thinking.closing))
