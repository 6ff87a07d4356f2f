"""Drafter ``recycle``: drafts the tokens that the target ranked highest when it last read the same token.

Source: Token Recycling (Luo et al., ACL 2025, arXiv 2408.08696; github.com/Luowaterbi/TokenRecycling). No weights.
"""

import struct
from operator import itemgetter
from time import monotonic
from typing import Final

import numpy as np

from slipstream.drafters.base import Draft, Drafter, ShouldExtend, Step
from slipstream.drafters.calibration import Ratio
from slipstream.drafters.memory import DrafterMemory
from slipstream.drafters.resources import Method
from slipstream.drafters.tree import TOP, Children, TreeBuilder
from slipstream.models.errors import SlipstreamError
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.sampling.top_k import NONE, Doubles, Ids
from slipstream.models.sampling.top_k import best as best_of
from slipstream.models.types import ROOT, Abilities, History, Token

_LEAVES: Final = 8
_PRIOR: Final = (49 / 80, 10 / 80, 6 / 80, 5 / 80, 3 / 80, 3 / 80, 2 / 80, 2 / 80)
"""Prior accuracy of each rank: of the 80 nodes of the paper's static tree, the share in each child's sub-tree."""
_PRIOR_WEIGHT: Final = 4  # weight of the prior, in outcomes
_DECAY: Final = 0.99
_SURENESS: Final = np.array([0.3, 0.5, 0.7, 0.9], np.float32)
"""Bounds between classes of rows, by the best token's share of the kept probability; unsure rows branch more."""
_NO_PENALTIES: Final = np.empty(0, np.float32)
_UNSEEN: Final = -1  # sureness of a row that was never written
_SAVE_EVERY: Final = 180.0  # seconds; a kill loses at most this much
_HEADER: Final = struct.Struct("<8s3I")  # magic, vocabulary, tokens per row, rows
_MAGIC: Final = b"RECYCLE1"


class RankAccuracy:
    """Measures the accuracy of each rank, by the sureness class of the row."""

    def __init__(self, ranks: int) -> None:
        classes = len(_SURENESS) + 1
        self._ratios = [[Ratio(_DECAY, 0.0, 0.0) for _ in range(ranks)] for _ in range(classes)]
        self._sorted: list[list[tuple[float, int]]] = [[] for _ in range(classes)]  # empty if it has to be sorted again

    def best_first(self, sure: int) -> list[tuple[float, int]]:
        found = self._sorted[sure]
        if not found:
            pairs = zip(self._ratios[sure], _PRIOR, strict=False)
            rates = [ratio.given(prior, _PRIOR_WEIGHT) for ratio, prior in pairs]
            found = sorted(zip(rates, range(len(rates)), strict=True), key=itemgetter(0), reverse=True)
            self._sorted[sure] = found
        return found

    def add(self, sure: int, rank: int | None) -> None:
        """Adds the rank that was right, or None."""
        for each, ratio in enumerate(self._ratios[sure]):
            ratio.add(each == rank, 1.0)
        self._sorted[sure] = []


