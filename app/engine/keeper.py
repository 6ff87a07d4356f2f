"""Decides which KV cache is kept in a file, when, and which kept one is taken."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from slipstream.app.engine.states import find_state, system_state, write_state
from slipstream.app.paths import private_folder
from slipstream.models.errors import SlipstreamError
from slipstream.models.runtime.target import Target
from slipstream.models.types import Token, shared_prefix

WORTH: Final = 32
"""Tokens from which on a file is worth its while: fewer are read as fast as a file is opened."""
QUIET: Final = 60.0
"""Seconds without a request after which a chat is kept that has grown; a killed engine loses no more than this."""
_GROWN: Final = 4  # then at least every fourth token is new: a state is large, and disks wear


class Keeper:
    """Keeps the cache of the chat that the target is in: when it is left, after a while, at the end.

    Copying the cache takes a moment; a thread writes it, so that nothing waits for the disk.
    """

    def __init__(
        self,
        target: Target,
        key: str,
        limit: int,
        folder: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begins in no chat.

        Args:
            target: Whose cache it is.
            key: Names model, build and settings: kept states are good for it alone.
            limit: Bytes that all states may take together; 0 keeps none.
            folder: Where the states of system prompts are kept; None keeps none of them.
            clock: Seconds, for tests.
        """
        self._target, self._key, self._limit, self._folder = target, key, limit, folder
        self._clock = clock
        self._path: Path | None = None  # of the chat that the target is in
        self._kept: Sequence[Token] = ()  # what that file holds
        self._asked = clock()
        self._writing: threading.Thread | None = None

    def enter(self, state: str | None, tokens: Sequence[Token], system: int = 0) -> None:
        """Goes to a chat before its prompt is read: keeps the one that is left, and takes what is kept of this one.

        Args:
            state: The chat's file; None where it has none.
            tokens: The prompt.
            system: Tokens that it begins with for its system prompt, which other chats may share.
        """
        path = Path(state) if state and self._limit else None
        if path != self._path:
            self.keep()
            self._path, self._kept = path, ()
        self._asked = self._clock()
        known = shared_prefix(self._target.tokens, tokens)
        if len(tokens) - known < WORTH:
            return
        places = [path] if path else []
        if self._folder and self._limit and system >= WORTH:
            places.append(system_state(self._folder, self._key, tokens[:system]))
        self._finish_writing()
        for place in places:
            kept = find_state(place, self._key)
            shared = shared_prefix(kept.tokens, tokens) if kept else 0
            usable = self._target.abilities.rewinds or (kept and shared == len(kept.tokens))
            if kept and usable and shared - known >= WORTH and (state_bytes := kept.state()) is not None:
                with suppress(SlipstreamError):  # the prompt is read again
                    self._target.restore(state_bytes, kept.tokens)
                    self._kept = kept.tokens if place == path else ()
                    return

    def wants_system(self, tokens: Sequence[Token], system: int) -> bool:
        """Whether a system prompt's state is to be kept, once just so much of a prompt is read.

        Args:
            tokens: The prompt.
            system: See ``enter``.
        """
        if self._folder is None or not self._limit or system < WORTH:
            return False
        return (
            shared_prefix(self._target.tokens, tokens) < system
            and not system_state(self._folder, self._key, tokens[:system]).exists()
        )

    def keep_system(self) -> None:
        """Keeps the cache, which holds a system prompt and no more."""
        assert self._folder
        self._write(system_state(self._folder, self._key, self._target.tokens))

    def due(self) -> float | None:
        """Seconds until the chat should be kept if nothing is asked; None if it need not be."""
        new = self._new()
        if self._path is None or new < WORTH or new * _GROWN < len(self._target.tokens):
            return None
        return max(0.0, self._asked + QUIET - self._clock())

    def keep(self) -> None:
        """Keeps the chat's cache if it has grown since."""
        if self._path and self._new() >= WORTH:
            self._kept = list(self._target.tokens)
            self._write(self._path)

    def close(self) -> None:
        """Keeps the chat, and waits until it is written."""
        self.keep()
        self._finish_writing()

    def _new(self) -> int:
        return len(self._target.tokens) - shared_prefix(self._kept, self._target.tokens)

    def _write(self, path: Path) -> None:
        self._finish_writing()
        try:
            state, tokens = self._target.save(), list(self._target.tokens)
        except (MemoryError, SlipstreamError):  # it is read again
            return
        self._writing = threading.Thread(target=self._to_disk, args=(path, tokens, state), name="states")
        self._writing.start()

    def _to_disk(self, path: Path, tokens: list[Token], state: bytearray) -> None:
        with suppress(OSError, SlipstreamError):  # a full disk costs the next start its head start, nothing else
            private_folder(path.parent)
            write_state(path, self._key, tokens, state, self._limit)

    def _finish_writing(self) -> None:
        if self._writing:
            self._writing.join()
            self._writing = None
