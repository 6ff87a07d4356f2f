"""Drafter ``kangaroo``: the target's own first layers and a small adapter draft, with two early exits.

Source: Kangaroo (Liu et al., arXiv 2404.18911; github.com/Equationliu/Kangaroo). The first exit is in depth: the draft
leaves the target after a few layers (``slipstream.models.heads.self_draft``). The second is in length: drafting stops
at the first unsure token, which is verified too, since its pass is already done.

Unlike the published code, verification does not continue from the drafted tokens' states: the target computes its first
layers again, which costs their share of a pass and needs no change of the target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

from slipstream.drafters.base import NO_DRAFT, Draft, Drafter, ShouldExtend, Step
from slipstream.drafters.calibration import Ratio
from slipstream.drafters.draft_cache import DraftCache
from slipstream.drafters.resources import Method, Resources, needs_heads
from slipstream.drafters.tree import TreeBuilder
from slipstream.models.gguf.lora import Adapter
from slipstream.models.gguf.reader import read_header
from slipstream.models.heads.self_draft import cut_adapter, kept_cut, why_not_cut
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.library import threads_of
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.placement import Placement
from slipstream.models.llama.target import ContextOptions, Target
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.sampling.top_k import Doubles
from slipstream.models.types import EMPTY_TREE, ROOT, Abilities, History, Token

_SIBLINGS: Final = 3  # most tokens beside an unsure one
_NOWHERE: Final = -1


class Sureness:
    """The probability below which a drafted token is the last one, tuned online.

    Going on after a token pays if that token is accepted and the next one is too. Let c be the price of a node: the
    least probability of a path that ``should_extend`` still takes. Let f be the share of accepted tokens among those
    that followed an accepted one. Of the recorded (probability p, accepted a) pairs, going on at and above a bound
    would have brought the sum over p >= bound of (a f - c), in tokens. The bound with the largest sum is the goal, and
    the bound moves a tenth of the way with every draft. Older pairs count less. Tokens below the bound are recorded
    too, because unsure tokens are verified; tokens after a wrong one are not, because they were not decided.

    Attributes:
        bound: The probability.
    """

    _BINS: Final = 20
    _DECAY: Final = 0.995
    _ENOUGH: Final = 32  # pairs before the bound moves
    _STEP: Final = 0.1
    _PRIOR: Final = (6.0, 10.0)  # accepted tokens, and tokens after an accepted one

    def __init__(self, bound: float) -> None:
        self.bound = bound
        self._each = np.eye(self._BINS)
        self._right = Ratio[Doubles](self._DECAY, np.zeros(self._BINS), np.zeros(self._BINS))  # by probability
        self._following = Ratio(self._DECAY, *self._PRIOR)
        self._pairs = 0

    def add(self, probability: float, accepted: bool, after: bool) -> None:
        """Adds a pair of a decided token.

        Args:
            after: Whether it followed another, accepted drafted token.
        """
        tried = self._each[min(int(probability * self._BINS), self._BINS - 1)]
        self._right.add(tried * accepted, tried)
        self._pairs += 1
        if after:
            self._following.add(accepted, 1.0)

    def settle(self, price: float) -> None:
        """Moves the bound toward the best one.

        Args:
            price: The price of a node: the least probability of a path for which it pays.
        """
        if self._pairs < self._ENOUGH:
            return
        gains = self._right.observed * self._following.value() - price * self._right.expected
        brought = gains[::-1].cumsum()[::-1]
        # bins without pairs leave the sum as it is: of equal bounds the one nearest to the present
        best = np.flatnonzero(brought[1:] == brought[1:].max()) + 1
        goals = best / self._BINS
        goal = goals[np.abs(goals - self.bound).argmin()]
        self.bound += self._STEP * float(goal - self.bound)


class Kangaroo(Drafter):
    """Drafts a chain up to the first unsure token, and its runners-up where ``should_extend`` takes them.

    It draws with the target's own keyed noise, which ranks the runners-up too. The probability of the path so far
    decides whether to go on; the next token is then drafted, however unlikely it is.

    Attributes:
        sureness: Decides whether it goes on.
    """

    name = "kangaroo"

    def __init__(
        self,
        model: Target,
        abilities: Abilities,
        sure: float = 0.6,
        in_step: Callable[[], None] = lambda: None,
        opened: ExitStack | None = None,
    ) -> None:
        """Takes over a cut.

        Args:
            model: The cut of the target; only this drafter uses it.
            abilities: The target's limits of rows and leaves.
            sure: Initial ``Sureness.bound``; the authors' value for their 7B model.
            in_step: Called before each draft, to give the cut the target's number of threads.
            opened: Closes the cut, with this drafter.
        """
        self._model, self._cache = model, DraftCache(model)
        self._rows = abilities.max_rows - 1
        self._siblings = min(_SIBLINGS, abilities.max_leaves - 1)
        self._in_step, self._opened = in_step, opened or ExitStack()
        self.sureness = Sureness(sure)
        self._tokens: list[Token] = []  # the chain of the last draft
        self._probs: list[float] = []
        self._drafted_at = _NOWHERE  # length of the history at the last draft
        self._price: float | None = None  # price of a node at the last draft

    def begin(self, history: History) -> None:
        self._cache.begin()

    def draft(self, history: History, should_extend: ShouldExtend, sampler: Sampler) -> Draft:
        """Drafts a chain, or a chain that ends in several leaves."""
        self._drafted_at = _NOWHERE
        if not should_extend(1.0, 1):
            return NO_DRAFT
        self._in_step()
        if not self._cache.follow(history.tokens):
            return NO_DRAFT
        tokens, probs = self._tokens, self._probs = list[Token](), list[float]()
        beside: Iterable[tuple[Token, float]] = ()  # the runners-up of the unsure token
        path, room = 1.0, min(self._rows, self._model.abilities.n_ctx - len(history.tokens))
        while len(tokens) < room and should_extend(path, len(tokens) + 1):
            row = self._model.evaluate(tokens[-1] if tokens else history.tokens[-1], EMPTY_TREE).logits[0]
            self._model.keep(())
            ranked, shares = sampler.rank(row, history, tokens, 1 + self._siblings)
            tokens.append(ranked[0])
            probs.append(shares[0])
            if shares[0] < self.sureness.bound:
                beside = zip(ranked[1:], shares[1:], strict=True)
                break
            path *= shares[0]
        self._drafted_at, self._price = len(history.tokens), _price(should_extend)
        builder = TreeBuilder()
        handles = builder.add_path(tokens, probs, self.name)
        parent = handles[-2] if len(handles) > 1 else ROOT
        for token, share in beside:
            if len(builder) == room or not should_extend(path * share, len(tokens)):
                break
            builder.add(parent, token, share, self.name)
        return builder.build()

    def observe(self, history: History, step: Step) -> None:
        """Records its probabilities of tokens that the target has now drawn, whichever draft was evaluated."""
        if len(history.tokens) - len(step.tokens) != self._drafted_at:
            return
        self._drafted_at = _NOWHERE
        for place, (token, prob, drawn) in enumerate(zip(self._tokens, self._probs, step.tokens, strict=False)):
            self.sureness.add(prob, token == drawn, place > 0)
            if token != drawn:
                break
        if self._price is not None:
            self.sureness.settle(self._price)

    def reading_ms(self, history: History) -> float:
        return self._cache.reading_ms(history.tokens)

    def rewind(self, length: int) -> None:
        self._cache.rewind(length)
        self._drafted_at = _NOWHERE

    def close(self) -> None:
        self._opened.close()


def _price(should_extend: ShouldExtend) -> float | None:
    """The least probability of a path for which a second node pays, to 1/32; None if there is none."""
    if not should_extend(1.0, 2):
        return None
    low, high = 0.0, 1.0
    for _ in range(5):
        middle = (low + high) / 2
        low, high = (low, middle) if should_extend(middle, 2) else (middle, high)
    return high


def _lacks(resources: Resources) -> str:
    missing = needs_heads(Kangaroo.name)(resources)
    if missing or resources.header is None:
        return missing or "it needs a model that was read from a file"
    return why_not_cut(resources.header)


def _cut_adapters(resources: Resources, cut: Path, folder: Path) -> list[Adapter]:
    """The parts of the target's LoRA adapters that change the layers of its cut, as files in a folder."""
    assert resources.llama
    adapters = resources.llama.model.adapters
    if not adapters:
        return []
    header = read_header(cut)
    parts = (cut_adapter(each, header, folder / f"{n}.gguf") for n, each in enumerate(adapters))
    return [part for part in parts if part]


