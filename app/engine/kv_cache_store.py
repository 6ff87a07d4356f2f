"""Saves KV caches in files, so that a chat continues in another process without a new prefill.

A file contains the chat's text as tokens: only its owner may read it, and it is deleted with the chat.
"""

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
from slipstream.models.outside import check_regular
from slipstream.models.types import Token, shared_prefix

_MAGIC: Final = b"SLIPSTATE2"
_HEAD: Final = len(_MAGIC) + 32 + 32 + 4  # digest of key and tokens, digest of the state, number of tokens
_MOST_TOKENS: Final = 1 << 24
WORTH: Final = 32  # minimum tokens to save or restore: prefilling fewer takes no longer than opening a file
QUIET: Final = 60.0
"""Seconds without a request after which a chat that grew is saved, in case the engine is killed later."""
_GROWN: Final = 4  # saves only if one token in this many is new: states are large, and disks wear


@dataclass(frozen=True, slots=True)
class SavedState:
    """The header of a file."""

    path: Path
    tokens: list[Token]  # the tokens in the cache
    digest: bytes  # SHA-256 of the state

    def state(self, limit: int) -> bytearray | None:
        """Reads the state; None if it is missing, damaged or larger than ``limit``: llama.cpp does not check it."""
        try:
            with self.path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size > limit:
                    return None
                state = bytearray(size - file.seek(_HEAD + 4 * len(self.tokens)))
                read = file.readinto(state)
            os.utime(self.path)  # the least recently used files are deleted first
        except (OSError, ValueError, MemoryError):  # now shorter than its header, or too large
            return None
        return state if read == len(state) and hashlib.sha256(state).digest() == self.digest else None


def write_state(path: Path, key: str, tokens: Sequence[Token], state: bytes | bytearray, limit: int) -> None:
    """Writes a state atomically, readable by its owner alone; deletes the oldest other states beyond the limit.

    The state is valid only for the ``key`` of model, build and settings. One larger than ``limit`` bytes is not
    written, and the old file is deleted.
    """
    if _HEAD + 4 * len(tokens) + len(state) > limit:
        path.unlink(missing_ok=True)
        return
    packed = struct.pack(f"<{len(tokens)}i", *tokens)
    head = _MAGIC + _digest(key, packed) + hashlib.sha256(state).digest() + struct.pack("<I", len(tokens))
    replace_file(path, (head, packed, state), sync=False)
    _delete_oldest(path.parent, path, limit)


def _delete_oldest(folder: Path, newest: Path, limit: int) -> None:
    used = []
    for file in folder.glob("*.state"):
        with suppress(OSError):  # its chat was deleted just now
            used.append((file.stat(), file))
    room = limit
    for stat, file in sorted(used, key=lambda entry: (entry[1] != newest, -entry[0].st_mtime_ns)):
        room -= stat.st_size
        if room < 0:
            file.unlink(missing_ok=True)


def find_state(path: Path, key: str) -> SavedState | None:
    """Reads the header of a file; None if it is missing, damaged, or from another model, build or context."""
    try:
        check_regular(path)
        with path.open("rb") as file:
            head = file.read(_HEAD)
            count = struct.unpack("<I", head[-4:])[0] if len(head) == _HEAD else _MOST_TOKENS
            packed = file.read(4 * count) if head.startswith(_MAGIC) and count < _MOST_TOKENS else b""
    except OSError:
        return None
    digests = head[len(_MAGIC) : -4]
    if not packed or len(packed) < 4 * count or _digest(key, packed) != digests[:32]:
        return None
    return SavedState(path, list(struct.unpack(f"<{count}i", packed)), digests[32:])


def system_state(folder: Path, key: str, tokens: Sequence[Token]) -> Path:
    """The file of a system prompt's state; no chat's file can have this name."""
    return folder / f"+{_digest(key, struct.pack(f'<{len(tokens)}i', *tokens)).hex()[:32]}.state"


