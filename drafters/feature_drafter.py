"""Drafters ``eagle3`` and ``mtp``: a head that pairs each token with the target's feature of the position before.

Sources: EAGLE-3 (Li et al., arXiv 2503.01840; github.com/SafeAILab/EAGLE), one trained layer; DeepSeek-V3 (arXiv
2412.19437, section 2.2), whose prediction layer a model was trained with, in its file or a separate one.

They work like llama.cpp's ``common/speculative.cpp``: the head's cache holds the pairs of the text, with the target's
features. A draft continues from them with the head's own features; its pairs are dropped afterwards. Drafts are trees
as in EAGLE-2 (Li et al., arXiv 2406.16858): for each level, one pass extends the most probable paths of the level
above, and the best of all nodes form the draft.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final, NamedTuple

from slipstream.drafters.base import NO_DRAFT, Draft, Drafter, Needs, ShouldExtend, Step
from slipstream.drafters.calibration import RankedTokens
from slipstream.drafters.feature_queue import HELD, FeatureQueue
from slipstream.drafters.resources import FEATURE_CALLS, LAYER_CALLS, Method, Resources
from slipstream.drafters.tree import TOP, TreeBuilder
from slipstream.models.gguf.architectures import ASSISTANT, without_mtp
from slipstream.models.gguf.reader import read_header
from slipstream.models.heads.check import target_layers, unfit
from slipstream.models.heads.matching_heads import unfit_mtp
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.features import AssistantContext, FeatureContext, HeadOutput
from slipstream.models.llama.model import LlamaModel
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import MTP_HIDDEN, Floats, History, Token, shared_prefix

_SIBLINGS: Final = 3  # candidate tokens below each node
_NODES: Final = 16
_ALONE: Final = (
    4  # where passes are replayed, up to so many pairs have passes of their own, as wide as those that draft
)


class _Open(NamedTuple):
    """A node that the next level may extend; open nodes sort by probability, the most probable first."""

    minus: float  # minus the probability of its path
    row: int  # the row of the pass that drafted it
    tokens: tuple[Token, ...]  # the path's tokens


class FeatureDrafter(Drafter):
    """Drafts with a head on the target's hidden states.

    The pair of position P holds the token at P + 1 and the feature of P, and predicts the token at P + 2. The last
    feature of a text waits for the token that the target draws next.
    """

    needs: Needs = Needs()

    def __init__(
        self,
        name: str,
        head: FeatureContext | AssistantContext,
        target: LlamaTarget,
        points: Sequence[int],
        encode: Callable[[Floats], Floats] = lambda joined: joined,
        opened: ExitStack | None = None,
    ) -> None:
        """Creates a drafter, which owns the head.

        The states of the points are concatenated, in this order; ``encode`` converts them to features.
        """
        self.name, self.needs = name, Needs(frozenset(points))
        self._head, self._target = head, target
        self.queue = FeatureQueue(points, head.rewind)
        self._encode, self._opened = encode, opened or ExitStack()
        self._n_ctx = target.abilities.n_ctx
        self._nodes, self._leaves = min(_NODES, target.abilities.max_rows - 1), head.leaves
        self._replays = target.abilities.replays
        self._siblings = _SIBLINGS if self._leaves > 1 else 1
        self._ranked = RankedTokens()

    def begin(self, history: History) -> None:
        """Starts a reply; keeps the pairs of the prefix that the prompt shares with the last text."""
        self.rewind(shared_prefix(self.queue.text, history.tokens))
        self.queue.text = list(history.tokens)

    def known(self, history: History) -> int:
        return self.queue.known

    def on_prefill(self, tokens: Sequence[Token], hidden: Mapping[int, Floats]) -> None:
        self.queue.take(self._target.cached - len(tokens), hidden)
        self._settle(len(self.queue.waiting) - 1)

    def draft(self, history: History, should_extend: ShouldExtend, sampler: Sampler) -> Draft:
        waiting = self.queue.waiting
        if waiting[-1:] != [len(history.tokens) - 2] or not should_extend(1.0, 1):
            return NO_DRAFT
        self.queue.text += history.tokens[len(self.queue.text) :]
        guess = self._settle(len(waiting), answer=True)
        free = self._n_ctx - len(history.tokens)
        room, deepest = min(self._nodes, free), min(self._nodes, free // self._leaves)  # each branch has its own cells
        if guess is None or not deepest:
            return NO_DRAFT
        self._ranked.begin(history)
        self._rank(HeadOutput(guess.logits[-1:], guess.features[-1:]), history, should_extend, sampler, deepest)
        self._head.rewind(self._head.length)
        tree = TreeBuilder()
        tree.offer(TOP, self._ranked.after(()))
        for node in tree.grow(should_extend, self.name, room, self._leaves):
            if node.tokens in self._ranked:
                tree.offer(node, self._ranked.after(node.tokens))
        return tree.build()

    def observe(self, history: History, step: Step) -> None:
        self._ranked.observe(history, step)
        self.queue.take_accepted(history, step)
        if len(self.queue.waiting) > HELD:
            self._settle(len(self.queue.waiting) - 1)

    def rewind(self, length: int) -> None:
        del self.queue.text[length:]
        self.queue.drop(length - 1, length)

    def close(self) -> None:
        self._head.close()
        self._opened.close()

    def _rank(
        self, guess: HeadOutput, history: History, should_extend: ShouldExtend, sampler: Sampler, deepest: int
    ) -> None:
        """Ranks candidate tokens level by level; one pass extends the most probable paths of a level."""
        level = [_Open(-1.0, 0, ())]
        for depth in range(1, deepest + 1):
            following: list[_Open] = []
            for row, (minus, _, above) in enumerate(level):
                ranked, shares = sampler.rank(guess.logits[row], history, above, self._siblings)
                for token, prob in zip(ranked, self._ranked.add(above, ranked, shares), strict=True):
                    if should_extend(-minus * prob, depth + 1):
                        following.append(_Open(minus * prob, row, (*above, token)))
            if not following or depth == deepest:
                return
            level = sorted(following)[: 1 if self._replays else self._leaves]
            rows = [node.row for node in level]
            guess = self._head.grow(rows, [node.tokens[-1] for node in level], guess.features[rows])

    def _settle(self, count: int, *, answer: bool = False) -> HeadOutput | None:
        """Feeds the head the pairs of the first ``count`` waiting features; with ``answer``, returns its output."""

        def read(positions: Sequence[int], joined: Floats) -> HeadOutput | None:
            tokens = [self.queue.text[position + 1] for position in positions]
            features = self._encode(joined)
            if not (answer and self._replays and len(tokens) <= _ALONE):
                return self._head.append(tokens, features, answer=answer)
            for at in range(len(tokens)):
                output = self._head.append(tokens[at : at + 1], features[at : at + 1], answer=True)
            return output

        return self.queue.settle(count, read)


def open_eagle3(path: Path, target: LlamaTarget) -> FeatureDrafter:
    """Loads a head, which projects the concatenated inputs of three target layers to one feature."""
    with ExitStack() as opened:
        model = opened.enter_context(closing(LlamaModel(path, placement=target.placement.beside())))
        head, points = FeatureContext(target, model), target_layers(model.header)
        return FeatureDrafter("eagle3", head, target, points, encode=head.encode, opened=opened.pop_all())


def open_mtp(target: LlamaTarget, path: Path | None = None) -> FeatureDrafter:
    """Opens a second context for MTP layers: on a separate file, or on the target's own weights.

    After the first drafted token the layer reads its own output. Its pairs are those of EAGLE-3, without the projection
    of the features. llama.cpp gives a pair its token's position; this shifts all positions by one and has no effect.
    """
    with ExitStack() as opened:
        head: FeatureContext | AssistantContext
        if path is None:
            head = FeatureContext(target)
        else:
            model = opened.enter_context(closing(LlamaModel(path, placement=target.placement.beside())))
            shares = model.header.architecture == ASSISTANT
            head = AssistantContext(target, model) if shares else FeatureContext(target, model)
        return FeatureDrafter("mtp", head, target, (MTP_HIDDEN,), opened=opened.pop_all())


def _make_eagle3(resources: Resources) -> Drafter:
    assert resources.llama is not None  # ``Method.lacks`` has checked it
    return open_eagle3(resources.heads["eagle3"], resources.llama)


def _make_mtp(resources: Resources) -> Drafter:
    assert resources.llama and resources.header  # a model has a header
    return open_mtp(resources.llama, resources.heads["mtp"] if without_mtp(resources.header) else None)


def _unfit_mtp(resources: Resources) -> str:
    if resources.header is None:
        return "it needs MTP layers, and this model has none"
    own = without_mtp(resources.header)
    if not own or "mtp" not in resources.heads:
        return own
    if resources.llama is not None and MTP_HIDDEN not in resources.abilities.hidden:
        return "this model does not hand out what MTP layers read"
    return unfit_mtp(read_header(resources.heads["mtp"]), resources.header)


EAGLE3: Final = Method(
    "eagle3",
    _make_eagle3,
    heads=True,
    unfit=lambda resources: unfit(read_header(resources.heads["eagle3"]), resources.abilities),
    about="a trained layer drafts from the model's inner states",
    calls=LAYER_CALLS,
)
MTP: Final = Method(
    "mtp",
    _make_mtp,
    unfit=_unfit_mtp,
    about="layers that the model was trained with predict what follows",
    calls=FEATURE_CALLS,
)
