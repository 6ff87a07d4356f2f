"""The owner's say over the index of text: its switch, and what it holds of a chat."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from slipstream.app.paths import private_folder, unwritable
from slipstream.models.errors import SlipstreamError

CHAT: Final = "chat:"
"""Begins the name of a chat's document; files are named by their absolute paths."""

_OFF: Final = "off"


def is_on(root: Path) -> bool:
    """Whether text may be indexed and drafted from; so it is until its owner switches it off."""
    return not (root / _OFF).exists()


def switch(root: Path, on: bool) -> None:
    """Switches the index on or off; a model that is loaded goes on with it until it is loaded again.

    Args:
        root: Folder of all indexes.
        on: Which way.

    Raises:
        SlipstreamError: If the folder cannot be written to.
    """
    flag = private_folder(root) / _OFF
    try:
        if on:
            flag.unlink(missing_ok=True)
        else:
            flag.touch(0o600)
    except OSError as error:
        raise unwritable(root, error) from error


def forget_chat(root: Path | None, chat: str) -> None:
    """Takes the text of a deleted chat out of every index; call it when the chat is gone from the store.

    Args:
        root: Folder of all indexes; None for none.
        chat: The chat's id.

    Raises:
        SlipstreamError: If an index cannot be read or written.
    """
    if root is None or not root.is_dir():
        return
    from slipstream.drafters.text_index.forget import forget  # numpy would slow every start

    try:
        forget(root, (CHAT + chat).__eq__)
    except SlipstreamError as error:
        raise SlipstreamError(
            f"the chat is deleted, but its text is still indexed: {error.title}",
            f"{error.hint} It is tried again when a model is loaded.",
        ) from error
