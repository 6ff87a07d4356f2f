"""The types that models, drafters and the engine share: tokens, trees, evaluations, abilities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

Token = int  # a token id of the target's vocabulary
Floats = NDArray[np.float32]
KvType = Literal["f32", "f16", "q8_0", "q4_0"]  # the number type of a KV cache
# types of a KV cache that need flash attention; they store blocks of 32 numbers of a head
PACKED: Final = frozenset({"q8_0", "q4_0"})
_RUN: Final = 4  # length of a run of tokens that counts as a repetition
ROOT: Final = -1  # the parent of a tree's first nodes: the last committed token, not yet in the KV cache
LAST_HIDDEN: Final = -1
"""The hidden point after the last layer and the final norm; a point n >= 0 is the input of layer n."""
MTP_HIDDEN: Final = -2
"""The hidden point that a model's MTP layer reads: after the last layer, before or after the final norm,
depending on how the MTP layer was trained."""


def pass_tokens(flash: bool) -> int:
    """Maximum tokens of a prefill pass; fewer without flash attention, since all scores of the pass are then stored."""
    return 512 if flash else 128


def shared_prefix(mine: Sequence[Token], theirs: Sequence[Token], start: int = 0) -> int:
    """Length of the common prefix of two texts; their first ``start`` tokens are known to be equal."""
    end = min(len(mine), len(theirs))
    while start < end and mine[start] == theirs[start]:
        start += 1
    return start


def padded(rows: int, widths: Sequence[int]) -> int:
    """The number of rows, rounded up to the next of ``widths`` (ascending), if there is one."""
    return next((width for width in widths if width >= rows), rows)


def repeats(tokens: Sequence[Token]) -> list[int]:
    seen: set[tuple[Token, ...]] = set()
    found = []
    for last in range(_RUN - 1, len(tokens)):
        run = tuple(tokens[last + 1 - _RUN : last + 1])
        if run in seen:
            found.append(last)
        seen.add(run)
    return found


def repeated_share(tokens: Sequence[Token]) -> float:
    """Share of the tokens that end a run of four that occurred earlier in the text."""
    return len(repeats(tokens)) / len(tokens) if tokens else 0.0


@dataclass(slots=True)
class History:
    """The tokens of a conversation, as the target sees them."""

    tokens: list[Token]  # prompt and reply so far; the last one is not yet in the KV cache while generating
    trimmed: int = 0  # tokens removed from the front since the conversation began

    @property
    def position(self) -> int:
        """Index of the next token in the whole conversation: the key of its noise."""
        return self.trimmed + len(self.tokens)


@dataclass(frozen=True)
class TokenTree:
    """A tree of guessed tokens below the last committed token.

    Nodes are in depth-first order, best path first, acceptable children before probes at every node: this order meets
    llama.cpp's batch rules for every method. A *probe* is evaluated only for its drafter and is never accepted.

    Raises:
        ValueError: If the nodes are not laid out as above.
    """

    tokens: tuple[Token, ...] = ()  # one per node
    # index of each node's parent, smaller than its own; ``ROOT`` for children of the last committed token
    parents: tuple[int, ...] = ()
    # indices of the nodes that must not be accepted; everything below a probe is a probe
    probes: frozenset[int] = frozenset()
    # depth of each node; children of the root have depth 1
    depths: tuple[int, ...] = field(init=False, repr=False, compare=False)
    # index of the first leaf at or below each node, leaves counted in layout order
    first_leaves: tuple[int, ...] = field(init=False, repr=False, compare=False)
    # index of the last leaf at or below each node, leaves counted in layout order
    last_leaves: tuple[int, ...] = field(init=False, repr=False, compare=False)
    # number of leaves; 1 for an empty tree, whose only path is the root's
    leaves: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.parents):
            raise ValueError(f"{len(self.tokens)} tokens but {len(self.parents)} parents")
        if not self.probes and self.parents is _chain_parents(len(self.parents)):  # a chain, the most frequent tree
            zeros = (0,) * len(self.parents)
            self._set_layout(tuple(range(1, len(self.parents) + 1)), zeros, zeros, 1)
            return
        open_path = [ROOT]  # path from the root to the previous node; in depth-first order, a node's parent is on it
        probed_under: set[int] = set()
        depths, first, last, leaf = list[int](), list[int](), [0] * len(self.parents), 0
        for node, parent in enumerate(self.parents):
            if open_path[-1] != parent:
                while open_path and open_path[-1] != parent:
                    last[open_path.pop()] = leaf  # if the root is popped too, the order is wrong
                if not open_path:
                    raise ValueError(f"node {node} is not in depth-first order below {parent}")
                leaf += 1
            depths.append(len(open_path))
            first.append(leaf)
            open_path.append(node)
            if node in self.probes:
                probed_under.add(parent)
            elif parent in self.probes or parent in probed_under:
                raise ValueError(f"node {node} is acceptable but stands below or after a probe")
        for node in open_path[1:]:
            last[node] = leaf
        self._set_layout(tuple(depths), tuple(first), tuple(last), leaf + 1)

    def _set_layout(self, depths: tuple[int, ...], first: tuple[int, ...], last: tuple[int, ...], leaves: int) -> None:
        self.__dict__.update(depths=depths, first_leaves=first, last_leaves=last, leaves=leaves)  # the class is frozen

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def depth(self) -> int:
        """Depth of the deepest node that may be accepted; 0 if there is none."""
        if not self.probes:
            return max(self.depths, default=0)
        return max((d for node, d in enumerate(self.depths) if node not in self.probes), default=0)

    @property
    def drafted(self) -> int:
        return len(self.tokens) - len(self.probes)

    def child(self, parent: int, token: Token) -> int | None:
        """Finds the acceptable child of ``parent`` that carries ``token``, or None."""
        for node in range(parent + 1, len(self.tokens)):
            if self.parents[node] == parent and self.tokens[node] == token and node not in self.probes:
                return node
            if self.parents[node] < parent:
                return None  # depth first: the sub-tree of parent has ended
        return None

    @property
    def first_path(self) -> int:
        """Number of nodes on the first path: down from the root, always the first child."""
        return next((at for at, parent in enumerate(self.parents) if parent != at - 1), len(self.parents))

    def padded(self, count: int, token: Token) -> TokenTree:
        """The same tree with a chain of ``count`` probes below its last node."""
        size = len(self)
        return TokenTree(
            self.tokens + (token,) * count,
            self.parents + tuple(range(size - 1, size - 1 + count)),
            self.probes | frozenset(range(size, size + count)),
        )

    @staticmethod
    def chain(tokens: Sequence[Token]) -> TokenTree:
        return TokenTree(tuple(tokens), _chain_parents(len(tokens)))


@cache
def _chain_parents(length: int) -> tuple[int, ...]:
    """The parents of a chain's nodes; cached, so that a chain is recognized by the identity of this tuple."""
    return tuple(range(-1, length - 1))


