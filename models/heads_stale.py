"""Heads that were trained on a chat which its owner has deleted: a list of such chats beside the file of heads."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from slipstream.models.gguf_write import replacing

_MAX_BYTES: Final = 1 << 20


def mark_stale(path: Path, chat_id: str) -> None:
    """Notes beside a file of heads that a chat it was trained on has been deleted.

    Raises:
        SlipstreamError: If the disk is full or the folder cannot be written to.
    """
    marked = stale(path)
    if chat_id not in marked:
        _write(path, [*marked, chat_id])


def stale(path: Path) -> tuple[str, ...]:
    """The deleted chats that a file of heads was trained on; empty for heads that are up to date."""
    try:
        with _beside(path).open("rb") as file:
            return tuple(file.read(_MAX_BYTES).decode(errors="replace").splitlines())
    except OSError:
        return ()


def settle(path: Path, chats: Iterable[str]) -> None:
    """Forgets all marks but those of ``chats``, which newly trained heads saw again.

    Raises:
        SlipstreamError: If the disk is full or the folder cannot be written to.
    """
    marked = stale(path)
    kept = [chat for chat in marked if chat in set(chats)]
    if len(kept) < len(marked):
        _write(path, kept)


def _beside(path: Path) -> Path:
    return path.with_name(path.name + ".stale")


def _write(path: Path, chats: list[str]) -> None:
    if not chats:
        _beside(path).unlink(missing_ok=True)
        return
    with replacing(_beside(path)) as part:
        part.write_text("".join(f"{chat}\n" for chat in chats), encoding="utf-8")
