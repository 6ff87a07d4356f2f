"""Drafter ``draft``: a smaller model drafts (Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318).

If its vocabulary differs from the target's, its text is tokenized again for the target. Sources of this: universal
assisted generation (github.com/huggingface/transformers, generation/candidate_generator.py) and llama.cpp's speculative
example until May 2026 (its pull request 12635). Both convert the text before and after every draft.
"""

from math import prod
from typing import Final, NamedTuple

from slipstream.drafters.base import NO_DRAFT, Draft, Drafter, ShouldExtend, Step
from slipstream.drafters.calibration import ProbabilityCalibration, RankedTokens
from slipstream.drafters.draft_cache import DraftCache
from slipstream.drafters.resources import Method, Resources
from slipstream.drafters.tree import TOP, Grown, TreeBuilder, chain_draft
from slipstream.drafters.vocabulary_mapping import VocabularyMapping
from slipstream.models.llama.target import Target
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import EMPTY_TREE, Abilities, History, Token

_SIBLINGS: Final = 4  # candidates for each position
_LEAVES: Final = 4
_NODES: Final = 16
_MOST: Final = 24  # most tokens that a draft model of another vocabulary writes for one draft
_BEST: Final = Sampler(temperature=0.0)
"""Greedy: the keyed noise depends on the target's token ids, so it does not apply to another vocabulary."""
_NOTHING: Final = History([])


class DraftModel(Drafter):
    """A small model of the same vocabulary drafts a chain, and a small tree around it where that pays.

    It draws with the target's own keyed noise: where both models draw the same token from the same noise, the draft is
    accepted, at any temperature (Daliri et al., arXiv 2408.07978). First the chain grows, with one pass for each token,
    until the next token does not pay. Then the runners-up at its positions are added, best first, while they pay. The
    new nodes whose children may pay are evaluated together in one pass; this repeats until no further node pays. Where
    a device replays passes there is no such pass, so that all passes have one row.
    """

    name = "draft"

    def __init__(self, model: Target, abilities: Abilities, leaves: int = _LEAVES) -> None:
        """Takes over a model, which its owner closes; its vocabulary may be larger than the target's (padding)."""
        self._model, self._n_vocab = model, abilities.n_vocab
        # chains need passes of one row only: a recurrent draft model returns to its mark and rereads accepted tokens
        self._leaves = max(1, min(leaves, abilities.max_leaves, model.abilities.max_leaves))
        self._rows = min(abilities.max_rows, model.abilities.max_rows if self._leaves > 1 else abilities.max_rows) - 1
        self._siblings = _SIBLINGS if self._leaves > 1 else 1
        self._cache = DraftCache(model)
        self._ranked = RankedTokens()

    def begin(self, history: History) -> None:
        self._cache.begin()

    def draft(self, history: History, should_extend: ShouldExtend, sampler: Sampler) -> Draft:
        self._ranked.begin(history)
        if not should_extend(1.0, 1) or not self._cache.follow(history.tokens):
            return NO_DRAFT
        tokens: list[Token] = []
        probs: list[float] = []
        path = 1.0
        room = min(self._rows, self._model.abilities.n_ctx - len(history.tokens))
        while len(tokens) < room and should_extend(path, len(tokens) + 1):
            evaluation = self._model.evaluate(tokens[-1] if tokens else history.tokens[-1], EMPTY_TREE)
            self._model.keep(())
            ranked, shares = sampler.rank(evaluation.logits[0, : self._n_vocab], history, tokens, self._siblings)
            prob = self._ranked.add(tuple(tokens), ranked, shares)[0]
            path *= prob
            if not should_extend(path, len(tokens) + 1):
                break
            tokens.append(ranked[0])
            probs.append(prob)
        if self._leaves > 1:
            return self._tree(history, should_extend, sampler, tokens, probs)
        return chain_draft(tokens, probs, self.name)

    def observe(self, history: History, step: Step) -> None:
        self._ranked.observe(history, step)

    def reading_ms(self, history: History) -> float:
        return self._cache.reading_ms(history.tokens)

    def rewind(self, length: int) -> None:
        self._cache.rewind(length)

    def _tree(
        self, history: History, should_extend: ShouldExtend, sampler: Sampler, tokens: list[Token], probs: list[float]
    ) -> Draft:
        """Grows a tree around a chain, first from the runners-up of its positions."""
        tree, above = TreeBuilder(), TOP
        chain = tree.add_path(tokens, probs, self.name)
        for handle, token, prob in zip(chain, tokens, probs, strict=True):
            tree.offer(above, [child for child in self._ranked.after(above.tokens) if child[0] != token])
            above = Grown(handle, (*above.tokens, token), above.path * prob)
        if above.tokens in self._ranked:
            tree.offer(above, self._ranked.after(above.tokens))
        room = min(_NODES, self._rows, self._model.abilities.n_ctx - len(history.tokens))
        while True:
            grown = [
                node
                for node in tree.grow(should_extend, self.name, room, self._leaves)
                if should_extend(node.path, len(node.tokens) + 1)
            ]
            if not grown or len(tree) >= room or self._model.abilities.replays:
                return tree.build()
            self._rank_below(history, sampler, tree, grown, chain)
            for node in grown:
                tree.offer(node, self._ranked.after(node.tokens))

    def _rank_below(
        self, history: History, sampler: Sampler, tree: TreeBuilder, grown: list[Grown], chain: tuple[int, ...]
    ) -> None:
        """Ranks the tokens after some nodes in one pass; the cache keeps the chain, which is most often right."""
        self._model.rewind(len(history.tokens) - 1)
        place = {handle: node for node, handle in enumerate(tree.layout())}
        evaluation = self._model.evaluate(history.tokens[-1], tree.build().tree)
        for node in grown:
            logits = evaluation.logits[place[node.handle] + 1, : self._n_vocab]
            self._ranked.add(node.tokens, *sampler.rank(logits, history, node.tokens, self._siblings))
        self._model.keep([place[handle] for handle in chain])


