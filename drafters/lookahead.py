"""Drafter ``lookahead``: in one pass, the target guesses future n-grams and verifies earlier guesses.

Source: Lookahead decoding (Fu et al., 2024, arXiv 2402.02057; github.com/hao-ai-lab/LookaheadDecoding). No weights.
"""

import random
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from slipstream.drafters.base import NO_DRAFT, Draft, Drafter, ShouldExtend, Step
from slipstream.drafters.calibration import Ratio
from slipstream.drafters.resources import Method
from slipstream.drafters.tree import TreeBuilder
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import ROOT, Abilities, History, Token, shared_prefix

_COLUMNS: Final = 5
_LENGTH: Final = 4
_NGRAMS: Final = 5
_FIRST: Final = 0.5
"""Prior probability of the first token of the most recently used n-gram; it halves with each less recent one."""
_LATER: Final = 0.6  # prior probability of a later token, given that those before it were right
_BROUGHT: Final = 0.5  # prior gain of the window's n-grams in tokens per step: the paper's speed-ups are about 1.5
_DECAY: Final = 0.99
_OWN_DECAY: Final = 0.9  # a single n-gram becomes outdated faster than all together
_WEIGHT: Final = 4  # weight of the priors above, in outcomes
_OWN_WEIGHT: Final = 2  # weight of the record of similar n-grams, in outcomes of the n-gram's own
_WINDOW_WEIGHT: Final = 16  # weight of the window's prior, in steps


@dataclass(slots=True)
class NGram:
    tokens: tuple[Token, ...]  # the tokens after its first one
    guessed: bool  # whether it comes from the window alone; False once prompt or reply contained it
    # per token, how often it was right when the text ended with the n-gram's first token and the tokens before it were
    # right; tokens at depths that were never reached are missing
    right: list[Ratio[float]] = field(default_factory=list)

    def probability(self, at: int, prior: float, weight: float) -> float:
        """The probability of token ``at`` given those before; ``prior`` is that of similar n-grams."""
        return self.right[at].given(prior, weight) if at < len(self.right) else prior

    def add(self, at: int, right: bool) -> None:
        """Adds whether token ``at`` was right; the tokens before it were."""
        if at == len(self.right):
            self.right.append(Ratio(_OWN_DECAY, 0.0, 0.0))
        self.right[at].add(right, 1.0)


class NGramPool:
    """N-grams by their first token; beyond either limit, the least recently used ones are dropped."""

    def __init__(self, per_token: int, first_tokens: int = 1 << 16) -> None:
        self._per_token, self.first_tokens = per_token, first_tokens
        self._grams: OrderedDict[Token, OrderedDict[tuple[Token, ...], NGram]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._grams.values()))

    def add(self, first: Token, rest: tuple[Token, ...], *, guessed: bool) -> None:
        """Adds the n-gram of ``first`` and ``rest``, or marks it as the latest used of its first token."""
        grams = self._grams.setdefault(first, OrderedDict())
        gram = grams.setdefault(rest, NGram(rest, guessed))
        gram.guessed = gram.guessed and guessed
        grams.move_to_end(rest)
        self._grams.move_to_end(first)
        if len(grams) > self._per_token:
            grams.popitem(last=False)
        if len(self._grams) > self.first_tokens:
            self._grams.popitem(last=False)

    def after(self, first: Token) -> list[NGram]:
        """The n-grams that begin with ``first``, the latest used first."""
        grams = self._grams.get(first)
        return list(reversed(grams.values())) if grams else []

    def clear(self) -> None:
        self._grams.clear()


