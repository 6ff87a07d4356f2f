"""What is made of chats besides the chats: it must hear when one is deleted."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from slipstream.app.drafters.indexed import forget_chat


def chat_deleted(chat: str, heads: Path | None, index: Path | None) -> None:
    """Takes a deleted chat out of the indexes of text, and marks the heads that were trained on it.

    Args:
        chat: The chat's id.
        heads: Folder of heads; None for no marks.
        index: Folder of all indexes; None for none.

    Raises:
        SlipstreamError: If an index or a mark cannot be written; the other is done all the same.
    """
    try:
        forget_chat(index, chat)
    finally:
        mark_deleted(heads, chat)


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