class TokenRecycling(Drafter):
    """Keeps, per token, the 8 tokens that the target last ranked highest after it, and grows a tree from them.

    Every row that the target evaluates replaces its token's row of the table, even for rejected tokens. If one step has
    several rows of a token, a row on the accepted path takes precedence. The paper uses one static tree; here the tree
    grows best first, by the accuracy of each rank. It is measured on every token of the text, even if not drafted; the
    static tree's shape is the prior. The table depends on the target, not on the text, so it is kept between runs.
    """

    name = "recycle"

    def __init__(
        self, abilities: Abilities, nodes: int = 16, leaves: int = _LEAVES, memory: DrafterMemory | None = None
    ) -> None:
        """Loads the stored table; one that does not fit the model is ignored and replaced."""
        self._n_vocab, self._n_ctx = abilities.n_vocab, abilities.n_ctx
        self._nodes = min(nodes, abilities.max_rows - 1)
        self._leaves = min(leaves, abilities.max_leaves)
        self._kept = min(len(_PRIOR), abilities.n_vocab)
        # [n_vocab, k] the tokens ranked highest after each token
        self.table = np.zeros((self._n_vocab, self._kept), np.int32)
        # [n_vocab] the sureness class of the first of these, 0 to 4; below 0 for a token not seen yet
        self.sure = np.full(self._n_vocab, _UNSEEN, np.int8)
        self.accuracy = RankAccuracy(self._kept)
        self._memory = memory
        self._saved_at = monotonic()
        self._learned = False  # whether the table changed since it was saved
        packed = memory.read(self.name) if memory else None
        if packed:
            self.load(packed)

    def begin(self, history: History) -> None:
        if monotonic() - self._saved_at > _SAVE_EVERY:
            self._save()

    def draft(self, history: History, should_extend: ShouldExtend, sampler: Sampler) -> Draft:
        tree = TreeBuilder()
        tree.offer(TOP, self._after(history.tokens[-1]))
        for node in tree.grow(
            should_extend, self.name, min(self._nodes, self._n_ctx - len(history.tokens)), self._leaves
        ):
            tree.offer(node, self._after(node.tokens[-1]))
        return tree.build()

    def observe(self, history: History, step: Step) -> None:
        """Measures the ranks by the step's tokens, then stores the target's rows in the table."""
        last = history.tokens[-len(step.tokens) - 1]
        before = last
        for token in step.tokens:
            sure = int(self.sure[before])
            if sure != _UNSEEN:
                row = self.table[before].tolist()
                self.accuracy.add(sure, row.index(token) if token in row else None)
            before = token
        self._take(step, last)
        self._learned = True

    def close(self) -> None:
        self._save()
        self.table, self.sure = self.table[:0].copy(), self.sure[:0].copy()

    def dump(self) -> bytes:
        """Packs the rows that were written, little-endian: each 4 (1 + 8) bytes of token ids and 1 of sureness."""
        seen = np.flatnonzero(self.sure != _UNSEEN)
        head = _HEADER.pack(_MAGIC, self._n_vocab, self._kept, len(seen))
        parts = (seen.astype("<i4"), self.table[seen].astype("<i4"), self.sure[seen])
        return head + b"".join(part.tobytes() for part in parts)

    def load(self, packed: bytes) -> bool:
        """Stores the rows that ``dump`` packed; False if they are not this model's; wrong rows only cost speed."""
        head, size = packed[: _HEADER.size], len(packed) - _HEADER.size
        if size < 0 or head[:-4] != _HEADER.pack(_MAGIC, self._n_vocab, self._kept, 0)[:-4]:
            return False
        count, kept = _HEADER.unpack(head)[-1], self._kept
        if count > self._n_vocab or size != count * (4 + 4 * kept + 1):
            return False
        numbers = np.frombuffer(packed, "<i4", count * (1 + kept), _HEADER.size)
        seen, table = numbers[:count], numbers[count:].reshape(count, kept)
        sure = np.frombuffer(packed, np.int8, count, len(packed) - count)
        if ((numbers < 0) | (numbers >= self._n_vocab)).any() or ((sure < 0) | (sure > len(_SURENESS))).any():
            return False
        self.table[seen], self.sure[seen] = table, sure
        return True

    def _save(self) -> None:
        if self._memory and self._learned:
            self._memory.write(self.name, self.dump())
            self._saved_at, self._learned = monotonic(), False

    def _take(self, step: Step, last: Token) -> None:
        tree, path = step.draft.tree, step.path
        beside = [node for node in range(len(tree)) if node not in path and node not in tree.probes]
        tokens: list[Token] = []
        found: list[tuple[Ids, Doubles]] = []
        for node in (*beside, ROOT, *path):  # for equal tokens, the last row is kept
            try:
                best = best_of(step.evaluation.logits[node + 1], self._kept, NONE, _NO_PENALTIES)
            except SlipstreamError:  # the row is not a number: skip it
                continue
            if len(best[0]) == self._kept:
                tokens.append(last if node == ROOT else tree.tokens[node])
                found.append(best)
        if tokens:
            logits = np.array([values for _, values in found])
            share = 1 / np.exp(logits - logits[:, :1]).sum(axis=1)
            self.table[tokens] = [ids for ids, _ in found]
            self.sure[tokens] = _SURENESS.searchsorted(share)

    def _after(self, token: Token) -> Children:
        sure = int(self.sure[token])
        if sure == _UNSEEN:
            return ()
        row = self.table[token].tolist()
        return ((row[rank], rate) for rate, rank in self.accuracy.best_first(sure))


METHOD: Final = Method(
    TokenRecycling.name,
    lambda resources: TokenRecycling(resources.abilities, memory=resources.memory),
    about="reuses the model's recent runner-up words",
)
