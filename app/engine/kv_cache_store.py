"""KV caches kept in files, so that a chat goes on in another process without being read again.

A file holds a chat's text as tokens: only its owner may read it, and it is deleted with the chat.
"""

from __future__ import annotations

import hashlib
import os
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slipstream.app.platform.paths import private_folder
from slipstream.models.errors import SlipstreamError
from slipstream.models.files import replace_file
from slipstream.models.llama.target import Target
from slipstream.models.types import Token, shared_prefix

_MAGIC: Final = b"SLIPSTATE2"
_HEAD: Final = len(_MAGIC) + 32 + 32 + 4  # digest of key and tokens, digest of the state, number of tokens
_MOST_TOKENS: Final = 1 << 24


@dataclass(frozen=True, slots=True)
class Kept:
    """The head of a file."""

    path: Path
    tokens: list[Token]  # the tokens in the cache
    digest: bytes  # SHA-256 of the state

    def state(self) -> bytearray | None:
        """Reads the state; None if it is damaged or gone. llama.cpp parses it as C structures: hence the checksum."""
        try:
            with self.path.open("rb") as file:
                state = bytearray(os.fstat(file.fileno()).st_size - file.seek(_HEAD + 4 * len(self.tokens)))
                read = file.readinto(state)
            os.utime(self.path)  # the oldest leave first
        except (OSError, ValueError, MemoryError):  # it became shorter than its head, or is too large now
            return None
        return state if read == len(state) and hashlib.sha256(state).digest() == self.digest else None


def write_state(path: Path, key: str, tokens: Sequence[Token], state: bytes | bytearray, limit: int) -> None:
    """Writes a state, readable by its owner alone, whole or not at all; the oldest others leave where it is too much.

    Args:
        path: The file; its folder exists.
        key: Names model, build and settings; a state is good for this key only.
        state: What ``Target.save`` gave.
        limit: Bytes of all kept states together. One that is larger alone is not kept, nor is what was kept before it.

    Raises:
        OSError: If it cannot be written; what was there is there still.
    """
    if _HEAD + 4 * len(tokens) + len(state) > limit:
        path.unlink(missing_ok=True)
        return
    packed = struct.pack(f"<{len(tokens)}i", *tokens)
    head = _MAGIC + _digest(key, packed) + hashlib.sha256(state).digest() + struct.pack("<I", len(tokens))
    replace_file(path, (head, packed, state), sync=False)
    _make_room(path.parent, path, limit)


def _make_room(folder: Path, newest: Path, limit: int) -> None:
    """Lets the oldest states leave until the rest keep the limit."""
    used = []
    for file in folder.glob("*.state"):
        with suppress(OSError):  # its chat was deleted just now
            used.append((file.stat(), file))
    room = limit
    for stat, file in sorted(used, key=lambda entry: (entry[1] != newest, -entry[0].st_mtime_ns)):
        room -= stat.st_size
        if room < 0:
            file.unlink(missing_ok=True)


def find_state(path: Path, key: str) -> Kept | None:
    """Reads which tokens a file keeps.

    Returns:
        None where there is nothing for this key: missing, of another model, build or context, or damaged.
    """
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
            count = struct.unpack("<I", head[-4:])[0] if len(head) == _HEAD else _MOST_TOKENS
            packed = file.read(4 * count) if head.startswith(_MAGIC) and count < _MOST_TOKENS else b""
    except OSError:
        return None
    digests = head[len(_MAGIC) : -4]
    if not packed or len(packed) < 4 * count or _digest(key, packed) != digests[:32]:
        return None
    return Kept(path, list(struct.unpack(f"<{count}i", packed)), digests[32:])


def system_state(folder: Path, key: str, tokens: Sequence[Token]) -> Path:
    """The file that keeps what a system prompt leaves in the cache; no chat can be called so."""
    return folder / f"+{_digest(key, struct.pack(f'<{len(tokens)}i', *tokens)).hex()[:32]}.state"


def _digest(key: str, packed: bytes) -> bytes:
    return hashlib.sha256(key.encode() + b"\0" + packed).digest()


WORTH: Final = 32  # tokens from which on a file is worth its while: fewer are read as fast as a file is opened
QUIET: Final = 60.0
"""Seconds without a request after which a chat is kept that has grown; a killed engine loses no more than this."""
_GROWN: Final = 4  # then at least every fourth token is new: a state is large, and disks wear


class KvCacheStore:
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
            key: Names model, build and settings: kept states are good for it alone.
            limit: Bytes that all states may take together; 0 keeps none.
            folder: Where the states of system prompts are kept; None keeps none of them.
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
            system: See ``enter``.
        """
        if self._folder is None or not self._limit or system < WORTH:
            return False
        if shared_prefix(self._target.tokens, tokens) >= system:
            return False
        return find_state(system_state(self._folder, self._key, tokens[:system]), self._key) is None

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
