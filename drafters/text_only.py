"""Wraps a drafter for a prompt with images: the drafter gets only the text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slipstream.drafters.base import NO_DRAFT, Draft, Drafter, Needs, ShouldExtend, Step
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import Floats, History, Token


class TextOnly(Drafter):
    """Hides the images of a history from a drafter, which has no tokens for them.

    Heads do not get the hidden states of an image's rows either, so they guess worse than after text. The reply stays
    the same, since the target reads the image. Positions still count the image, because they are keys of the noise.
    """

    def __init__(self, inner: Drafter, n_ctx: int) -> None:
        """Wraps a drafter for one prompt.

        Args:
            n_ctx: Tokens that the target's context holds, images included.
        """
        self.name, self._inner, self._n_ctx = inner.name, inner, n_ctx
        self._text, self._seen = History([]), 0

    @property
    def needs(self) -> Needs:
        return self._inner.needs

    @property
    def failed(self) -> str:
        return self._inner.failed

    def begin(self, history: History) -> None:
        self._text, self._seen = History([], history.trimmed), 0
        self._inner.begin(self._following(history))

    def on_prefill(self, tokens: Sequence[Token], hidden: Mapping[int, Floats]) -> None:
        if tokens and tokens[0] >= 0:  # an image is read in a separate pass
            self._inner.on_prefill(tokens, hidden)

    def draft(self, history: History, should_extend: ShouldExtend, sampler: Sampler) -> Draft:
        """Drafts after the text; nothing if the draft and the images exceed the context."""
        draft = self._inner.draft(self._following(history), should_extend, sampler)
        return draft if len(draft.tree) <= self._n_ctx - len(history.tokens) else NO_DRAFT

    def observe(self, history: History, step: Step) -> None:
        self._inner.observe(self._following(history), step)

    def reading_ms(self, history: History) -> float:
        return self._inner.reading_ms(self._following(history))

    def reject(self, draft: Draft, why: Exception) -> None:
        self._inner.reject(draft, why)

    def _following(self, history: History) -> History:
        """The text of a history; since ``begin``, the history may only have grown."""
        new = history.tokens[self._seen :]
        text = [token for token in new if token >= 0]
        self._text.tokens += text
        self._text.trimmed += len(new) - len(text)
        self._seen = len(history.tokens)
        return self._text
