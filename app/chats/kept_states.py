"""Kept KV caches hold a chat's text, as tokens: they go with the chat."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

_SHARED: Final = "+*.state"  # of system prompts, see ``slipstream.app.engine.states``
_UNFINISHED: Final = ".*.state.*"


def forget_state(folder: Path | None, chat: str) -> None:
    """Deletes a chat's state, and those of all system prompts: which of them was the chat's, nobody has noted.

    Args:
        folder: Folder of kept states; None where none are kept.
        chat: The chat.

    Raises:
        OSError: If one cannot be deleted.
    """
    if folder:
        for path in (folder / f"{chat}.state", *folder.glob(_SHARED)):
            path.unlink(missing_ok=True)


def forget_orphans(folder: Path | None, chats: Callable[[], set[str]], alone: bool) -> None:
    """Deletes states whose chats are gone: an engine that is closing may write one after its chat was erased.

    Args:
        folder: Folder of kept states; None where none are kept.
        chats: Lists the chats that there are; asked after the files were listed, for a chat is older than its state.
        alone: Whether no other process keeps states; what was written halfway is then a killed one's.
    """
    if folder is None:
        return
    states = [path for path in folder.glob("*.state") if path.name[0].isalnum()]
    known = chats() if states else set()
    litter = folder.glob(_UNFINISHED) if alone else ()
    for path in (*(path for path in states if path.stem not in known), *litter):
        with suppress(OSError):  # the next start tries again
            path.unlink()
