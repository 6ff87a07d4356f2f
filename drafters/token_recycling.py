"""Drafter ``recycle``: what the target last thought could follow a token may follow it now.

Source: Token Recycling (Luo et al., ACL 2025, arXiv 2408.08696; github.com/Luowaterbi/TokenRecycling). No weights.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from heapq import heappop, heappush
from math import isqrt
from time import monotonic
from typing import ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.drafters.base import Draft, Drafter, Step, Worth
from slipstream.drafters.memory import Memory
from slipstream.drafters.parts import Method
from slipstream.drafters.tree import TreeBuilder
from slipstream.models.errors import SlipstreamError
from slipstream.models.sampling import Sampler
from slipstream.models.types import ROOT, Abilities, Floats, History, Token

_LEAVES: Final = 8

_PRIOR: Final = (49 / 80, 10 / 80, 6 / 80, 5 / 80, 3 / 80, 3 / 80, 2 / 80, 2 / 80)
"""Prior accuracy of each rank: the share of the paper's static tree (80 nodes) at and below each child of the root."""

_PRIOR_WEIGHT: Final = 4  # outcomes that the prior counts for
_DECAY: Final = 0.99  # an older outcome weighs so much less with each one after it

_SURENESS: Final = np.array([0.3, 0.5, 0.7, 0.9], np.float32)
"""Bounds between rows by the share of the best token among those kept: an unsure row deserves a wide tree."""

_SMALL: Final = 16_384  # up to here a row is looked through at once
_UNSEEN: Final = -1  # sureness of a row that was never written
_SAVE_EVERY: Final = 180.0  # seconds; a kill loses no more
_HEADER: Final = struct.Struct("<8s3I")  # magic, vocabulary, tokens kept a row, rows
_MAGIC: Final = b"RECYCLE1"


class RankAccuracy:
    """How often the token of each rank was the one that followed, by how sure the row was of its best."""

    def __init__(self, ranks: int) -> None:
        """Starts from the prior."""
        self._prior = _PRIOR[:ranks]
        classes = len(_SURENESS) + 1
        self._tries = [0.0] * classes
        self._right = [[0.0] * ranks for _ in range(classes)]
        self._sorted = [self._sort(sure) for sure in range(classes)]

    def best_first(self, sure: int) -> list[tuple[float, int]]:
        """The accuracy and number of each rank, the most accurate first."""
        return self._sorted[sure]

    def hear(self, sure: int, rank: int | None) -> None:
        """Takes which rank was right, None for none of them."""
        self._tries[sure] = _DECAY * self._tries[sure] + 1
        right = self._right[sure] = [_DECAY * each for each in self._right[sure]]
        if rank is not None:
            right[rank] += 1
        self._sorted[sure] = self._sort(sure)

    def _sort(self, sure: int) -> list[tuple[float, int]]:
        tries = self._tries[sure] + _PRIOR_WEIGHT
        pairs = zip(self._right[sure], self._prior, strict=True)
        rates = [(right + _PRIOR_WEIGHT * prior) / tries for right, prior in pairs]
        return sorted(((rate, rank) for rank, rate in enumerate(rates)), key=lambda each: (-each[0], each[1]))


class _Candidate(NamedTuple):
    """A node that may be drafted; the least of them is the best.

    Attributes:
        minus: Minus the probability of the path that ends in it.
        depth: Its depth, from 1.
        parent: The handle of its parent.
        place: Which of its parent's children it is, by accuracy.
        above: Its parent's token.
        path: The probability of the path to its parent.
    """

    minus: float
    depth: int
    parent: int
    place: int
    above: Token
    path: float


