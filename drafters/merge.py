"""Several drafters at once: one tree of all their drafts."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import ClassVar

from slipstream.drafters.base import Draft, Drafter, Worth
from slipstream.drafters.chain import Several
from slipstream.drafters.tree import TreeBuilder
from slipstream.models.sampling import Sampler
from slipstream.models.types import ROOT, Abilities, History, Token


class Merged(Several):
    """Lets every drafter draft, and merges their trees, the most probable path first.

    What two drafters guess alike is evaluated once. Probes are never merged: their drafter reads them in its own tree
    alone, so that they are evaluated only where nobody else has drafted.
    """

    name: ClassVar[str] = "merged"

    def __init__(self, drafters: Sequence[Drafter], abilities: Abilities) -> None:
        """Takes over some drafters; trees stay within the rows, leaves and context that the target takes."""
        super().__init__(drafters)
        self._abilities = abilities

    def draft(self, history: History, worth: Worth, sampler: Sampler) -> Draft:
        """Drafts with all."""
        drafts = [drafter.draft(history, worth, sampler) for drafter in self._drafters]
        guesses = [draft for draft in drafts if draft.tree.drafted]
        if len(guesses) > 1:
            return merged(guesses, self._abilities, len(history.tokens))
        return max(guesses or drafts, key=lambda draft: len(draft.tree))


def merged(drafts: Sequence[Draft], abilities: Abilities, size: int) -> Draft:
    """Adds the nodes of several drafts, the most probable path first, parents before their children.

    Args:
        drafts: What to merge, without their probes; of equal nodes the more probable one stays.
        abilities: The tree stays within the rows and leaves that the target takes, and its context.
        size: Tokens of the text so far.
    """
    room = min(abilities.max_rows - 1, abilities.n_ctx - size)
    builder, leaves, branched = TreeBuilder(), 1, set[int]()
    placed: set[tuple[int, Token]] = set()
    waiting = [entry for which, draft in enumerate(drafts) for entry in _below(draft, which, ROOT, ROOT, 1.0)]
    waiting.sort()
    while waiting:
        minus, which, node, parent = heappop(waiting)
        draft = drafts[which]
        token, prob = draft.tree.tokens[node], draft.probs[node]
        if (parent, token) not in placed:
            if len(builder) >= room or (parent in branched and leaves == abilities.max_leaves):
                continue  # what hangs below it falls with it
            leaves += parent in branched
            branched.add(parent)
            placed.add((parent, token))
        handle = builder.add(parent, token, prob, draft.sources[node])
        for entry in _below(draft, which, node, handle, -minus):
            heappush(waiting, entry)
    return builder.build()


def _below(draft: Draft, which: int, node: int, handle: int, path: float) -> list[tuple[float, int, int, int]]:
    """The children of a node of a draft: minus their path's probability, the draft, the child, its parent's handle."""
    tree = draft.tree
    return [
        (-path * draft.probs[child], which, child, handle)
        for child, parent in enumerate(tree.parents)
        if parent == node and child not in tree.probes
    ]
