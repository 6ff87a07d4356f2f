"""Drafter ``draft`` where the draft model has another vocabulary than the target: the text is tokenized again.

Sources: universal assisted generation (github.com/huggingface/transformers, generation/candidate_generator.py) and
llama.cpp's speculative example until May 2026 (its pull request 12635). Both decode and tokenize around every draft.
"""

from __future__ import annotations

from math import prod
from typing import ClassVar, Final, NamedTuple

from slipstream.drafters.base import NO_DRAFT, Draft, Drafter, Step, Worth
from slipstream.drafters.confidence import Confidence
from slipstream.drafters.follower import Follower
from slipstream.drafters.translation import Translation
from slipstream.drafters.tree import chain_draft
from slipstream.models.runtime.target import Target
from slipstream.models.sampling import Sampler
from slipstream.models.types import EMPTY_TREE, Abilities, History, Token

_MOST: Final = 24  # tokens of the draft model in one draft
_BEST: Final = Sampler(temperature=0.0)
"""Noise is keyed by token ids, which mean something else to the draft model: its best token is its best guess."""
_NOTHING: Final = History([])


class _Guess(NamedTuple):
    """A token of the target.

    Attributes:
        token: Its id.
        share: The draft model's probability of its text.
    """

    token: Token
    share: float


class TranslatedModel(Drafter):
    """A small model of any vocabulary writes on, and its words are tokenized as the target would write them.

    The last token is left out: had the draft model written on, it might have grown. A token of the target is as
    probable as all tokens of the draft model that begin in it.
    """

    name: ClassVar[str] = "draft"

    def __init__(self, model: Target, abilities: Abilities, translation: Translation) -> None:
        """Takes over a draft model.

        Args:
            model: The draft model; during a reply nobody else may use it, and its owner closes it.
            abilities: Of the target.
            translation: Between the two vocabularies; during a reply nobody else may use it.
        """
        self._model, self._translation = model, translation
        self._rows = abilities.max_rows - 1
        self._follower = Follower(model)
        self._confidence = Confidence()
        self._at = 0  # length of the history that was drafted for
        self._guesses: list[_Guess] = []

    def begin(self, history: History) -> None:
        """Starts a reply; the cache keeps what it shares with the new prompt."""
        self._at = 0
        self._follower.begin()
        self._translation.begin()

    def draft(self, history: History, worth: Worth, sampler: Sampler) -> Draft:
        """Drafts a chain."""
        self._guesses = []
        self._at = len(history.tokens)
        if not worth(1.0, 1):
            return NO_DRAFT
        self._follower.rewind(self._translation.follow(history.tokens))
        read = self._translation.tokens
        if not read or not self._follower.follow(read) or not self._translation.whole:
            return NO_DRAFT
        self._guesses = self._write(len(history.tokens), worth)
        tokens: list[Token] = []
        probs: list[float] = []
        path = 1.0
        for token, share in self._guesses[: self._rows]:
            prob = self._confidence.corrected(share)
            path *= prob
            if not worth(path, len(tokens) + 1):
                break
            tokens.append(token)
            probs.append(prob)
        return chain_draft(tokens, probs, self.name)

    def observe(self, history: History, step: Step) -> None:
        """Measures the probabilities by the target's tokens, whoever drafted the step."""
        if self._at != len(history.tokens) - len(step.tokens):
            return
        for guess, right in zip(self._guesses, step.tokens, strict=False):
            self._confidence.hear(guess.share, guess.token == right)
            if guess.token != right:
                return

    def reading_ms(self, history: History) -> float:
        """Milliseconds of the prompt that it has not read."""
        translation = self._translation
        return self._follower.reading_ms(translation.tokens, translation.behind(history.tokens))

    def rewind(self, length: int) -> None:
        """Forgets what follows ``length``."""
        self._translation.rewind(length)

    def _write(self, size: int, worth: Worth) -> list[_Guess]:
        """Lets the draft model write until it is unsure, and returns what that is in the target's tokens.

        Args:
            size: Tokens of the history in the target's vocabulary.
            worth: Asked with the depth that the words so far will about have there.
        """
        model, translation = self._model, self._translation
        ratio = min(1.0, size / len(translation.tokens))
        text, path = b"", 1.0
        begins: list[int] = []
        shares: list[float] = []
        last, final = translation.tokens[-1], None
        for _ in range(min(_MOST, model.abilities.n_ctx - len(translation.tokens))):
            evaluation = model.evaluate(last, EMPTY_TREE)
            model.keep(())
            (last,), (share,) = _BEST.rank(evaluation.logits[0], _NOTHING)
            piece = translation.piece(last)
            if not piece or last in translation.ends:
                final = last, share
                break
            begins.append(len(text))
            shares.append(share)
            text += piece
            path *= self._confidence.corrected(share)
            if not worth(path, 1 + int(len(shares) * ratio)):
                break
        guesses: list[_Guess] = []
        begin = 0
        for token, end in translation.continued(text):
            if end == len(text) and final is None:
                break
            guesses.append(_Guess(token, prod(s for s, at in zip(shares, begins, strict=True) if begin <= at < end)))
            begin = end
        control = translation.control(final[0]) if final and begin == len(text) else None
        return [*guesses, _Guess(control, final[1])] if final and control is not None else guesses
