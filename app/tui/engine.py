"""What the chat needs of an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from slipstream.app.engine.protocol import Counted, Done, Loaded, Prefilling, Stepped
from slipstream.app.engine.requests import Generate, Load, Prepare
from slipstream.models.errors import EngineDiedError


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
        """Counts and reads what is being typed, as long as nothing else is asked; nothing fails."""

    def tell_count(self, told: Callable[[Counted], None]) -> None:
        """Has this called, from any thread, with what every ``prepare`` takes of the context."""

    def watch(self, on: bool) -> None:
        """Has every step of this reply and the next ones carry its draft, or no longer; nothing fails."""

    def tell_end(self, told: Callable[[EngineDiedError], None]) -> None:
        """Has this called, in some thread, when the engine's process ends while nothing is asked of it."""

    def stop(self, request: int) -> None:
        """Ends a reply at once; its ``Done`` still comes. May wait for an engine that hangs."""

    def close(self) -> None:
        """Ends the engine; a ``reply`` that is waiting raises ``EngineDiedError``."""
