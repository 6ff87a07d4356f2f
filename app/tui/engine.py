"""What the chat needs of an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from slipstream.app.engine.protocol import Done, Loaded, Prefilling, Stepped
from slipstream.app.engine.requests import Generate, Load, Prepare


class ChatEngine(Protocol):
    """Loads a model and replies; ``slipstream.app.engine.host.Engine`` is one.

    ``load`` and ``reply`` block and are called from one thread at a time; ``prepare``, ``stop`` and ``close`` from any.
    """

    def load(self, load: Load, on_progress: Callable[[float | None], None] | None = None) -> Loaded:
        """Loads a model; starts the engine if it is not running.

        Raises:
            SlipstreamError: If it cannot be loaded.
        """

    def reply(self, generate: Generate) -> Iterator[Prefilling | Stepped | Done]:
        """Yields the events of one reply, the last of which is ``Done``.

        Raises:
            SlipstreamError: If the request cannot be served.
            EngineDiedError: If the engine's process ended.
        """

    def prepare(self, prepare: Prepare) -> None:
        """Reads what is being typed, as long as nothing else is asked; nothing answers, and nothing fails."""

    def watch(self, on: bool) -> None:
        """Has every step of this reply and the next ones carry its draft, or no longer; nothing fails."""

    def stop(self, request: int) -> None:
        """Ends a reply at once; its ``Done`` still comes."""

    def close(self) -> None:
        """Ends the engine; a ``reply`` that is waiting raises ``EngineDiedError``."""
