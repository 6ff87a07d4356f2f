"""Notices that a text repeats itself, for next to nothing: then whoever copies is worth a try."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from slipstream.models.types import Token, shared_prefix

_GRAM: Final = 4  # tokens that stood together before


class Repeats:
    """Keeps which runs of four tokens have occurred; half a microsecond a token.

    Attributes:
        streak: Of how many of the latest tokens each ended a run that has occurred before.
    """

    def __init__(self) -> None:
        """Has seen nothing."""
        self._seen: set[tuple[Token, ...]] = set()
        self._text: list[Token] = []
        self.streak = 0

    def begin(self, tokens: Sequence[Token]) -> None:
        """Takes a prompt; what it shares with the text before is not read again."""
        shared = shared_prefix(self._text, tokens)
        if shared < len(self._text) - len(self._text) // 4:  # another chat: its runs would be taken for this one's
            self._seen.clear()
            shared = 0
        self._text[shared:] = tokens[shared:]
        text = self._text
        self._seen.update(tuple(text[end - _GRAM : end]) for end in range(max(shared, _GRAM), len(text) + 1))
        self.streak = 0

    def follow(self, history: Sequence[Token]) -> None:
        """Takes the tokens of a history that it has not heard; it only grows during a reply."""
        text, seen = self._text, self._seen
        for token in history[len(text) :]:
            text.append(token)
            gram = tuple(text[-_GRAM:])
            if gram in seen:
                self.streak += 1
            else:
                self.streak = 0
                seen.add(gram)
