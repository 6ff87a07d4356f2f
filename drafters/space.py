"""Drafter ``space``: masks after the text guess the tokens after the next one, in the same pass that verifies a draft.

Source: SPACE (Yi et al., Findings of ACL 2024, arXiv 2402.13740; github.com/cteant/SPACE), auto-correct decoding. The
published code samples with a bias (it replaces a rejected token by a draw from the whole distribution); here every
token is the target's own draw.
"""

from dataclasses import dataclass, field
from itertools import accumulate, product
from operator import mul
from typing import Final

import numpy as np

from slipstream.drafters.base import NO_DRAFT, Draft, Drafter, Needs, ShouldExtend, Step
from slipstream.drafters.calibration import ProbabilityCalibration, Ratio
from slipstream.drafters.resources import Method, Resources
from slipstream.drafters.tree import TOP, Children, TreeBuilder
from slipstream.models.heads.file import read_heads
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import ROOT, Abilities, Floats, History, Token

_CANDIDATES: Final = 12
_SIBLINGS: Final = 2  # besides the first candidate of a position
_HOPE: Final = 2.0  # weight of the optimistic prior: accepted guesses that every mask starts with
_DECAY: Final = 0.95  # per step, whether or not the mask was tried


class MaskGains:
    """How often the guess of each mask was accepted, given that the guesses before it were.

    The estimate is optimistic: unknown outcomes count as accepted, and old ones fade. So masks that did not pay are
    tried again after a while; the less they gained, the later.
    """

    def __init__(self, masks: int) -> None:
        self.ratios = [Ratio(_DECAY, 0.0, 0.0) for _ in range(masks)]  # per mask, its accepted guesses over its tries

    def expected(self) -> list[float]:
        """Per mask, the probability that its guess and those before it will be accepted."""
        return list(accumulate((ratio.given(1.0, _HOPE) for ratio in self.ratios), mul))

    def add(self, tried: int, accepted: int) -> None:
        """Adds a step: how many masks' guesses were decided, and how many were accepted before the first miss."""
        for mask, ratio in enumerate(self.ratios):
            ratio.add(mask < accepted, mask < tried)


@dataclass(slots=True)
class _Place:
    handle: int
    depth: int
    last: float  # probability that it is the last one accepted
    masks: list[int] = field(default_factory=list)  # handles of the masks below it
    parent: bool = False  # whether there are candidates below it