EMPTY_TREE: Final = TokenTree()


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The target's results for a tree, valid until the target's next pass."""

    logits: Floats  # [1 + nodes, n_vocab]; row 0 follows the last committed token, row i + 1 follows node i
    # hidden point -> [1 + nodes, n_embd], for the requested points
    hidden: Mapping[int, Floats] = field(default_factory=dict)
    padding: int = 0  # further rows that the pass computed, see ``Abilities.widths``


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a target can do, fixed at load."""

    n_vocab: int  # size of the vocabulary
    n_ctx: int  # tokens that fit the context
    n_embd: int  # width of a hidden state
    n_layer: int
    max_rows: int  # maximum rows of one evaluation: the last committed token and the tree's nodes
    max_leaves: int  # maximum leaves of a tree; 1 means chains only, 0 means plain decoding only
    hidden: frozenset[int] = frozenset()  # the hidden points that it provides
    same_text: bool = False  # whether its logits are bit-equal for all shapes of batches (see ``keep``)
    masks: bool = False  # whether probes may use learned vectors instead of tokens (see ``Target.use_masks``)
    # rows of a padded output matrix beyond the vocabulary; their logits are not returned
    spare_rows: int = 0
    rewinds: bool = True  # whether the KV cache can be cut back to any prefix; else the prefix is evaluated again
    widths: tuple[int, ...] = ()  # pass sizes in rows that evaluations are padded to, ascending; empty: no padding
    replays: bool = False  # whether several equal passes of one row are cheaper than one pass of another width