class Lookahead(Drafter):
    """Verifies up to ``ngrams`` n-grams that begin with the last token, and refines a window of guesses.

    The window has N - 1 levels of W columns. The token at level j of column i guesses the text's token i + j places
    after the last one; the last token itself is level 0 of column 0. A token attends to level 0 up to its column, and
    to the lower levels of its column. As a tree of probes, level 0 is a chain that starts at the root, and the higher
    levels of each column are a branch below the column's token of level 0::

        root ── column 0: level 1 ─ level 2
         └ level 0 of column 1 ── level 1 ─ level 2
            └ level 0 of column 2 ── level 1 ─ level 2 ...

    The most probable token after the top of each column forms the next level. In a full window, each column and its new
    token are then an n-gram for the pool, and the lowest level is dropped. The n-grams of prompt and reply enter the
    pool too. One pass has at most W - 1 + W (N - 2) + G (N - 1) nodes and W + G leaves.

    The probability of a drafted token is measured by depth and, for first tokens, by how recently the n-gram was used;
    the n-gram's own record corrects it. Every step measures all n-grams that could have been drafted, even if none was,
    so that the probabilities stay correct while nothing pays.

    If the target takes too few leaves, for example chains only, the draft is the most probable n-gram or, if none pays,
    the window's first column.

    Probes cost rows like drafted tokens, but pay only later, through n-grams that are not in prompt or reply. Their
    gain is the number of tokens per step that guessed n-grams match beyond those of the text. Divided by the window's
    nodes, the gain is passed to ``should_extend`` like the probability of a drafted token. So the window pauses where
    rows are expensive, and runs where they are nearly free. A new reply starts from the prior.
    """

    name = "lookahead"

    def __init__(
        self, abilities: Abilities, columns: int = _COLUMNS, length: int = _LENGTH, ngrams: int = _NGRAMS
    ) -> None:
        """Sets the sizes: the paper's W (columns of the window), N (tokens of an n-gram) and G (n-grams a token)."""
        if columns < 1 or length < 3 or ngrams < 1:
            raise ValueError(f"no window of {columns} columns with {ngrams} n-grams of {length} tokens")
        self._abilities = abilities
        self._chain = columns + ngrams > abilities.max_leaves
        columns = 1 if self._chain else columns
        self._columns, self._length = columns, length
        self._window_nodes = columns - 1 + columns * (length - 2)
        self.pool = NGramPool(ngrams)
        self._read: list[Token] = []  # the text whose n-grams are in the pool
        self._levels: list[list[Token]] = []  # lowest first; in the tree, the root replaces column 0 of the lowest
        self._evaluated: tuple[Draft, tuple[int, ...]] = (NO_DRAFT, ())  # the draft, and each column's top node
        # share of first tokens that were right, by how recently the n-gram was used
        self.first = [Ratio(_DECAY, 0.0, 0.0) for _ in range(ngrams)]
        # share of later tokens that were right, by depth from the second on
        self.later = [Ratio(_DECAY, 0.0, 0.0) for _ in range(length - 2)]
        self._brought = Ratio(_DECAY, 0.0, 0.0)

    def begin(self, history: History) -> None:
        """Adds the n-grams of the prompt's new part, and starts a window with random tokens of the prompt."""
        known = shared_prefix(self._read, history.tokens)
        self._learn(history.tokens, known)
        self._read[known:] = history.tokens[known:]
        self._levels = [random.Random(0).choices(history.tokens, k=self._columns)]
        self._brought = Ratio(_DECAY, 0.0, 0.0)

    def draft(self, history: History, should_extend: ShouldExtend, sampler: Sampler) -> Draft:
        room = min(self._abilities.max_rows - 1, self._abilities.n_ctx - len(history.tokens))
        builder = TreeBuilder()
        ranked = [(self._probs(gram, rank), gram) for rank, gram in enumerate(self.pool.after(history.tokens[-1]))]
        for probs, gram in sorted(ranked, key=lambda each: -each[0][0]):
            parent, path = ROOT, 1.0
            for depth, (token, prob) in enumerate(zip(gram.tokens, probs, strict=True), start=1):
                path *= prob
                if len(builder) >= room or not should_extend(path, depth):
                    break
                parent = builder.add(parent, token, prob, self.name)
            if self._chain and len(builder):
                room = 0
                break
        brings = self._brought.given(_BROUGHT, _WINDOW_WEIGHT) / self._window_nodes
        tops: tuple[int, ...] = ()
        if self._levels and len(builder) + self._window_nodes <= room and should_extend(brings, 1):
            tops = self._add_window(builder)
        draft = builder.build()
        self._evaluated = draft, tops
        return draft

    def observe(self, history: History, step: Step) -> None:
        """Measures the n-grams, adds those of the step's tokens, and fills the window's next level."""
        before = len(history.tokens) - len(step.tokens)
        last = history.tokens[before - 1]
        brought = self._measure(last, step.tokens)
        self._learn(history.tokens, before)
        if len(self._read) == before:
            self._read += step.tokens
        draft, tops = self._evaluated
        if not tops or step.draft is not draft:
            return
        top = [int(step.evaluation.logits[node + 1].argmax()) for node in tops]
        if len(self._levels) == self._length - 1:
            self._brought.add(brought, 1.0)
            lowest = self._levels.pop(0)
            lowest[0] = last
            for first, *rest in zip(lowest, *self._levels, top, strict=True):
                self.pool.add(first, tuple(rest), guessed=True)
        self._levels.append(top)

    def rewind(self, length: int) -> None:
        """Cuts the text; the n-grams of the removed part stay in the pool, since they may occur again."""
        del self._read[length:]

    def close(self) -> None:
        self.pool.clear()
        self._read, self._levels = [], []

    def _probs(self, gram: NGram, rank: int) -> list[float]:
        """Per token of an n-gram, its probability given those before."""
        known = [self.first[rank].given(_FIRST / 2**rank, _WEIGHT)]
        known += [share.given(_LATER, _WEIGHT) for share in self.later]
        return [gram.probability(at, prob, _OWN_WEIGHT) for at, prob in enumerate(known)]

    def _add_window(self, builder: TreeBuilder) -> tuple[int, ...]:
        """Adds the window, probes last, so that a probe's handle is its node; returns the top node of each column."""
        tops: list[int] = []
        lowest = ROOT
        for column in range(self._columns):
            if column:
                lowest = builder.add(lowest, self._levels[0][column], 0.0, self.name, probe=True)
            top = lowest
            for level in self._levels[1:]:
                top = builder.add(top, level[column], 0.0, self.name, probe=True)
            tops.append(top)
        return tuple(tops)

    def _measure(self, last: Token, tokens: Sequence[Token]) -> int:
        """Measures the n-grams; returns how many more tokens the best guessed one matched than the text's best one."""
        best = {True: 0, False: 0}
        for rank, gram in enumerate(self.pool.after(last)):
            matched = shared_prefix(gram.tokens, tokens)
            for at in range(min(matched + 1, len(tokens), len(gram.tokens))):
                share = self.later[at - 1] if at else self.first[rank]
                share.add(at < matched, 1.0)
                gram.add(at, at < matched)
            best[gram.guessed] = max(best[gram.guessed], matched)
        return max(0, best[True] - best[False])

    def _learn(self, tokens: Sequence[Token], start: int) -> None:
        for end in range(max(start, self._length - 1) + 1, len(tokens) + 1):
            first, *rest = tokens[end - self._length : end]
            self.pool.add(first, tuple(rest), guessed=False)


METHOD: Final = Method(
    Lookahead.name,
    lambda resources: Lookahead(resources.abilities),
    about="the model refines guesses of whole phrases in the same pass",
)
