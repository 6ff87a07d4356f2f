"""Removes a deleted chat from text indexes and saved KV caches, and marks heads that were trained on it."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from slipstream.app.platform.paths import private_folder, worded
from slipstream.models.errors import ModelFileError, SlipstreamError

CHAT: Final = "chat:"  # prefix of a chat's document name in an index; a file's document name is its absolute path
_OFF: Final = "off"
_SHARED: Final = "+*.state"  # states of system prompts, see ``slipstream.app.engine.kv_cache_store``
_UNFINISHED: Final = ".*.state.*"


def is_on(root: Path) -> bool:
    """Whether text may be indexed and used for drafts; on by default."""
    return not (root / _OFF).exists()


def switch(root: Path, on: bool) -> None:
    """Switches the index on or off, from the next load of a model on."""
    flag = private_folder(root) / _OFF
    with worded(root):
        if on:
            flag.unlink(missing_ok=True)
        else:
            flag.touch(0o600)


def forget_chat(root: Path | None, chat: str) -> None:
    """Removes the text of a deleted chat from every index; call it after the store has deleted the chat."""
    if root is None or not root.is_dir():
        return
    try:
        forget(root, (CHAT + chat).__eq__)
    except SlipstreamError as error:
        raise SlipstreamError(
            f"the chat is deleted, but its text is still indexed: {error.title}",
            f"{error.hint} It is tried again when a model is loaded.",
        ) from error


def forget(root: Path, unwanted: Callable[[str], bool]) -> set[str]:
    """Removes unwanted documents from every index below ``root`` that can be written; returns their names."""
    from slipstream.drafters.text_index import TextIndex  # loads numpy, which would slow every start

    removed, failure = set[str](), None
    for folder in sorted(path for path in root.glob("*") if path.is_dir()):
        try:
            if index := TextIndex.existing(folder):
                names = set(filter(unwanted, index.documents()))
                index.remove(names)
                removed |= names
        except SlipstreamError as error:
            failure = error
    if failure:
        raise failure
    return removed


def chat_deleted(chat: str, heads: Path | None, index: Path | None) -> None:
    try:
        forget_chat(index, chat)
    finally:
        paths = list(heads.glob("*.gguf")) if heads else []
        if paths:
            from slipstream.models.heads.file import mark_stale, read_info  # would slow every start

            for path in paths:
                with suppress(ModelFileError):
                    if chat in read_info(path).chats:
                        mark_stale(path, chat)


def forget_state(folder: Path | None, chat: str) -> None:
    """Deletes a chat's state and the states of all system prompts, since those are not linked to chats."""
    if folder:
        for path in (folder / f"{chat}.state", *folder.glob(_SHARED)):
            path.unlink(missing_ok=True)


def forget_orphans(folder: Path | None, chats: Callable[[], set[str]], alone: bool) -> None:
    """Deletes states without a chat: a closing engine may write one after its chat was erased.

    ``chats`` lists all chats, after the files are listed, since a chat is created before its state. If no other process
    writes states, half-written files belong to a killed one.
    """
    if folder is None:
        return
    states = [path for path in folder.glob("*.state") if path.name[0].isalnum()]
    known = chats() if states else set()
    unfinished = folder.glob(_UNFINISHED) if alone else ()
    for path in (*(path for path in states if path.stem not in known), *unfinished):
        with suppress(OSError):  # the next start tries again
            path.unlink()
