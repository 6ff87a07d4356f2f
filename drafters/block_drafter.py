"""Drafters ``dflash`` and ``dspark``: a head guesses a block of tokens in one pass from the target's own features.

They work like llama.cpp's ``common/speculative.cpp``: the head's cache holds the target's features of the text, and a
draft is one pass over a block: the last token, then masks. If the target takes trees, a tree grows from the candidates
of all positions, best path first, as in DDTree (arXiv 2604.12989), without a further pass.

Sources: DFlash (arXiv 2602.06036), whose positions are independent of each other given the text; DFlash2, whose
selector scores each candidate of a position after each candidate of the one before (llama.cpp PR 27342); DSpark (arXiv
2607.05147), which is DFlash with a Markov term: two matrices w1 and w2 add ``w2 . w1[previous]`` to the logits of a
position. llama.cpp adds the term for the greedy path; here, the difference is added for other paths.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Final, NamedTuple

import gguf
import numpy as np
from numpy.typing import NDArray

from slipstream.drafters.base import NO_DRAFT, Draft, Drafter, Needs, ShouldExtend, Step
from slipstream.drafters.calibration import RankedTokens
from slipstream.drafters.feature_queue import HELD, FeatureQueue
from slipstream.drafters.resources import LAYER_CALLS, Method, Resources
from slipstream.drafters.tree import TOP, Grown, TreeBuilder
from slipstream.models.gguf.reader import Header, read_header
from slipstream.models.gguf.tensors import read_stored, read_tensor
from slipstream.models.heads.block_head import (
    ARCHITECTURE,
    BlockHead,
    BlockMethod,
    block_head,
    block_method,
    unfit_block,
)
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.features import BlockContext, BlockOutput
from slipstream.models.llama.model import LlamaModel
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.sampling.top_k import NONE, best
from slipstream.models.types import Floats, History, Token, shared_prefix

_SIBLINGS: Final = 4  # candidate tokens below each node
_NODES: Final = 24
_CORRECTED: Final = 32  # best tokens of a position, whose logits DSpark corrects for other paths than the greedy one


class Guess(NamedTuple):
    """A block's guess of the token after a path."""

    logits: Floats  # [n_vocab]
    confidence: float | None = None  # the head's probability that the best token is right, if it gives one


Following = Callable[[BlockOutput, Sequence[Token]], Guess | None]
"""Reads from a block the guess after a path of drafted tokens; None if the block has none."""


class BlockDrafter(Drafter):
    """Drafts with a head that reads the inputs of several of the target's layers."""

    needs: Needs = Needs()

    def __init__(
        self, name: str, head: BlockContext, target: LlamaTarget, following: Following, opened: ExitStack
    ) -> None:
        """Creates a drafter, which owns the head; the target must outlive it."""
        self.name, self.needs = name, Needs(frozenset(head.head.layers))
        self._head, self._target, self._following, self._opened = head, target, following, opened
        self.queue = FeatureQueue(head.head.layers, head.rewind)
        abilities = target.abilities
        self._n_ctx, self._leaves = abilities.n_ctx, max(1, abilities.max_leaves)
        self._nodes = min(_NODES, abilities.max_rows - 1)
        self._siblings = _SIBLINGS if self._leaves > 1 else 1
        self._ranked = RankedTokens()

    def begin(self, history: History) -> None:
        """Starts a reply; keeps the features of the prefix that the prompt shares with the last text."""
        self.rewind(shared_prefix(self.queue.text, history.tokens))
        self.queue.text = list(history.tokens)

    def known(self, history: History) -> int:
        return self.queue.known

    def on_prefill(self, tokens: Sequence[Token], hidden: Mapping[int, Floats]) -> None:
        self.queue.take(self._target.cached - len(tokens), hidden)
        self._settle()

    def draft(self, history: History, should_extend: ShouldExtend, sampler: Sampler) -> Draft:
        newest = (self.queue.waiting or self.queue.read)[-1:]
        room = min(self._nodes, self._n_ctx - len(history.tokens))
        if newest != [len(history.tokens) - 2] or room < 1 or not should_extend(1.0, 1):
            return NO_DRAFT
        self._settle()
        block = self._head.draft(history.tokens[-1])
        self._ranked.begin(history)
        tree = TreeBuilder()

        def offer(node: Grown) -> None:
            guess = self._following(block, node.tokens)
            if guess is not None:
                ranked, shares = sampler.rank(guess.logits, history, node.tokens, self._siblings)
                if guess.confidence is not None:
                    shares = _trusting(ranked, shares, int(guess.logits.argmax()), guess.confidence)
                self._ranked.add(node.tokens, ranked, shares)
                tree.offer(node, self._ranked.after(node.tokens))

        offer(TOP)
        for node in tree.grow(should_extend, self.name, room, self._leaves):
            offer(node)
        return tree.build()

    def observe(self, history: History, step: Step) -> None:
        self._ranked.observe(history, step)
        self.queue.take_accepted(history, step)
        if len(self.queue.waiting) > HELD:
            self._settle()

    def rewind(self, length: int) -> None:
        del self.queue.text[length:]
        self.queue.drop(length, length)

    def close(self) -> None:
        self._head.close()
        self._opened.close()

    def _settle(self) -> None:
        self.queue.settle(len(self.queue.waiting), lambda _, joined: self._head.inject(joined))


