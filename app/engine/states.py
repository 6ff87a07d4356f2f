"""KV caches kept in files, so that a chat goes on in another process without being read again."""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from slipstream.models.types import Token

_MAGIC: Final = b"SLIPSTATE1"
LIMIT: Final = 4 << 30
"""Bytes of all kept states together; those that were used last stay."""


def write_state(path: Path, key: str, tokens: Sequence[Token], state: bytes) -> None:
    """Writes a state, readable by its owner alone, whole or not at all.

    Args:
        path: The file; its folder exists.
        key: Names model, build and settings; a state is good for this key only.
        tokens: The tokens in the cache.
        state: What ``Target.save`` gave.
    """
    body = struct.pack(f"<I{len(tokens)}i", len(tokens), *tokens) + state
    digest = hashlib.sha256(key.encode() + body).digest()
    part = path.with_name(f".{path.name}.{os.getpid()}")
    with open(os.open(part, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "wb") as file:
        file.write(_MAGIC + digest + body)
    os.replace(part, path)
    _make_room(path.parent, path)


def _make_room(folder: Path, newest: Path) -> None:
    """Lets the oldest states leave until the rest keep the limit."""
    used = sorted(((file.stat(), file) for file in folder.glob("*.state")), key=lambda entry: -entry[0].st_mtime_ns)
    room = LIMIT - newest.stat().st_size
    for stat, file in used:
        if file == newest:
            continue
        room -= stat.st_size
        if room < 0:
            file.unlink(missing_ok=True)


def read_state(path: Path, key: str) -> tuple[list[Token], bytes] | None:
    """Reads a state back.

    Returns:
        Tokens and state, or None where there is none for this key: missing, of another model or build, or damaged. The
        checksum matters: llama.cpp parses the state as C structures.
    """
    try:
        raw = path.read_bytes()
    except OSError:
        return None
    head = len(_MAGIC)
    digest, body = raw[head : head + 32], raw[head + 32 :]
    if raw[:head] != _MAGIC or hashlib.sha256(key.encode() + body).digest() != digest:
        return None
    with suppress(OSError):
        os.utime(path)  # the oldest leave first
    count = struct.unpack_from("<I", body)[0]
    return list(struct.unpack_from(f"<{count}i", body, 4)), body[4 + 4 * count :]
