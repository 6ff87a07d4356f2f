"""Keeps a draft model's KV cache up to date with a text, with a bounded delay for each step."""

from time import perf_counter
from typing import Final

from slipstream.models.llama.target import Target
from slipstream.models.types import Token, shared_prefix

_FEW: Final = 16  # up to so many missing tokens join the model's next pass; more are prefilled before it
_ALONE: Final = 2  # where passes are replayed, up to so many have passes of their own, as wide as those that draft
_SHORT: Final = 64
"""Most tokens read before a reply's first token; a longer prompt is read afterwards, a piece with each step."""
_SECONDS: Final = 0.05  # target time of one piece
_SMALLEST: Final = 16
_LARGEST: Final = 512  # tokens of a piece


class DraftCache:
    """Keeps the cache of a draft model up to date with a text that grows, is cut, or is replaced.

    A long prompt is read lazily: nothing before the reply's first token, then one piece in each step. A piece is sized
    to take 50 ms at the speed of the previous one.
    """

    def __init__(self, model: Target) -> None:
        """Takes over a model's cache; during a reply only this object may use it."""
        self.model = model
        self._agreed = 0  # tokens of the text that the cache is known to share
        self._begun = False  # whether ``follow`` was called in this reply
        self._piece = _SHORT
        self._token_ms = 0.0  # time to read one token, measured in the last piece

    def begin(self) -> None:
        """Starts a reply; the cache keeps what it shares with the new text."""
        self._agreed, self._begun = 0, False

    def rewind(self, length: int) -> None:
        """Notes that the text may have changed from index ``length`` on."""
        self._agreed = min(self._agreed, length)

    def reading_ms(self, tokens: list[Token], more: int = 0) -> float:
        """Milliseconds that ``follow`` needs, over several calls, to read any text; 0 for few tokens."""
        cached, at = self.model.tokens, self._agreed
        if at > min(len(tokens), len(cached)) or (at and cached[at - 1] != tokens[at - 1]):
            self._agreed = 0
        behind = len(tokens) - 1 - self._shared(tokens) + more
        return behind * self._token_ms if behind > _FEW else 0.0

    def follow(self, tokens: list[Token]) -> bool:
        """Extends the cache to a text without its last token; False if it is too long, or a token of it is unknown."""
        model = self.model
        first, self._begun = not self._begun, True
        wanted = len(tokens) - 1
        shared = self._shared(tokens)
        behind = wanted - shared
        if behind < 0 or (first and behind > _SHORT):
            return False
        if shared < len(model.tokens):
            model.rewind(shared)
        if behind <= _ALONE and model.abilities.replays and model.abilities.rewinds:
            for token in tokens[shared:wanted]:
                model.evaluate(token)
                model.keep(())
        elif behind <= _FEW:
            model.feed(tokens[shared:wanted])
        else:
            end = min(wanted, shared + self._piece)
            began = perf_counter()
            model.prefill(tokens[:end])
            seconds = max(perf_counter() - began, 1e-6) / (end - shared)
            self._token_ms = 1e3 * seconds
            self._piece = int(min(max(_SECONDS / seconds, _SMALLEST), _LARGEST))
        self._agreed = len(model.tokens)
        return self._agreed == wanted

    def _shared(self, tokens: list[Token]) -> int:
        """How many tokens of a text, except its last, are cached; the text's length if the cache can never hold it."""
        abilities = self.model.abilities
        shared = min(shared_prefix(self.model.tokens, tokens, self._agreed), len(tokens) - 1)
        never = len(tokens) > abilities.n_ctx or max(tokens[shared:], default=0) >= abilities.n_vocab
        return len(tokens) if never else shared
