"""Speculative decoding with a draft model (Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318)."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import islice
from typing import ClassVar, Final, NamedTuple

from slipstream.drafters.base import NO_DRAFT, Draft, Drafter, Step, Worth
from slipstream.drafters.follower import Follower
from slipstream.drafters.parts import Method, Parts
from slipstream.drafters.rankings import Rankings
from slipstream.drafters.translated_model import TranslatedModel
from slipstream.drafters.tree import TreeBuilder, chain_draft
from slipstream.models.runtime.target import Target
from slipstream.models.sampling import Sampler
from slipstream.models.types import EMPTY_TREE, ROOT, Abilities, History, Token

_SIBLINGS: Final = 4  # tokens that are looked at for each position
_LEAVES: Final = 4
_NODES: Final = 16


class _Sibling(NamedTuple):
    """A node that may be drafted; the least of them is the best.

    Attributes:
        minus: Minus the probability of the path that ends in it.
        depth: Its depth, from 1.
        parent: The handle of its parent.
        above: The tokens from the root to its parent.
        token: Its token.
        prob: Its probability given its parent.
    """

    minus: float
    depth: int
    parent: int
    above: tuple[Token, ...]
    token: Token
    prob: float


class DraftModel(Drafter):
    """A small model of the same vocabulary drafts a chain, and a small tree around it where that pays.

    It draws with the target's own keyed noise: where both models draw the same token from the same noise, the draft is
    right, at any temperature (Daliri et al., arXiv 2408.07978). The chain comes first, a pass for each token, until the
    next token is not worth it. Then the tokens that came next at each of its positions are taken up, best first, as far
    as they are worth it, and those that may go on are all decoded in one pass, until nothing more is worth drafting.
    """

    name: ClassVar[str] = "draft"

    def __init__(self, model: Target, abilities: Abilities, leaves: int = _LEAVES) -> None:
        """Takes over a draft model.

        Args:
            model: The draft model; during a reply nobody else may use it, and its owner closes it.
            abilities: Of the target, whose vocabulary may be the smaller one (padding).
            leaves: Most leaves of a tree; 1 for chains.
        """
        self._model, self._n_vocab = model, abilities.n_vocab
        self._leaves = min(leaves, abilities.max_leaves, model.abilities.max_leaves)
        self._rows = min(abilities.max_rows, model.abilities.max_rows) - 1
        self._siblings = _SIBLINGS if self._leaves > 1 else 1
        self._follower = Follower(model)
        self._rankings = Rankings()

    def begin(self, history: History) -> None:
        """Starts a reply; the cache keeps what it shares with the new prompt."""
        self._at = 0
        self._follower.begin()

    def draft(self, history: History, worth: Worth, sampler: Sampler) -> Draft:
        """Drafts a chain or a tree."""
        self._rankings.begin(history)
        if not worth(1.0, 1) or not self._follower.follow(history.tokens):
            return NO_DRAFT
        tokens: list[Token] = []
        probs: list[float] = []
        path = 1.0
        room = min(self._rows, self._model.abilities.n_ctx - len(history.tokens))
        while len(tokens) < room and worth(path, len(tokens) + 1):
            evaluation = self._model.evaluate(tokens[-1] if tokens else history.tokens[-1], EMPTY_TREE)
            self._model.keep(())
            ranked, shares = sampler.rank(evaluation.logits[0, : self._n_vocab], history, tokens, self._siblings)
            token, prob = next(self._rankings.look(tuple(tokens), ranked, shares))
            path *= prob
            if not worth(path, len(tokens) + 1):
                break
            tokens.append(token)
            probs.append(prob)
        if self._leaves > 1:
            waiting = self._beside(tokens, probs, worth)
            if waiting:
                return self._tree(history, worth, sampler, tokens, probs, waiting)
        return chain_draft(tokens, probs, self.name)

    def observe(self, history: History, step: Step) -> None:
        """Measures the probabilities by the target's tokens, whoever drafted the step."""
        self._rankings.hear(history, step)

    def reading_ms(self, history: History) -> float:
        """Milliseconds of the prompt that it has not read."""
        return self._follower.reading_ms(history.tokens)

    def rewind(self, length: int) -> None:
        """Forgets what follows ``length``."""
        self._follower.rewind(length)

    def _beside(self, tokens: list[Token], probs: list[float], worth: Worth) -> list[_Sibling]:
        """The tokens beside a chain that are worth it; the parent of one at depth d is the chain's node d - 2."""
        waiting: list[_Sibling] = []
        path = 1.0
        for at in range(len(tokens) + 1):
            above = tuple(tokens[:at])
            if above in self._rankings:
                self._offer(waiting, at - 1, above, path, worth, 1 if at < len(tokens) else 0)
            if at < len(probs):
                path *= probs[at]
        return waiting

    def _offer(
        self, waiting: list[_Sibling], parent: int, above: tuple[Token, ...], path: float, worth: Worth, start: int = 0
    ) -> None:
        """Puts the ranked tokens below a node on the heap, from the ``start``-th on, as far as they are worth it."""
        depth = len(above) + 1
        for token, prob in islice(self._rankings.after(above), start, None):
            if not worth(path * prob, depth):
                return  # the others are less probable
            heappush(waiting, _Sibling(-path * prob, depth, parent, above, token, prob))

    def _tree(
        self,
        history: History,
        worth: Worth,
        sampler: Sampler,
        tokens: list[Token],
        probs: list[float],
        waiting: list[_Sibling],
    ) -> Draft:
        """Grows a tree around a chain."""
        builder = TreeBuilder()
        chain = builder.add_path(tokens, probs, self.name)
        room = min(_NODES, self._rows, self._model.abilities.n_ctx - len(history.tokens))
        leaves, parents = 1, {ROOT, *chain[:-1]} if chain else set[int]()
        while True:
            grown: dict[int, _Sibling] = {}
            while waiting and len(builder) < room:
                best = heappop(waiting)
                if best.parent in parents and leaves == self._leaves:
                    continue
                leaves += best.parent in parents
                parents.add(best.parent)
                handle = builder.add(best.parent, best.token, best.prob, self.name)
                if worth(-best.minus, best.depth + 1):
                    grown[handle] = best
            if not grown or len(builder) >= room:
                return builder.build()
            self._look_below(history, sampler, builder, grown, chain)
            for handle, best in grown.items():
                self._offer(waiting, handle, (*best.above, best.token), -best.minus, worth)

    def _look_below(
        self,
        history: History,
        sampler: Sampler,
        builder: TreeBuilder,
        grown: dict[int, _Sibling],
        chain: tuple[int, ...],
    ) -> None:
        """Ranks what follows some nodes, all in one pass; the cache keeps the chain, which is most often right."""
        self._model.rewind(len(history.tokens) - 1)
        place = {handle: node for node, handle in enumerate(builder.layout())}
        evaluation = self._model.evaluate(history.tokens[-1], builder.build().tree)
        for handle, best in grown.items():
            above = (*best.above, best.token)
            logits = evaluation.logits[place[handle] + 1, : self._n_vocab]
            self._rankings.look(above, *sampler.rank(logits, history, above, self._siblings))
        self._model.keep([place[handle] for handle in chain])


def _lacks(parts: Parts) -> str:
    if parts.draft_model is None:
        return "it needs a draft model, and this model has none"
    return "" if parts.draft_model.abilities.max_leaves else "its draft model cannot take back tokens"


def _make(parts: Parts) -> Drafter:
    assert parts.draft_model is not None  # _lacks has said so
    if parts.translation:
        return TranslatedModel(parts.draft_model, parts.abilities, parts.translation)
    return DraftModel(parts.draft_model, parts.abilities)


METHOD = Method(DraftModel.name, _make, DraftModel.needs, _lacks, "a smaller model writes ahead")
