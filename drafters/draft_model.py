"""Speculative decoding with a draft model (Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318)."""

from __future__ import annotations

from typing import ClassVar, Final

from slipstream.drafters.base import NO_DRAFT, Draft, Drafter, Worth
from slipstream.drafters.parts import Method, Parts
from slipstream.drafters.tree import chain_draft
from slipstream.models.runtime.target import Target
from slipstream.models.sampling import Sampler
from slipstream.models.types import EMPTY_TREE, History, Token, shared_prefix

_CATCH_UP: Final = 512
"""Tokens of a prompt that the draft model reads in one step, so that no step is long."""


class DraftModel(Drafter):
    """A small model of the same vocabulary drafts a chain, and stops before a token that it is unsure of.

    It draws with the target's own keyed noise: where both models draw the same token from the same noise, the draft is
    right, at any temperature (Daliri et al., arXiv 2408.07978). The prompt is read lazily, a part with each step.
    """

    name: ClassVar[str] = "draft"

    def __init__(self, model: Target, n_vocab: int, sure: float = 0.4) -> None:
        """Takes over a draft model.

        Args:
            model: The draft model; nobody else may use it, and its owner closes it.
            n_vocab: Size of the target's vocabulary, which may be the smaller one (padding).
            sure: Least probability of a drafted token; transformers' ``assistant_confidence_threshold`` is 0.4 too.
        """
        self._model = model
        self._n_vocab = n_vocab
        self._sure = sure
        self._agreed = 0  # tokens of the history that the model's cache is known to share

    def begin(self, history: History) -> None:
        """Starts a reply; the cache keeps what it shares with the new prompt."""
        self._agreed = 0

    def draft(self, history: History, worth: Worth, sampler: Sampler) -> Draft:
        """Drafts a chain."""
        if not worth(1.0, 1) or not self._catch_up(history.tokens):
            return NO_DRAFT
        tokens: list[Token] = []
        probs: list[float] = []
        path = 1.0
        room = self._model.abilities.n_ctx - len(history.tokens)
        while len(tokens) < room and worth(path, len(tokens) + 1):
            evaluation = self._model.evaluate(tokens[-1] if tokens else history.tokens[-1], EMPTY_TREE)
            self._model.keep(())
            token, prob = sampler.draw(evaluation.logits[0, : self._n_vocab], history, tokens)
            path *= prob
            if prob < self._sure or not worth(path, len(tokens) + 1):
                break
            tokens.append(token)
            probs.append(prob)
        return chain_draft(tokens, probs, self.name)

    def rewind(self, length: int) -> None:
        """Forgets what follows ``length``."""
        self._agreed = min(self._agreed, length)

    def _catch_up(self, tokens: list[Token]) -> bool:
        """Brings the cache to the history without its last token; False while it is too far behind."""
        if len(tokens) > self._model.abilities.n_ctx:
            return False
        wanted = len(tokens) - 1
        shared = min(shared_prefix(self._model.tokens, tokens, self._agreed), wanted)
        if shared < len(self._model.tokens):
            self._model.rewind(shared)
        behind = wanted - shared
        if behind <= 16:
            self._model.feed(tokens[shared:wanted])
        else:
            self._model.prefill(tokens[: min(wanted, shared + _CATCH_UP)])
        self._agreed = len(self._model.tokens)
        return self._agreed == wanted


def _lacks(parts: Parts) -> str:
    return "" if parts.draft_model else "it needs a draft model, and this model has none"


def _make(parts: Parts) -> Drafter:
    assert parts.draft_model is not None  # _lacks has said so
    return DraftModel(parts.draft_model, parts.abilities.n_vocab)


METHOD = Method(DraftModel.name, _make, DraftModel.needs, _lacks, "a smaller model of the same vocabulary writes ahead")