class TokenRecycling(Drafter):
    """Keeps, per token, the 8 tokens that the target found best after it the last time, and grows a tree from them.

    Every row that the target evaluates replaces its token's row of the table, rows of rejected tokens too; a row on the
    accepted path replaces those of the same token beside it. The paper draws one static tree; here it grows best first,
    by the accuracy of each rank, which is measured with every token of the text, drafted or not. The static tree's
    shape is the prior. The table knows the target and not the text, so nothing has to be forgotten with a text, and it
    is kept from one run to the next.
    """

    name: ClassVar[str] = "recycle"

    def __init__(
        self, abilities: Abilities, nodes: int = 16, leaves: int = _LEAVES, memory: Memory | None = None
    ) -> None:
        """Takes up the table that was kept, or begins an empty one.

        Args:
            abilities: What the target takes; trees stay within its rows, leaves and context.
            nodes: Most nodes of a tree.
            leaves: Most leaves of a tree; 1 for chains.
            memory: Keeps the table; what does not fit the model is passed over, and replaced.
        """
        self._n_vocab, self._n_ctx = abilities.n_vocab, abilities.n_ctx
        self._nodes = min(nodes, abilities.max_rows - 1)
        self._leaves = min(leaves, abilities.max_leaves)
        self._kept = min(len(_PRIOR), abilities.n_vocab)
        self._table = np.zeros((self._n_vocab, self._kept), np.int32)
        self._sure = np.full(self._n_vocab, _UNSEEN, np.int8)
        self._accuracy = RankAccuracy(self._kept)
        self._memory = memory
        self._saved_at = monotonic()
        self._learnt = False  # since it was saved
        packed = memory.read(self.name) if memory else None
        if packed:
            with suppress(SlipstreamError):
                self.load(packed)

    def begin(self, history: History) -> None:
        """Saves the table every few minutes."""
        if monotonic() - self._saved_at > _SAVE_EVERY:
            self._save()

    def draft(self, history: History, worth: Worth, sampler: Sampler) -> Draft:
        """Grows a tree, the most probable node first, as long as nodes are worth it."""
        room = min(self._nodes, self._n_ctx - len(history.tokens))
        builder, leaves, branched = TreeBuilder(), 1, set[int]()
        waiting: list[_Candidate] = []
        self._offer(waiting, ROOT, history.tokens[-1], 1.0, 1)
        while waiting and len(builder) < room:
            minus, depth, parent, place, above, path = heappop(waiting)
            if not worth(-minus, depth) or (parent in branched and leaves == self._leaves):
                continue  # its siblings, which are less probable, fall with it
            leaves += parent in branched
            branched.add(parent)
            rate, rank = self._accuracy.best_first(int(self._sure[above]))[place]
            token = int(self._table[above, rank])
            handle = builder.add(parent, token, rate, self.name)
            self._offer(waiting, handle, token, -minus, depth + 1)
            self._offer(waiting, parent, above, path, depth, place + 1)
        return builder.build()

    def observe(self, history: History, step: Step) -> None:
        """Measures the ranks by the step's tokens, then takes the target's rows into the table."""
        last = history.tokens[-len(step.tokens) - 1]
        before = last
        for token in step.tokens:
            sure = int(self._sure[before])
            if sure != _UNSEEN:
                row = self._table[before].tolist()
                self._accuracy.hear(sure, row.index(token) if token in row else None)
            before = token
        tree, path = step.draft.tree, step.path
        beside = [node for node in range(len(tree)) if node not in path and node not in tree.probes]
        tokens = [*(tree.tokens[node] for node in beside), last, *(tree.tokens[node] for node in path)]
        rows = [node + 1 for node in (*beside, ROOT, *path)]  # of equal tokens the last one is kept
        ids, logits = best_tokens(step.evaluation.logits, self._kept)
        with np.errstate(invalid="ignore"):  # a row that is not a number says nothing, and is never accepted from
            share = 1 / np.exp(logits - logits[:, :1]).sum(axis=1)
        self._table[tokens] = ids[rows]
        self._sure[tokens] = _SURENESS.searchsorted(share)[rows]
        self._learnt = True

    def close(self) -> None:
        """Saves the table and frees it."""
        self._save()
        self._table, self._sure = self._table[:0].copy(), self._sure[:0].copy()

    def dump(self) -> bytes:
        """Packs the rows that were written, little-endian: 4 (1 + 8) + 1 bytes each."""
        seen = np.flatnonzero(self._sure != _UNSEEN)
        head = _HEADER.pack(_MAGIC, self._n_vocab, self._kept, len(seen))
        parts = (seen.astype("<i4"), self._table[seen].astype("<i4"), self._sure[seen])
        return head + b"".join(part.tobytes() for part in parts)

    def load(self, packed: bytes) -> None:
        """Takes the rows that ``dump`` packed, into an empty or a used table.

        Wrong rows would cost speed, never change a text; only what could not be a table of this model is refused.

        Raises:
            SlipstreamError: If the bytes are not such a table; this one stays as it is.
        """
        if len(packed) < _HEADER.size:
            raise _misfit("it is cut off")
        magic, n_vocab, kept, count = _HEADER.unpack_from(packed)
        if magic != _MAGIC:
            raise _misfit("it is none")
        if (n_vocab, kept) != (self._n_vocab, self._kept):
            raise _misfit("it is of another model")
        if count > n_vocab or len(packed) != _HEADER.size + count * (4 + 4 * kept + 1):
            raise _misfit("its size is wrong")
        numbers = np.frombuffer(packed, "<i4", count * (1 + kept), _HEADER.size)
        seen, table = numbers[:count], numbers[count:].reshape(count, kept)
        sure = np.frombuffer(packed, np.int8, count, len(packed) - count)
        if ((numbers < 0) | (numbers >= n_vocab)).any() or ((sure < 0) | (sure > len(_SURENESS))).any():
            raise _misfit("a value is out of range")
        self._table[seen], self._sure[seen] = table, sure

    def _save(self) -> None:
        if self._memory and self._learnt:
            self._memory.write(self.name, self.dump())
            self._saved_at, self._learnt = monotonic(), False

    def _offer(
        self, waiting: list[_Candidate], parent: int, above: Token, path: float, depth: int, place: int = 0
    ) -> None:
        """Puts a child of a node on the heap: that of the ``place``-th most accurate rank, if its row has one."""
        sure = int(self._sure[above])
        if sure != _UNSEEN and place < self._kept:
            rate, _ = self._accuracy.best_first(sure)[place]
            heappush(waiting, _Candidate(-path * rate, depth, parent, place, above, path))