def _trusting(ranked: list[Token], shares: list[float], surest: Token, confidence: float) -> list[float]:
    """Sets the share of token ``surest`` to the head's confidence, and scales the other shares to the remainder."""
    if surest not in ranked:
        return shares
    before = shares[ranked.index(surest)]
    left = (1 - confidence) / max(1 - before, 1e-6)
    return [confidence if token == surest else share * left for token, share in zip(ranked, shares, strict=True)]


def independent(head: BlockHead) -> Following:
    """Reads a block whose rows are the logits of their positions, independent of the tokens before them."""

    def following(block: BlockOutput, path: Sequence[Token]) -> Guess | None:
        row = head.first + len(path)
        return Guess(block.logits[row]) if row < len(block.logits) else None

    return following


def selected(head: BlockHead, n_vocab: int) -> Following:
    """Reads a DFlash2 block: the scores of a row's candidates depend on the candidate before them.

    A row has k unordered candidates, then k scores for each candidate of the row before; in the first row these are
    all equal.
    """
    k, logits = head.choices, np.full(n_vocab, -np.inf, np.float32)
    scored = np.empty(0, np.int64)

    def following(block: BlockOutput, path: Sequence[Token]) -> Guess | None:
        nonlocal scored
        row = head.first + len(path)
        if row >= len(block.features):
            return None
        before = 0
        if path:
            (places,) = (block.features[row - 1, :k] == path[-1]).nonzero()
            if not len(places):
                return None
            before = int(places[0])
        ids = block.features[row, :k].astype(np.int64)
        logits[scored] = -np.inf
        scored = ids[(ids >= 0) & (ids < n_vocab)]
        logits[scored] = block.features[row, k * (1 + before) : k * (2 + before)][(ids >= 0) & (ids < n_vocab)]
        return Guess(logits)

    return following


class MarkovTerm:
    """The two Markov matrices of a head, kept quantized as in its file."""

    def __init__(self, header: Header) -> None:
        tensors = header.by_name
        self._tables = [tensors["markov_w1.weight"], tensors["markov_w2.weight"]]
        self._stored = [read_stored(header, table).reshape(table.shape[1], -1) for table in self._tables]
        self._scale = float(read_tensor(header, tensors["markov_w2.scale"])[0]) if "markov_w2.scale" in tensors else 1.0
        self._row_of: NDArray[np.int64] | None = None  # the row of w2 for each token, if it has fewer rows
        if "d2t" in tensors:
            ids = read_tensor(header, tensors["d2t"])
            self._row_of = np.zeros(header.n_rows, np.int64)
            self._row_of[ids] = np.arange(len(ids))

    def moved(self, logits: Floats, instead: Token, before: Token) -> Floats:
        """A position's logits with ``before`` as the token before it, where llama.cpp assumed ``instead``.

        They are minus infinity for all but the best tokens.
        """
        ids, values = best(logits, _CORRECTED, NONE, logits[:0])
        first = self._rows(0, np.array([before, instead], np.int64))
        rows = self._rows(1, ids if self._row_of is None else self._row_of[ids])
        moved = np.full_like(logits, -np.inf)
        moved[ids] = values + self._scale * (rows @ (first[0] - first[1]))
        return moved

    def _rows(self, table: int, ids: NDArray[np.int64]) -> Floats:
        stored = np.ascontiguousarray(self._stored[table][ids])
        kind = gguf.GGMLQuantizationType(self._tables[table].type)
        return np.asarray(gguf.quants.dequantize(stored, kind), np.float32)


def dependent(model: LlamaModel, head: BlockHead) -> Following:
    markov = MarkovTerm(model.header)

    def following(block: BlockOutput, path: Sequence[Token]) -> Guess | None:
        row = head.first + len(path)
        if row >= len(block.logits):
            return None
        logits = block.logits[row]
        if path:
            assumed = int(block.logits[row - 1].argmax())
            if path[-1] != assumed:
                return Guess(markov.moved(logits, assumed, path[-1]))
        # the head's confidence holds for the greedy path only
        greedy = all(int(block.logits[head.first + at].argmax()) == token for at, token in enumerate(path))
        return Guess(logits, float(block.features[row, 0]) if head.confidence and greedy else None)

    return following


def _method(name: BlockMethod, about: str) -> Method:
    def make(resources: Resources) -> Drafter:
        assert resources.llama is not None  # ``Method.lacks`` has checked it
        target = resources.llama
        with ExitStack() as opened:
            place = target.placement.beside()
            model = opened.enter_context(closing(LlamaModel(resources.heads[name], placement=place)))
            head = block_head(model.header)
            if name == "dspark":
                following = dependent(model, head)
            else:
                following = selected(head, target.abilities.n_vocab) if head.selected else independent(head)
            return BlockDrafter(name, BlockContext(target, model, head), target, following, opened.pop_all())

    def unfit(resources: Resources) -> str:
        header = read_header(resources.heads[name])
        if header.architecture != ARCHITECTURE or block_method(header) != name:
            return f"its {name} head is a file of another kind"
        return unfit_block(header, resources.abilities, resources.header)

    return Method(name, make, heads=True, unfit=unfit, about=about, calls=LAYER_CALLS)


DFLASH: Final = _method("dflash", "a trained head guesses a block of tokens in one pass")
DSPARK: Final = _method("dspark", "a trained head guesses a block and how sure it is of it")
