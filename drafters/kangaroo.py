"""Drafter ``kangaroo``: the target's own first layers and a small adapter draft, with two early exits.

Source: Kangaroo (Liu et al., arXiv 2404.18911; github.com/Equationliu/Kangaroo). The first exit is in depth: the draft
is computed by the target's first few layers (``slipstream.models.heads.self_draft``). The second is in length: drafting
stops after the first unsure token; it is verified too, since its pass is already done.

Unlike the published code, verification does not continue from the drafted tokens' states: the target computes its first
layers again. This costs their share of a pass, but needs no change of the target.
"""

from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

from slipstream.drafters.base import NO_DRAFT, Draft, Drafter, ShouldExtend, Step
from slipstream.drafters.calibration import Ratio
from slipstream.drafters.draft_cache import DraftCache
from slipstream.drafters.resources import Method, Resources
from slipstream.drafters.tree import TreeBuilder
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

_SIBLINGS: Final = 3  # most runners-up of an unsure token
_NOWHERE: Final = -1


class Sureness:
    """The probability below which a drafted token is the last one, tuned online.

    Drafting one more token pays if the token before it and the new token are both accepted. Let c be the price of a
    node: the least path probability that ``should_extend`` accepts. Let f be the share of accepted tokens among those
    after an accepted token. Each decided token is recorded as a pair: its probability p, and whether it was accepted
    (a, 0 or 1). With a given bound, drafting would have continued after the tokens of p >= bound, and gained the sum of
    their (a f - c), in tokens. Each draft moves the bound a tenth of the way to the one with the largest sum. Older
    pairs count less. Unsure tokens are verified and recorded too; tokens after a wrong one are not decided.
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
        """Records a decided token, and whether it comes ``after`` an accepted one."""
        tried = self._each[min(int(probability * self._BINS), self._BINS - 1)]
        self._right.add(tried * accepted, tried)
        self._pairs += 1
        if after:
            self._following.add(accepted, 1.0)

    def settle(self, price: float) -> None:
        """Moves the bound toward the best one for a price of a node."""
        if self._pairs < self._ENOUGH:
            return
        gains = self._right.observed * self._following.value() - price * self._right.expected
        brought = gains[::-1].cumsum()[::-1]
        # bins without pairs do not change the sum: of several best bounds, take the one nearest to the current bound
        best = np.flatnonzero(brought[1:] == brought[1:].max()) + 1
        goals = best / self._BINS
        goal = goals[np.abs(goals - self.bound).argmin()]
        self.bound += self._STEP * float(goal - self.bound)


class Kangaroo(Drafter):
    """Drafts a chain up to the first unsure token, and that token's runners-up if ``should_extend`` accepts them.

    It draws with the target's own keyed noise, which ranks the runners-up too. The probability of the path so far
    decides whether another token is drafted; that token is kept even if it is unlikely.
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
        """Takes over a cut of the target, and calls ``in_step`` before each draft; ``sure`` is the authors', for 7B."""
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
        """Records the drafted tokens that the step decides, even if it evaluated another draft."""
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
    """The least path probability for which a second node pays, to 1/32; None if it never pays."""
    if not should_extend(1.0, 2):
        return None
    low, high = 0.0, 1.0
    for _ in range(5):
        middle = (low + high) / 2
        low, high = (low, middle) if should_extend(middle, 2) else (middle, high)
    return high


def _unfit(resources: Resources) -> str:
    return why_not_cut(resources.header) if resources.header else "it needs a model that was read from a file"


def _make(resources: Resources) -> Drafter:
    assert resources.llama and resources.header  # ``Method.lacks`` has checked it
    llama = resources.llama
    with ExitStack() as opened:
        folder = resources.folder or Path(opened.enter_context(TemporaryDirectory(prefix="slipstream-")))
        path = kept_cut(resources.header.path, resources.heads[Kangaroo.name], folder)
        with TemporaryDirectory(prefix="slipstream-") as parts:  # only needed while the model loads
            header = read_header(path)
            cuts = (cut_adapter(each, header, Path(parts, f"{n}.gguf")) for n, each in enumerate(llama.model.adapters))
            adapters = [each for each in cuts if each]
            place = llama.placement
            # not on other machines: each drafted token would wait for the network
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
    Kangaroo.name, _make, heads=True, unfit=_unfit, about="the model's own first layers and a trained adapter draft"
)