def _make(resources: Resources) -> Drafter:
    assert resources.llama and resources.header  # _lacks has checked it
    llama = resources.llama
    with ExitStack() as opened:
        folder = resources.folder or Path(opened.enter_context(TemporaryDirectory(prefix="slipstream-")))
        path = kept_cut(resources.header.path, resources.heads[Kangaroo.name], folder)
        with TemporaryDirectory(prefix="slipstream-") as parts:  # llama.cpp reads adapters completely
            adapters = _cut_adapters(resources, path, Path(parts))
            place = llama.placement
            # each of its tokens would wait for another machine
            place = Placement(0, ()) if place.machines else place.beside()
            model = opened.enter_context(closing(LlamaModel(path, placement=place, adapters=adapters)))
        n_ctx = resources.abilities.n_ctx
        options = ContextOptions(n_ctx, max_rows=1, max_leaves=1, scores=llama.scores, rope=llama.rope)
        cut = opened.enter_context(closing(LlamaTarget(model, options)))
        return Kangaroo(
            cut,
            resources.abilities,
            in_step=lambda: cut.use_threads(threads_of(llama.context)),
            opened=opened.pop_all(),
        )


METHOD: Final = Method(
    Kangaroo.name,
    _make,
    lacks=_lacks,
    about="the model's own first layers and a trained adapter draft",
    auto=True,
)
