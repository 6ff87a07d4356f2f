"""Drafter ``space``: masks behind the text guess what follows the next token, in the very pass that verifies.

Source: SPACE (Yi et al., Findings of ACL 2024, arXiv 2402.13740; github.com/cteant/SPACE), auto-correct decoding. The
published code samples with a bias (a rejected token's place is drawn from the whole distribution); here every token is
the target's own draw.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate, product
from operator import mul
from typing import ClassVar, Final

import numpy as np

from slipstream.drafters.base import NO_DRAFT, Draft, Drafter, Needs, Step, Worth
from slipstream.drafters.confidence import Confidence
from slipstream.drafters.parts import Method, Parts, needs_heads
from slipstream.drafters.tree import TreeBuilder
from slipstream.models.heads import read_heads
from slipstream.models.sampling import Sampler
from slipstream.models.types import ROOT, Abilities, Floats, History, Token

_CANDIDATES: Final = 12
_SIBLINGS: Final = 2  # beside the first candidate of a place

_HOPE: Final = 2.0  # accepted guesses that every mask is credited with
_FADE: Final = 0.95  # an older outcome weighs so much less with each step, heard or not


class Gains:
    """How often the guess of each mask was accepted, given that those before it were.

    It hopes for the best: what is not known counts as accepted, and what was known fades. So masks that did not pay
    are tried again after a while, the rarer the less they brought.
    """

    def __init__(self, masks: int) -> None:
        """Knows nothing yet."""
        self._tries, self._accepted = [0.0] * masks, [0.0] * masks

    def expected(self) -> list[float]:
        """Per mask, the probability that its guess and those before it will be accepted."""
        pairs = zip(self._accepted, self._tries, strict=True)
        return list(accumulate(((accepted + _HOPE) / (tries + _HOPE) for accepted, tries in pairs), mul))

    def hear(self, tried: int, accepted: int) -> None:
        """Takes one step: of so many masks whose guesses were judged, so many were accepted before the first miss."""
        for mask in range(len(self._tries)):
            self._tries[mask] = _FADE * self._tries[mask] + (mask < tried)
            self._accepted[mask] = _FADE * self._accepted[mask] + (mask < accepted)


_Guess = tuple[float, int, int, int, float]
"""A token that may be drafted: minus its path's probability, depth, rank, its parent's place, its probability."""


@dataclass(slots=True)
class _Place:
    """The root or a candidate.

    Attributes:
        handle: Its handle in the builder.
        depth: Its depth.
        reach: Probability that it is accepted.
        last: Probability that it is the last one accepted.
        masks: Handles of the masks below it.
        parent: Whether candidates stand below it.
    """

    handle: int
    depth: int
    reach: float
    last: float
    masks: list[int]
    parent: bool = False


class Space(Drafter):
    """Verifies the candidates that the last step's masks have guessed, and lets new masks guess, in one pass.

    Below the last token and below every candidate hangs a group of masks, a chain of probes::

        root ── candidate 1 ── candidate 2 ── mask 1 ─ mask 2 ─ mask 3
         │        └ mask 1 ─ mask 2 ─ mask 3
         └ mask 1 ─ mask 2 ─ mask 3

    A mask stands where a token will, and guesses what follows it: behind an accepted prefix comes a token that the
    target draws in this pass, in mask 1's place, so mask 1 guesses the token after it, mask 2 the one after that.
    Whichever prefix is accepted, the group below its end has seen nothing that was rejected. Its rows of logits are
    the next step's candidates: at each depth the tokens that the sampler, with its keyed noise, finds likeliest.

    A group is worth its rows only if the walk ends where it hangs. Each mask is put to ``worth`` with the probability
    that it does, times that of its guess being accepted then, which is measured.
    """

    name: ClassVar[str] = "space"
    needs: ClassVar[Needs] = Needs(leaves=2)

    def __init__(self, abilities: Abilities, masks: int) -> None:
        """Sets the sizes.

        Args:
            abilities: What the target takes; trees stay within its rows, leaves and context.
            masks: How many masks the target was given (``Target.use_masks``).

        Raises:
            ValueError: If the target takes no masks.
        """
        if not abilities.masks or masks < 1:
            raise ValueError(f"no drafting with {masks} masks on this target")
        self._abilities = abilities
        self._gains = Gains(masks)
        self._confidence = [Confidence() for _ in range(masks)]
        self._rows: Floats = np.empty((masks, abilities.n_vocab), np.float32)
        self._ready = 0  # rows that hold guesses for what follows a text of this length:
        self._follow = 0
        self._at = 0  # length of the history that was drafted for
        self._ranked: list[tuple[list[Token], list[float]]] = []  # by depth: tokens, best first, and their shares
        self._evaluated: tuple[Draft, dict[int, tuple[int, int]]] = (NO_DRAFT, {})  # node to first mask, masks below it

    def begin(self, history: History) -> None:
        """Starts a reply: nothing is guessed yet."""
        self._ready = 0

    def draft(self, history: History, worth: Worth, sampler: Sampler) -> Draft:
        """Drafts what the masks have guessed, and lets them guess again."""
        self._at = len(history.tokens)
        if self._follow != self._at:
            self._ready = 0  # another drafter's steps have gone by
        self._ranked.clear()
        self._evaluated = NO_DRAFT, {}
        room = min(self._abilities.max_rows - 1, self._abilities.n_ctx - len(history.tokens))
        builder = TreeBuilder()
        places = self._add_candidates(builder, history, worth, sampler, room)
        self._add_masks(builder, places, worth, room)
        draft = builder.build()
        node = {handle: node for node, handle in enumerate(builder.layout())} | {ROOT: ROOT}
        groups = {node[each.handle]: (node[each.masks[0]], len(each.masks)) for each in places if each.masks}
        self._evaluated = draft, groups
        return draft

    def observe(self, history: History, step: Step) -> None:
        """Measures the guesses, and takes those of the group below the last accepted candidate."""
        draft, groups = self._evaluated
        mine = step.draft is draft
        if self._at == len(history.tokens) - len(step.tokens):
            self._measure(step, mine)
        self._ready = 0
        if mine and not step.ended:
            first, self._ready = groups.get(step.path[-1] if step.path else ROOT, (0, 0))
            self._rows[: self._ready] = step.evaluation.logits[first + 1 : first + 1 + self._ready]
            self._follow = len(history.tokens)

    def rewind(self, length: int) -> None:
        """Forgets the guesses: they followed what was cut."""
        self._ready = 0

    def _add_candidates(
        self, builder: TreeBuilder, history: History, worth: Worth, sampler: Sampler, room: int
    ) -> list[_Place]:
        """Adds the guessed tokens, the most probable path first, and returns the root and them."""
        places = [_Place(ROOT, 0, 1.0, 1.0, [])]
        waiting: list[_Guess] = []
        leaves, most = 1, min(_CANDIDATES, room)
        self._offer(waiting, places, 0, 0, history, sampler)
        while waiting and len(builder) < most:
            minus, depth, rank, above, prob = heappop(waiting)
            parent = places[above]
            if not worth(-minus, depth) or (parent.parent and 2 * leaves >= self._abilities.max_leaves):
                continue  # its siblings, which are less probable, fall with it; groups need leaves too
            leaves += parent.parent
            parent.parent = True
            parent.last = max(0.0, parent.last + minus)
            handle = builder.add(parent.handle, self._ranked[depth - 1][0][rank], prob, self.name)
            places.append(_Place(handle, depth, -minus, -minus, []))
            self._offer(waiting, places, len(places) - 1, 0, history, sampler)
            self._offer(waiting, places, above, rank + 1, history, sampler)
        return places

    def _offer(
        self,
        waiting: list[_Guess],
        places: list[_Place],
        above: int,
        rank: int,
        history: History,
        sampler: Sampler,
    ) -> None:
        """Puts the guess of a rank below a place on the heap, if there is one; all places so deep have the same."""
        depth = places[above].depth + 1
        if depth > self._ready:
            return
        if depth > len(self._ranked):
            ahead = [tokens[0] for tokens, _ in self._ranked]
            self._ranked.append(sampler.rank(self._rows[depth - 1], history, ahead, 1 + _SIBLINGS))
        shares = self._ranked[depth - 1][1]
        if rank < len(shares):
            prob = self._confidence[depth - 1].corrected(shares[rank])
            heappush(waiting, (-places[above].reach * prob, depth, rank, above, prob))

    def _add_masks(self, builder: TreeBuilder, places: list[_Place], worth: Worth, room: int) -> None:
        """Adds masks, the one that is likeliest to bring a token first, as long as they are worth their rows."""
        expected = self._gains.expected()
        pairs = product(enumerate(places), enumerate(expected))
        wanted = sorted((-place.last * gain, at, mask) for (at, place), (mask, gain) in pairs)
        leaves = sum(not place.parent for place in places)
        for minus, at, mask in wanted:
            place = places[at]
            if len(builder) >= room:
                return
            branches = place.parent and not mask
            if (
                len(place.masks) != mask  # the one before it was left out
                or (branches and leaves == self._abilities.max_leaves)
                or not worth(-minus, place.depth + 2 + mask)  # where its guess will stand
            ):
                continue
            leaves += branches
            above = place.masks[-1] if mask else place.handle
            place.masks.append(builder.add(above, self._abilities.n_vocab + mask, 0.0, self.name, probe=True))

    def _measure(self, step: Step, mine: bool) -> None:
        """Hears which guesses were right, drafted or not, and what the masks have brought."""
        for (tokens, shares), confidence, right in zip(self._ranked, self._confidence, step.tokens, strict=False):
            for token, share in zip(tokens, shares, strict=True):
                confidence.hear(share, token == right)
            if right not in tokens:
                break
        accepted = len(step.path) if mine else 0
        judged = accepted + (mine and not step.ended)
        self._gains.hear(min(self._ready, judged), accepted)


def _lacks(parts: Parts) -> str:
    missing = needs_heads(Space.name)(parts)
    if missing or parts.abilities.masks:
        return missing
    return "llama.cpp takes vectors in another way than tokens in models of this kind, and masks are vectors"


def _make(parts: Parts) -> Drafter:
    assert parts.llama is not None  # _lacks has said so
    masks = read_heads(parts.heads[Space.name]).tensors["masks"]
    parts.llama.use_masks(masks)
    return Space(parts.abilities, len(masks))


METHOD = Method(Space.name, _make, Space.needs, _lacks, "masks guess what follows in the pass that verifies")
