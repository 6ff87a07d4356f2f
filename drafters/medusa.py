"""Drafter ``medusa``: heads on the target's last hidden state guess the next few places at once, verified as a tree.

Source: Medusa (Cai et al., arXiv 2401.10774; github.com/FasterDecoding/Medusa). The published trees are static and were
measured for one model; here the tree grows best first, from what the heads say now and how often that was so before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from typing import ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.drafters.base import NO_DRAFT, Draft, Drafter, Needs, Step, Worth
from slipstream.drafters.medusa_heads import MedusaHeads, rank_accuracies, unfit
from slipstream.drafters.parts import Method, Parts, needs_heads
from slipstream.drafters.tree import TreeBuilder
from slipstream.models.errors import SlipstreamError
from slipstream.models.noise import gumbel
from slipstream.models.runtime.network import threads_of
from slipstream.models.sampling import Sampler
from slipstream.models.types import LAST_HIDDEN, ROOT, Abilities, Floats, History, Token

_KEPT: Final = 16
"""Tokens that a head names; the published trees use at most 10."""

_NODES: Final = 63  # of the published trees
_LEARNT: Final = 50  # outcomes that the record from training counts for
_DECAY: Final = 0.995  # an older outcome weighs so much less with each one after it
_MOST: Final = 0.98  # no guess is surer

_NOISE: Final = 0.4
"""Share of the target's own noise that enters the ranking.

The whole of it would be right for heads that know the target's distribution; those of the bundled model draft 2 to 5 %
more accepted tokens with 0.3 to 0.5, and less with 0.75 or 1 than with none (temperature 0.8, trees of 8 and 16).
"""


class RankRecord:
    """How much more or less often the token of each rank was right than its head said, by depth.

    A depth is heard where all above it was accepted, whatever was drafted there: below a rejection nothing is known.
    """

    def __init__(self, accuracies: Floats, ranks: int) -> None:
        """Starts from what training measured.

        Args:
            accuracies: [heads, known ranks]; further ranks are taken to be like the last.
            ranks: Ranks that are kept.
        """
        known = accuracies[:, np.minimum(np.arange(ranks), accuracies.shape[1] - 1)]
        self._right = np.maximum(_LEARNT * known, 1e-3).astype(np.float64)
        self._said = self._right.copy()

    def corrected(self, said: Floats) -> Floats:
        """Turns what heads say, [heads, ranks], to probabilities given that all above was accepted."""
        found: Floats = np.minimum(said * (self._right / self._said), _MOST).astype(np.float32)
        return found

    def hear(self, head: int, said: Floats, rank: int | None) -> None:
        """Takes what a head said of its ranks and which one was right, None for none of them."""
        self._right[head] *= _DECAY
        self._said[head] *= _DECAY
        self._said[head] += said
        if rank is not None:
            self._right[head, rank] += 1


class _Candidate(NamedTuple):
    """A node that may be drafted; the least of them is the best.

    Attributes:
        minus: Minus the probability of the path that ends in it.
        depth: Its depth, from 1.
        parent: The handle of its parent.
        place: Which of its parent's children it is, by probability.
        path: The probability of the path to its parent.
    """

    minus: float
    depth: int
    parent: int
    place: int
    path: float


class Medusa(Drafter):
    """Head k guesses the token k + 2 after the one whose hidden state it reads, without knowing those between.

    The state of the last accepted token comes with the evaluation that accepted it, so that a draft costs the heads
    alone. The token after it, drawn from that state, is the history's last: head 0 guesses the first drafted token.
    """

    name: ClassVar[str] = "medusa"
    needs: ClassVar[Needs] = Needs(frozenset({LAST_HIDDEN}))

    def __init__(self, heads: MedusaHeads, abilities: Abilities, nodes: int = _NODES) -> None:
        """Takes over heads.

        Args:
            heads: Of the target; closed with the drafter.
            abilities: What the target takes; trees stay within its rows, leaves and context.
            nodes: Most nodes of a tree.
        """
        self._heads = heads
        self._n_ctx = abilities.n_ctx
        self._nodes = min(nodes, abilities.max_rows - 1)
        self._leaves = abilities.max_leaves
        self.needs = Needs(Medusa.needs.hidden, self._leaves)  # type: ignore[misc]  # of the target, not of the class
        self._record = RankRecord(rank_accuracies(heads.info, heads.count), heads.kept)
        self._state: Floats | None = None  # of the token before the history's last
        self._at: int | None = None  # length of the history whose last token follows the state's, once it is known
        self._guess: tuple[NDArray[np.int32], Floats] | None = None  # what was said in this step

    def begin(self, history: History) -> None:
        """Starts a reply: nothing is known until the target has read something."""
        self._state = self._guess = None
        self._at = len(history.tokens)

    def prefilled(self, tokens: Sequence[Token], hidden: Mapping[int, Floats]) -> None:
        """Takes the state of the last token that was read: after the whole prompt that is the last but one."""
        self._state = hidden[LAST_HIDDEN][-1].copy()

    def draft(self, history: History, worth: Worth, sampler: Sampler) -> Draft:
        """Grows a tree, the most probable node first, as long as nodes are worth it."""
        self._guess = None
        room = min(self._nodes, self._n_ctx - len(history.tokens))
        stale = self._at not in (None, len(history.tokens))  # another drafter's steps have gone by
        if self._state is None or stale or not worth(1.0, 1) or room < 1:
            return NO_DRAFT
        tokens, said = self._heads.best(self._state)
        if not np.isfinite(said).all():  # the target's state is not a number; its sampler will say so
            return NO_DRAFT
        if sampler.temperature:
            tokens, said = _noisy(tokens, said, sampler, history.position)
        self._guess = tokens, said
        probs = self._record.corrected(said)
        order = (-probs).argsort(axis=1, kind="stable")
        return self._grow(
            np.take_along_axis(tokens, order, axis=1).tolist(),
            np.take_along_axis(probs, order, axis=1).tolist(),
            room,
            worth,
        )

    def observe(self, history: History, step: Step) -> None:
        """Measures the heads by the step's tokens, and takes the state of the last accepted one."""
        if self._guess:
            tokens, said = self._guess
            for head, token in enumerate(step.tokens[: self._heads.count]):
                places = (tokens[head] == token).nonzero()[0]
                self._record.hear(head, said[head], int(places[0]) if len(places) else None)
        row = step.path[-1] + 1 if step.path else 0
        self._state, self._guess = step.evaluation.hidden[LAST_HIDDEN][row].copy(), None
        self._at = len(history.tokens)

    def rewind(self, length: int) -> None:
        """Forgets the state, whose token may be gone."""
        self._state = self._guess = None

    def close(self) -> None:
        """Frees the heads."""
        self._heads.close()

    def _grow(self, tokens: list[list[Token]], probs: list[list[float]], room: int, worth: Worth) -> Draft:
        """Takes the most probable paths; each list is one depth, the most probable token first."""
        builder, leaves, branched = TreeBuilder(), 1, set[int]()
        waiting = [_Candidate(-probs[0][0], 1, ROOT, 0, 1.0)]
        while waiting and len(builder) < room:
            minus, depth, parent, place, path = heappop(waiting)
            if not worth(-minus, depth) or (parent in branched and leaves >= self._leaves):
                continue  # its siblings, which are less probable, fall with it
            leaves += parent in branched
            branched.add(parent)
            level = probs[depth - 1]
            handle = builder.add(parent, tokens[depth - 1][place], level[place], self.name)
            if place + 1 < len(level):
                heappush(waiting, _Candidate(-path * level[place + 1], depth, parent, place + 1, path))
            if depth < len(probs):
                heappush(waiting, _Candidate(minus * probs[depth][0], depth + 1, handle, 0, -minus))
        return builder.build()


