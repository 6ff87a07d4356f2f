"""Marks on heads that were trained on a chat which has been deleted."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def mark_deleted(folder: Path | None, chat: str) -> None:
    """Marks the heads that were trained on a deleted chat; files that cannot be read are left alone.

    Args:
        folder: Of heads; None for no marks.
        chat: The chat's id.

    Raises:
        SlipstreamError: If a mark cannot be written.
    """
    paths = list(folder.glob("*.gguf")) if folder else []
    if not paths:
        return
    from slipstream.models.errors import ModelFileError  # reading GGUF files would slow every start
    from slipstream.models.heads import read_info
    from slipstream.models.heads_stale import mark_stale

    for path in paths:
        with suppress(ModelFileError):
            if chat in read_info(path).chats:
                mark_stale(path, chat)
