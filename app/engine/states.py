"""KV caches kept in files, so that a chat goes on in another process without being read again.

A file holds a chat's text, as tokens: it is its owner's alone, and goes with the chat.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slipstream.models.types import Token

_MAGIC: Final = b"SLIPSTATE2"
_HEAD: Final = len(_MAGIC) + 32 + 32 + 4  # digest of key and tokens, digest of the state, number of tokens
_MOST_TOKENS: Final = 1 << 24


@dataclass(frozen=True, slots=True)
class Kept:
    """What a file says that it keeps.

    Attributes:
        path: The file.
        tokens: The tokens in the cache.
        digest: SHA-256 of the state.
    """

    path: Path
    tokens: list[Token]
    digest: bytes

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
        tokens: The tokens in the cache.
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
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(os.open(part, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "wb") as file:
            for piece in (head, packed, state):
                file.write(piece)
        os.replace(part, path)
    except OSError:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise
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