def _noisy(
    tokens: NDArray[np.int32], said: Floats, sampler: Sampler, position: int
) -> tuple[NDArray[np.int32], Floats]:
    """Favours the tokens that the target's noise favours at each place, and keeps what a head gives to all of them."""
    noise = np.stack([gumbel(sampler.seed, position + head, ids) for head, ids in enumerate(tokens.astype(np.int64))])
    tilted = said * np.exp(_NOISE * sampler.temperature * noise)
    tilted *= said.sum(axis=1, keepdims=True) / tilted.sum(axis=1, keepdims=True)
    order = (-tilted).argsort(axis=1, kind="stable")
    return np.take_along_axis(tokens, order, axis=1), np.take_along_axis(tilted, order, axis=1).astype(np.float32)


def _lacks(parts: Parts) -> str:
    missing = needs_heads(Medusa.name)(parts)
    if missing:
        return f"{missing}; slipstream drafters train medusa -m MODEL trains them"
    try:
        return unfit(parts.heads[Medusa.name], parts.abilities)
    except SlipstreamError as error:
        return f"its medusa heads cannot be read: {error.title}"


def _make(parts: Parts) -> Drafter:
    assert parts.llama is not None  # _lacks has said so
    heads = MedusaHeads(parts.heads[Medusa.name], threads_of(parts.llama), _KEPT)
    return Medusa(heads, parts.abilities)


METHOD = Method(
    Medusa.name, _make, Medusa.needs, _lacks, about="trained heads guess a tree of the next few tokens at once"
)
