"""``slipstream``: the chat in this terminal."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import Final

from slipstream.app.chats.store import ChatStore
from slipstream.app.engine.host import Engine
from slipstream.app.engine.requests import Load, Sampling
from slipstream.app.paths import Paths
from slipstream.app.settings.file import SettingsFile
from slipstream.models.errors import SlipstreamError

_DAY: Final = 86_400.0
_ALL: Final = 1_000_000


def chat(
    load: Load,
    sampling: Sampling,
    name: str | None,
    paths: Paths,
    settings: SettingsFile,
    notes: Sequence[str] = (),
    inline: bool = False,
) -> int:
    """Runs the chat until its owner leaves.

    Args:
        load: The model, and the drafter to begin with.
        sampling: How tokens are drawn.
        name: A kept chat to go on with, or a new name; None begins an unnamed one.
        paths: Where things are kept.
        settings: What its owner has settled.
        notes: What to say at the start.
        inline: A short session below the prompt of the shell; what was said stays there.

    Returns:
        The exit code.

    Raises:
        SlipstreamError: If chats cannot be kept, or the name cannot be one.
    """
    with closing(ChatStore(paths.chats, paths.states, paths.heads, paths.index)) as store:
        kept = store.open_or_create(name).id if name else None
        notes = [*notes, *filter(None, [forget_old(store, settings.settings.keeping.days, kept)])]
        engine = Engine(paths.logs / "chat-engine.log")
        engine.start()
        tidy(paths)
        load = replace(load, spare_cores=1, states=str(paths.states))
        if inline:
            return _inline(engine, load, store, kept, sampling, settings)
        from slipstream.app.tui.app import ChatApp  # it takes as long as the engine's process, which now has its start

        app = ChatApp(engine, load, store, kept, sampling, settings=settings, notes=notes, shown=_collect)
        app.run(mouse=settings.settings.screen.mouse)
        return app.return_code or 0


def _inline(
    engine: Engine, load: Load, store: ChatStore, chat: str | None, sampling: Sampling, settings: SettingsFile
) -> int:
    from slipstream.app.tui.inline import InlineChat

    app = InlineChat(engine, load, store, chat, sampling, settings)
    _collect()
    try:
        app.run(inline=True, mouse=False)
    finally:
        for words in app.said:
            print(f"{words}\n")
    return app.return_value or app.return_code or 0


def _collect() -> None:
    """Looks for garbage from now on, but not among what was loaded, which stays and would take long to look through."""
    gc.freeze()
    gc.enable()


def forget_old(store: ChatStore, days: int, but: str | None = None) -> str:
    """Deletes the chats in which nothing was said for so many days, unless they are pinned.

    Args:
        store: All chats.
        days: The days; 0 deletes none.
        but: A chat that stays.

    Returns:
        A line that says so; empty where there was none.
    """
    since = time.time() - days * _DAY
    old = [each for each in store.list_chats(_ALL) if not each.pinned and each.updated < since and each.id != but]
    if not days or not old:
        return ""
    try:
        for each in old:
            store.delete(each.id)
    except SlipstreamError as error:
        return f"Old chats could not be deleted: {error.title} {error.hint}"
    count = f"{len(old)} chats" if len(old) > 1 else "1 chat"
    return f"{count} of more than {days} days ago {'were' if len(old) > 1 else 'was'} deleted (setting keeping.days)."


def tidy(paths: Paths) -> None:
    """Frees the room of models that were removed before this start, which nobody can bring back from now on."""
    if (paths.models / ".trash").exists():
        from slipstream.models.store_trash import Trash  # it is seldom needed

        Trash(paths.models).empty()