class _Guess(NamedTuple):
    token: Token
    share: float  # the draft model's probability of its text


class TranslatedModel(Drafter):
    """A small model of another vocabulary continues the text; the continuation is then tokenized for the target.

    The last token is left out, because further text could make it longer. The probability of a token is the product of
    the probabilities of the draft model's tokens that begin in it.
    """

    name = "draft"

    def __init__(self, model: Target, abilities: Abilities, mapping: VocabularyMapping) -> None:
        """Takes over a draft model and the mapping between the vocabularies; the model's owner closes it."""
        self._model, self._mapping = model, mapping
        self._rows = abilities.max_rows - 1
        self._cache = DraftCache(model)
        self._calibration = ProbabilityCalibration()
        self._at = 0  # length of the history at the last draft
        self._guesses: list[_Guess] = []

    def begin(self, history: History) -> None:
        self._at = 0
        self._cache.begin()
        self._mapping.begin()

    def draft(self, history: History, should_extend: ShouldExtend, sampler: Sampler) -> Draft:
        self._guesses = []
        self._at = len(history.tokens)
        if not should_extend(1.0, 1):
            return NO_DRAFT
        self._cache.rewind(self._mapping.follow(history.tokens))
        read = self._mapping.tokens
        if not read or not self._cache.follow(read) or not self._mapping.whole:
            return NO_DRAFT
        self._guesses = self._write(len(history.tokens), should_extend)
        tokens: list[Token] = []
        probs: list[float] = []
        path = 1.0
        for token, share in self._guesses[: self._rows]:
            prob = self._calibration.corrected(share)
            path *= prob
            if not should_extend(path, len(tokens) + 1):
                break
            tokens.append(token)
            probs.append(prob)
        return chain_draft(tokens, probs, self.name)

    def observe(self, history: History, step: Step) -> None:
        """Calibrates the probabilities with the target's tokens, even if the step evaluated another draft."""
        if self._at != len(history.tokens) - len(step.tokens):
            return
        for guess, right in zip(self._guesses, step.tokens, strict=False):
            self._calibration.add(guess.share, guess.token == right)
            if guess.token != right:
                return

    def reading_ms(self, history: History) -> float:
        mapping = self._mapping
        return self._cache.reading_ms(mapping.tokens, mapping.behind(history.tokens))

    def rewind(self, length: int) -> None:
        self._mapping.rewind(length)

    def _write(self, size: int, should_extend: ShouldExtend) -> list[_Guess]:
        """Drafts text until a token does not pay, by its estimated depth, or ends it; returns the target's tokens."""
        model, mapping = self._model, self._mapping
        ratio = min(1.0, size / len(mapping.tokens))
        text, path = b"", 1.0
        begins: list[int] = []
        shares: list[float] = []
        last, final = mapping.tokens[-1], None
        for _ in range(min(_MOST, model.abilities.n_ctx - len(mapping.tokens))):
            evaluation = model.evaluate(last, EMPTY_TREE)
            model.keep(())
            (last,), (share,) = _BEST.rank(evaluation.logits[0], _NOTHING)
            piece = mapping.piece(last)
            if not piece or last in mapping.ends:
                final = last, share
                break
            begins.append(len(text))
            shares.append(share)
            text += piece
            path *= self._calibration.corrected(share)
            if not should_extend(path, 1 + int(len(shares) * ratio)):
                break
        guesses: list[_Guess] = []
        begin = 0
        for token, end in mapping.continued(text):
            if end == len(text) and final is None:
                break
            guesses.append(_Guess(token, prod(s for s, at in zip(shares, begins, strict=True) if begin <= at < end)))
            begin = end
        control = mapping.control(final[0]) if final and begin == len(text) else None
        return [*guesses, _Guess(control, final[1])] if final and control is not None else guesses


def _unfit(resources: Resources) -> str:
    return "" if resources.draft_model else "it needs a draft model, and this model has none"


def _make(resources: Resources) -> Drafter:
    assert resources.draft_model is not None  # ``_unfit`` has checked it
    if resources.vocabulary_mapping:
        return TranslatedModel(resources.draft_model, resources.abilities, resources.vocabulary_mapping)
    return DraftModel(resources.draft_model, resources.abilities)


METHOD: Final = Method(DraftModel.name, _make, unfit=_unfit, about="a smaller model writes ahead")
