"""The common part of DFlash, DFlash2 and DSpark: a head that guesses a block of tokens in one pass.

It works like llama.cpp's ``common/speculative.cpp``: the head's cache holds the target's features of the text, and a
draft is one pass over a block: the last token, then masks. If the target takes trees, a tree grows from the candidates
of all positions, best path first, as in DDTree (arXiv 2604.12989), without a further pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final, NamedTuple

from slipstream.drafters.base import NO_DRAFT, Draft, Drafter, Needs, ShouldExtend, Step
from slipstream.drafters.calibration import RankedTokens
from slipstream.drafters.feature_queue import HELD, FeatureQueue
from slipstream.drafters.resources import LAYER_CALLS, Method, Resources, needs_heads
from slipstream.drafters.tree import TOP, Grown, TreeBuilder
from slipstream.models.gguf.reader import read_header
from slipstream.models.heads.block_head import ARCHITECTURE, BlockMethod, block_head, block_method, unfit_block
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.features import BlockContext, BlockOutput
from slipstream.models.llama.model import LlamaModel
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import Floats, History, Token, shared_prefix

_SIBLINGS: Final = 4  # candidate tokens below each node
_NODES: Final = 24


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
        """Creates a drafter, which owns the head.

        Args:
            target: The target; it must outlive this drafter.
        """
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
        """Drafts a tree, or a chain if only one branch is worth its cost."""
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
        """Drops all features of tokens from index ``length`` on."""
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


def open_block(
    name: BlockMethod, path: Path, target: LlamaTarget, following: Callable[[LlamaModel], Following]
) -> BlockDrafter:
    """Loads a head.

    Args:
        path: The head's GGUF, which ``unfit_block`` has found to fit the target.
    """
    with ExitStack() as opened:
        model = opened.enter_context(closing(LlamaModel(path, placement=target.placement.beside())))
        head = BlockContext(target, model, block_head(model.header))
        return BlockDrafter(name, head, target, following(model), opened.pop_all())


def method_of_block(name: BlockMethod, about: str, load: Callable[[Path, LlamaTarget], BlockDrafter]) -> Method:
    """Describes a method with block heads; ``load`` opens its file."""

    def make(resources: Resources) -> Drafter:
        assert resources.llama is not None  # ``lacks`` has checked it
        return load(resources.heads[name], resources.llama)

    def lacks(resources: Resources) -> str:
        missing = needs_heads(name)(resources)
        if missing:
            return missing
        header = read_header(resources.heads[name])
        if header.architecture != ARCHITECTURE or block_method(header) != name:
            return f"its {name} head is a file of another kind"
        return unfit_block(header, resources.abilities, resources.header)

    return Method(name, make, lacks=lacks, about=about, auto=True, calls=LAYER_CALLS)