class Space(Drafter):
    """Verifies the candidates of the last step's masks and evaluates new masks, in one pass.

    Below the last token and below every candidate is a group of masks, a chain of probes::

        root ── candidate 1 ── candidate 2 ── mask 1 ─ mask 2 ─ mask 3
         │        └ mask 1 ─ mask 2 ─ mask 3
         └ mask 1 ─ mask 2 ─ mask 3

    A mask takes the position of an unknown token and guesses the token after it. The target draws the token after the
    accepted prefix in this pass; mask 1 has that token's position. So mask 1 guesses the token after it, and mask 2 the
    next. Only the group below the end of the accepted prefix is used: it attended to no rejected token. Its rows of
    logits give the next step's candidates: at each depth, the most probable tokens by the sampler and its keyed noise.

    A group pays for its rows only if the accepted path ends at the node above it. ``should_extend`` decides on each
    mask by the probability of this, times the measured probability that the mask's guess is then accepted.
    """

    name = "space"
    needs = Needs(leaves=2)

    def __init__(self, abilities: Abilities, masks: int) -> None:
        if not abilities.masks or masks < 1:
            raise ValueError(f"no drafting with {masks} masks on this target")
        self._abilities = abilities
        self.gains = MaskGains(masks)
        self._calibrations = [ProbabilityCalibration() for _ in range(masks)]
        self._rows: Floats = np.empty((masks, abilities.n_vocab), np.float32)
        self._ready = 0  # rows that hold guesses
        self._follow = 0  # length of the text that the guesses follow
        self._at = 0  # length of the history at the last draft
        self._ranked: list[tuple[list[Token], list[float]]] = []  # by depth: tokens, best first, and their shares
        self._evaluated: tuple[Draft, dict[int, tuple[int, int]]] = (NO_DRAFT, {})  # node to first mask, mask count

    def begin(self, history: History) -> None:
        self._ready = 0

    def draft(self, history: History, should_extend: ShouldExtend, sampler: Sampler) -> Draft:
        self._at = len(history.tokens)
        if self._follow != self._at:
            self._ready = 0  # later steps evaluated other drafts
        self._ranked.clear()
        self._evaluated = NO_DRAFT, {}
        room = min(self._abilities.max_rows - 1, self._abilities.n_ctx - len(history.tokens))
        tree = TreeBuilder()
        places = self._add_candidates(tree, history, should_extend, sampler, room)
        self._add_masks(tree, places, should_extend, room)
        draft = tree.build()
        node = {handle: node for node, handle in enumerate(tree.layout())} | {ROOT: ROOT}
        groups = {node[each.handle]: (node[each.masks[0]], len(each.masks)) for each in places if each.masks}
        self._evaluated = draft, groups
        return draft

    def observe(self, history: History, step: Step) -> None:
        """Measures the guesses, and keeps those of the group below the last accepted candidate."""
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
        """Drops the guesses: they followed the cut text."""
        self._ready = 0

    def _add_candidates(
        self, tree: TreeBuilder, history: History, should_extend: ShouldExtend, sampler: Sampler, room: int
    ) -> list[_Place]:
        """Adds the guessed tokens, the most probable path first; returns the places of the root and of these."""
        places: dict[tuple[Token, ...], _Place] = {(): _Place(ROOT, 0, 1.0)}  # by path
        leaves = (self._abilities.max_leaves + 1) // 2  # groups of masks need leaves too
        tree.offer(TOP, self._candidates(1, history, sampler))
        for node in tree.grow(should_extend, self.name, min(_CANDIDATES, room), leaves):
            parent, depth = places[node.tokens[:-1]], len(node.tokens)
            parent.parent, parent.last = True, max(0.0, parent.last - node.path)
            places[node.tokens] = _Place(node.handle, depth, node.path)
            tree.offer(node, self._candidates(depth + 1, history, sampler))
        return list(places.values())

    def _candidates(self, depth: int, history: History, sampler: Sampler) -> Children:
        """The guessed tokens of a depth, if there are any; they are the same below every place."""
        if depth > self._ready:
            return ()
        if depth > len(self._ranked):
            ahead = [tokens[0] for tokens, _ in self._ranked]
            self._ranked.append(sampler.rank(self._rows[depth - 1], history, ahead, 1 + _SIBLINGS))
        tokens, shares = self._ranked[depth - 1]
        return zip(tokens, map(self._calibrations[depth - 1].corrected, shares), strict=True)

    def _add_masks(self, tree: TreeBuilder, places: list[_Place], should_extend: ShouldExtend, room: int) -> None:
        """Adds masks while they pay for their rows, first the one that most probably gains a token."""
        pairs = product(enumerate(places), enumerate(self.gains.expected()))
        wanted = sorted((-place.last * gain, at, mask) for (at, place), (mask, gain) in pairs)
        for minus, at, mask in wanted:
            place = places[at]
            if len(tree) >= room:
                return
            if (
                len(place.masks) != mask  # the one before it was left out
                or (place.parent and not mask and tree.leaves == self._abilities.max_leaves)
                or not should_extend(-minus, place.depth + 2 + mask)  # the depth of its guess
            ):
                continue
            above = place.masks[-1] if mask else place.handle
            place.masks.append(tree.add(above, self._abilities.n_vocab + mask, 0.0, self.name, probe=True))

    def _measure(self, step: Step, mine: bool) -> None:
        """Measures which guesses were right, even if they were not drafted, and the gain of the masks."""
        for (tokens, shares), calibration, right in zip(self._ranked, self._calibrations, step.tokens, strict=False):
            for token, share in zip(tokens, shares, strict=True):
                calibration.add(share, token == right)
            if right not in tokens:
                break
        accepted = len(step.path) if mine else 0
        judged = accepted + (mine and not step.ended)
        self.gains.add(min(self._ready, judged), accepted)


def _unfit(resources: Resources) -> str:
    if resources.abilities.masks:
        return ""
    return "llama.cpp takes vectors in another way than tokens in models of this kind, and masks are vectors"


def _make(resources: Resources) -> Drafter:
    assert resources.llama is not None  # ``Method.lacks`` has checked it
    masks = read_heads(resources.heads[Space.name], resources.header).tensors["masks"]
    resources.llama.use_masks(masks)
    return Space(resources.abilities, len(masks))


METHOD: Final = Method(
    Space.name, _make, Space.needs, heads=True, unfit=_unfit, about="the model guesses ahead while it checks"
)