def best_tokens(logits: Floats, count: int) -> tuple[NDArray[np.int64], Floats]:
    """Finds the best tokens of each row.

    The ``count`` best of a row lie in the ``count`` blocks with the largest maxima. A block is a column of the row
    folded to lines, so that the maxima of all columns are found at the speed of memory.

    Args:
        logits: [rows, n_vocab]; read only, not copied.
        count: How many; at most n_vocab.

    Returns:
        Ids [rows, count], best first, and their logits [rows, count].
    """
    size, lines = logits.shape[1], np.arange(len(logits))[:, None]
    if size <= _SMALL:
        best = logits.argpartition(size - count, axis=1)[:, size - count :]
        best = best[lines, (-logits[lines, best]).argsort(axis=1)]
        return best, logits[lines, best]
    height = isqrt(size // count)  # as many columns to look among as logits in the chosen ones
    width = size // height
    folded = height * width
    maxima = logits[:, :folded].reshape(-1, height, width).max(axis=1)
    columns = maxima.argpartition(width - count, axis=1)[:, width - count :]
    ids = (columns[:, None, :] + width * np.arange(height)[:, None]).reshape(len(logits), -1)
    rest = np.broadcast_to(np.arange(folded, size), (len(logits), size - folded))
    ids = np.concatenate((ids, rest), axis=1)
    values = logits[lines, ids]
    best = (-values).argpartition(count - 1, axis=1)[:, :count]
    order = best[lines, (-values[lines, best]).argsort(axis=1)]
    return ids[lines, order], values[lines, order]


def _misfit(reason: str) -> SlipstreamError:
    return SlipstreamError(f"the kept table of drafter recycle does not fit: {reason}.", "It is learnt anew.")


METHOD = Method(
    TokenRecycling.name,
    lambda parts: TokenRecycling(parts.abilities, memory=parts.memory),
    about="a tree of what the model lately thought could come next",
)
