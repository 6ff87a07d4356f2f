"""Trees of fixed shape, and a drafter that is right as often as its script says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from slipstream.drafters.base import NO_DRAFT, Draft, Drafter, Needs, ShouldExtend
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import ROOT, History, Token, TokenTree


@dataclass(frozen=True, slots=True)
class TreeShape:
    """A tree without tokens."""

    parents: tuple[int, ...]  # index of each node's parent, depth first
    # what the target accepts, turn by turn: nodes from the root down; an empty path rejects everything
    paths: tuple[tuple[int, ...], ...]

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return len(self.parents)

    @property
    def leaves(self) -> int:
        """Number of leaves."""
        return self.nodes - len(set(self.parents) - {ROOT})


NODES_1: Final = TreeShape((ROOT,), ((), (0,)))
NODES_4: Final = TreeShape((ROOT, 0, ROOT, 2), ((), (0,), (0, 1), (2, 3)))
# eight leaves, three of the six turns along another path than the first
NODES_16: Final = TreeShape(
    (ROOT, 0, 1, 2, 2, 1, 0, 6, 0, ROOT, 9, 10, 9, 12, ROOT, 14),
    ((), (0,), (0, 1, 2, 3), (0, 6, 7), (0, 1, 5), (9, 10, 11)),
)


class ScriptedDrafter(Drafter):
    """Drafts one shape forever, from a text that is known in advance.

    It shows what a step costs beside the models: its own work is next to nothing, and a fixed share of it is right.
    """

    name = "scripted"
    needs = Needs(leaves=16)

    def __init__(self, shape: TreeShape, text: Sequence[Token], start: int, n_vocab: int) -> None:
        """Keeps the script.

        Args:
            shape: The tree of every step.
            text: What plain decoding writes.
            start: Index in the history of the text's first token.
            n_vocab: Size of the vocabulary.
        """
        self._shape, self._text, self._start, self._n_vocab = shape, text, start, n_vocab
        self._depths = TokenTree((0,) * shape.nodes, shape.parents).depths
        self._probs, self._sources = (0.5,) * shape.nodes, (self.name,) * shape.nodes
        self._turn = 0

    def draft(self, history: History, should_extend: ShouldExtend, sampler: Sampler) -> Draft:
        """Drafts the turn's path right and every other node wrong; nothing where the text ends."""
        at = len(history.tokens) - self._start
        if at + max(self._depths) > len(self._text):
            return NO_DRAFT
        tokens = [(self._text[at + depth - 1] + 1 + node) % self._n_vocab for node, depth in enumerate(self._depths)]
        for node in self._shape.paths[self._turn % len(self._shape.paths)]:
            tokens[node] = self._text[at + self._depths[node] - 1]
        self._turn += 1
        return Draft(TokenTree(tuple(tokens), self._shape.parents), self._probs, self._sources)
