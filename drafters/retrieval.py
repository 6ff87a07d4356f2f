"""Drafter ``retrieval``: continuations of the last words in the user's past chats and documents.

Source: REST (He et al., 2023, arXiv 2311.08252; github.com/FasterDecoding/REST). It looks up the longest suffix of the
text, of 16 down to 2 tokens, in a datastore. The continuations form a trie with counts, and its most frequent nodes are
the draft. Unlike in REST, the draft is verified with the same accept rule as all drafts, exact at any temperature.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from slipstream.drafters.base import NO_DRAFT, Draft, Drafter, ShouldExtend, Step
from slipstream.drafters.calibration import MatchTrust
from slipstream.drafters.resources import Method, Resources
from slipstream.drafters.text_index import DEPTH, Matches, TextIndex
from slipstream.drafters.tree import TOP, Children, TreeBuilder, chain_draft
from slipstream.models.errors import SlipstreamError
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import History, Token

_NOWHERE: Final = -1
_END: Final = -1  # marks the end of a piece of indexed text


class Retrieval(Drafter):
    """Grows a tree from the continuations of the longest match, the most probable path first.

    A node's probability is the share of the continuations that contain it, times the measured factor for matches of
    this length; a drafted token lengthens the match by one. Each step compares the tree with the target's tokens, even
    if it evaluated another draft.

    If the target takes chains only, it drafts a chain. The owner of the index closes the index.
    """

    name = "retrieval"

    def __init__(self, index: TextIndex, leaves: int = 8, limit: int = 63, continuations: int = 64) -> None:
        """Limits its drafts as REST does, but not the continuations: its 5,000 would take milliseconds here."""
        self._index = index
        self._leaves, self._limit, self._continuations = leaves, limit, continuations
        self.acceptance = MatchTrust()
        self._position, self._matched = _NOWHERE, 0  # position and match length of the last draft
        # shares of the last draft, by the path above them
        self._guessed: dict[tuple[Token, ...], dict[Token, float]] = {}

    def begin(self, history: History) -> None:
        with suppress(SlipstreamError):  # what is open stays valid, and the next change of the index reports the reason
            self._index.refresh()

    def draft(self, history: History, should_extend: ShouldExtend, sampler: Sampler) -> Draft:
        self._guessed, self._position = {}, _NOWHERE
        if not should_extend(1.0, 1):
            return NO_DRAFT
        found = self._index.search(history.tokens[-DEPTH:], most=self._continuations)
        self._position, self._matched = history.position, found.matched
        return self._follow(found, should_extend) if len(found.ahead) == 1 else self._grow(found.ahead, should_extend)

    def observe(self, history: History, step: Step) -> None:
        position, self._position = self._position, _NOWHERE
        if position != history.position - len(step.tokens):
            return
        above: tuple[Token, ...] = ()
        for token in step.tokens:
            shares = self._guessed.get(above)
            if not shares:
                return
            self.acceptance.add(self._matched + len(above), sum(shares.values()), token in shares)
            if token not in shares:
                return
            above = (*above, token)

    def _follow(self, found: Matches, should_extend: ShouldExtend) -> Draft:
        """Drafts the continuation of a single match, the most frequent case, without a tree."""
        tokens: tuple[Token, ...] = ()
        probs, path = list[float](), 1.0
        for depth, token in enumerate(reversed(found.ahead[0])):
            trust = self.acceptance.trust(found.matched + depth)
            path *= trust
            if token == _END or depth == self._limit or not should_extend(path, depth + 1):
                break
            self._guessed[tokens] = {token: 1.0}
            tokens = (*tokens, token)
            probs.append(trust)
        return chain_draft(tokens, probs, self.name)

    def _grow(self, ahead: Sequence[tuple[Token, ...]], should_extend: ShouldExtend) -> Draft:
        tree = TreeBuilder()
        rows: dict[tuple[Token, ...], Sequence[tuple[Token, ...]]] = {(): ahead}  # by their common path
        tree.offer(TOP, self._counted(ahead, 0))
        for node in tree.grow(should_extend, self.name, self._limit, self._leaves):
            above, token = node.tokens[:-1], node.tokens[-1]
            depth, siblings = len(above), rows[above]
            rows[node.tokens] = agree = [row for row in siblings if row[-1 - depth] == token]
            self._guessed.setdefault(above, {})[token] = len(agree) / len(siblings)
            if depth + 1 < DEPTH:
                tree.offer(node, self._counted(agree, depth + 1))
        return tree.build()

    def _counted(self, rows: Sequence[tuple[Token, ...]], depth: int) -> Children:
        """The tokens at a depth of the rows, the most frequent first; a row is a continuation in reverse."""
        if not rows:
            return ()
        trust = self.acceptance.trust(self._matched + depth)
        if len(rows) == 1:
            token = rows[0][-1 - depth]
            return () if token == _END else ((token, trust),)
        counts = Counter([row[-1 - depth] for row in rows])
        counts.pop(_END, None)
        return [(token, trust * count / len(rows)) for token, count in counts.most_common()]


def _unfit(resources: Resources) -> str:
    if resources.text_index is None or resources.text_index.empty:
        return "it needs indexed text, and there is none: slipstream drafters index FOLDER"
    return ""


def _make(resources: Resources) -> Drafter:
    assert resources.text_index is not None  # ``_unfit`` has checked it
    abilities = resources.abilities
    return Retrieval(resources.text_index, min(8, abilities.max_leaves), min(63, abilities.max_rows - 1))


METHOD: Final = Method(
    Retrieval.name, _make, unfit=_unfit, about="what followed the same words in your past chats and files"
)
