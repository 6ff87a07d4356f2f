"""What the chats tell of models: the chats in which one replied, and how fast each drafter made it on this machine."""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from typing import Final

from slipstream.app.chats.reading import ChatReader
from slipstream.app.chats.records import Figures
from slipstream.models.errors import SlipstreamError

_NEWEST: Final = 2000  # messages that are looked at: older ones say little of today, and a start must not wait for them
_LEAST_TOKENS: Final = 64


class ModelHistory(ChatReader):
    """Reads from the chats what concerns models; chats that cannot be read tell nothing."""

    def chats_of(self, fingerprint: str) -> tuple[str, ...]:
        """Titles of the chats in which a model replied, the newest first."""
        query = """
            SELECT title FROM chats
            WHERE deleted IS NULL AND id IN (SELECT chat FROM messages WHERE model = ?) ORDER BY updated DESC
        """
        with suppress(SlipstreamError), self._open() as db:
            return tuple(str(title) for (title,) in db.execute(query, (fingerprint,))) if db else ()
        return ()

    def gains(self, fingerprint: str) -> dict[str, float]:
        """Speed over plain decoding by drafter, over a model's newest replies that measured it."""
        query = """
            SELECT drafter, speed FROM messages
            WHERE id > (SELECT coalesce(max(id), 0) FROM messages) - ?
                AND model = ? AND role = 'assistant' AND status IN ('done', 'interrupted')
        """
        tokens: defaultdict[str, int] = defaultdict(int)
        seconds: defaultdict[str, float] = defaultdict(float)  # as plain decoding would have taken 1 a token
        with suppress(SlipstreamError), self._open() as db:
            for drafter, speed in db.execute(query, (_NEWEST, fingerprint)) if db else ():
                figures = Figures.unpacked(speed)
                if figures and figures.speed.speedup:
                    tokens[drafter] += figures.speed.tokens
                    seconds[drafter] += figures.speed.tokens / figures.speed.speedup
        return {name: tokens[name] / seconds[name] for name in tokens if tokens[name] >= _LEAST_TOKENS}