def _digest(key: str, packed: bytes) -> bytes:
    return hashlib.sha256(key.encode() + b"\0" + packed).digest()


class KvCacheStore:
    """Saves the cache of the target's current chat: before a switch to another chat, when idle, and at the end.

    The caller waits only for a copy of the cache in memory; a thread writes the copy to the disk.
    """

    def __init__(
        self,
        target: Target,
        key: str,
        limit: int,
        folder: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Starts without a current chat; with a ``limit`` of 0 nothing is saved, without a folder no system prompt."""
        self._target, self._key, self._limit, self._folder = target, key, limit, folder
        self._clock = clock
        self._path: Path | None = None  # file of the current chat
        self._kept: Sequence[Token] = ()  # tokens saved in that file
        self._last_request = clock()
        self._writing: threading.Thread | None = None

    def enter(self, state: str | None, tokens: Sequence[Token], system: int = 0) -> None:
        """Switches to a chat before its prompt is prefilled: saves the previous chat, and restores this one's state.

        The first ``system`` tokens are the system prompt, which other chats may share.
        """
        path = Path(state) if state and self._limit else None
        if path != self._path:
            self.keep()
            self._path, self._kept = path, ()
        self._last_request = self._clock()
        known = shared_prefix(self._target.tokens, tokens)
        if len(tokens) - known < WORTH:
            return
        files = [path] if path else []
        if self._folder and self._limit and system >= WORTH:
            files.append(system_state(self._folder, self._key, tokens[:system]))
        self._finish_writing()
        for file in files:
            kept = find_state(file, self._key)
            shared = shared_prefix(kept.tokens, tokens) if kept else 0
            usable = self._target.abilities.rewinds or (kept and shared == len(kept.tokens))
            if kept and usable and shared - known >= WORTH and (state_bytes := kept.state(self._limit)) is not None:
                with suppress(SlipstreamError):  # then the whole prompt is prefilled
                    self._target.restore(state_bytes, kept.tokens)
                    self._kept = kept.tokens if file == path else ()
                    return

    def wants_system(self, tokens: Sequence[Token], system: int) -> bool:
        """Whether to save a system prompt's state once the cache holds exactly its tokens."""
        if self._folder is None or not self._limit or system < WORTH:
            return False
        if shared_prefix(self._target.tokens, tokens) >= system:
            return False
        return find_state(system_state(self._folder, self._key, tokens[:system]), self._key) is None

    def keep_system(self) -> None:
        """Saves the cache, which must hold a system prompt alone."""
        assert self._folder
        self._write(system_state(self._folder, self._key, self._target.tokens))

    def due(self) -> float | None:
        """Seconds until the chat should be saved if no request comes; None if it need not be saved."""
        new = self._new_tokens()
        if self._path is None or new < WORTH or new * _GROWN < len(self._target.tokens):
            return None
        return max(0.0, self._last_request + QUIET - self._clock())

    def keep(self) -> None:
        if self._path and self._new_tokens() >= WORTH:
            self._kept = list(self._target.tokens)
            self._write(self._path)

    def close(self) -> None:
        self.keep()
        self._finish_writing()

    def _new_tokens(self) -> int:
        return len(self._target.tokens) - shared_prefix(self._kept, self._target.tokens)

    def _write(self, path: Path) -> None:
        self._finish_writing()
        try:
            state, tokens = self._target.save(), list(self._target.tokens)
        except (MemoryError, SlipstreamError):  # the next request prefills the chat again
            return
        self._writing = threading.Thread(target=self._to_disk, args=(path, tokens, state), name="states")
        self._writing.start()

    def _to_disk(self, path: Path, tokens: list[Token], state: bytearray) -> None:
        with suppress(OSError, SlipstreamError):  # after a failure, the next start prefills the chat again
            private_folder(path.parent)
            write_state(path, self._key, tokens, state, self._limit)

    def _finish_writing(self) -> None:
        if self._writing:
            self._writing.join()
            self._writing = None
