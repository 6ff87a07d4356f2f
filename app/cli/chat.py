"""``slipstream``: the chat in this terminal."""

from __future__ import annotations

import gc
import io
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from slipstream.app.chats.locking import ChatsInUseError
from slipstream.app.chats.store import ChatStore
from slipstream.app.cli.streams import can_ask, confirmed, notice
from slipstream.app.engine.process.client import Engine
from slipstream.app.platform.paths import Paths, places
from slipstream.app.platform.safe_text import plural
from slipstream.app.protocol.requests import Load, Sampling
from slipstream.app.settings.file import SettingsFile
from slipstream.models.errors import SlipstreamError

if TYPE_CHECKING:  # a slow import: the engine's process starts first
    from textual.app import App

    from slipstream.app.tui.inline import InlineChat

_DAY: Final = 86_400.0
_PATIENCE: Final = 30.0  # seconds in which another program may release the chats
_AGAIN: Final = 0.5


def chat(
    engine: Engine,
    load: Load,
    sampling: Sampling,
    name: str | None,
    *,
    paths: Paths,
    settings: SettingsFile,
    notes: Sequence[str] = (),
    inline: bool = False,
) -> int:
    """Runs the chat until it ends, and then the engine, which was started.

    ``name`` is a kept chat to continue, or a new name; None begins an unnamed one. ``inline`` chats below the shell's
    prompt.
    """
    for variable in ("COLUMNS", "LINES"):
        os.environ.pop(variable, None)  # a shell's copy may be old; the terminal knows its size
    with _opened(paths, offered=name is None) as (store, paths, refused):
        kept = store.open_or_create(name).id if name else None
        notes = [*notes, *filter(None, [refused, delete_old(store, settings.settings.keeping.days, kept)])]
        load = replace(load, spare_cores=1, states=str(paths.states))
        if inline:
            from slipstream.app.tui.inline import InlineChat

            return _inline(InlineChat(engine, load, store, kept, sampling, settings=settings), store)
        from slipstream.app.tui.app import ChatApp  # a slow import, while the engine's process starts

        app = ChatApp(engine, load, store, kept, sampling, settings=settings, notes=notes, shown=turn_collection_on)
        _run(app, mouse=settings.settings.screen.mouse)
        store.listen(notice)
        return app.return_code or 0


@contextmanager
def _opened(paths: Paths, offered: bool) -> Iterator[tuple[ChatStore, Paths, str]]:
    """Opens the chats: waits while another program holds them, then offers a chat that is not kept.

    Yields the store, the paths that hold, and a notice that says what is not kept and why; empty if everything is kept.
    """
    until, told = time.monotonic() + _PATIENCE, False
    while True:
        try:
            store = ChatStore(paths.chats, paths.states, paths.heads, paths.index, paths.images)
            break
        except SlipstreamError as error:
            if isinstance(error, ChatsInUseError) and time.monotonic() < until:
                if not told:
                    notice(f"{error.title} Waiting for up to {_PATIENCE:.0f} seconds; Ctrl-C stops.")
                told = True
                time.sleep(_AGAIN)
                continue
            if not offered or not can_ask():
                raise
            notice(f"{error.title} {error.hint}")
            if not confirmed("Chat without keeping it?"):
                raise
            words = f"{error.title} Nothing is kept: this chat is forgotten when slipstream ends."
            with places(paths, keep=False) as (here, _), closing(ChatStore(here.chats, here.states)) as store:
                yield store, here, words[0].upper() + words[1:]
            return
    with closing(store):
        yield store, paths, ""


def _inline(app: InlineChat, store: ChatStore) -> int:
    turn_collection_on()
    try:
        _run(app, mouse=False)
    finally:
        for words in app.said:
            print(f"{words}\n")
        store.listen(notice)
    return app.return_value or app.return_code or 0


def _run(app: App[int], *, mouse: bool) -> None:
    """Runs the interface and raises the error that ended it; Textual's own report would print variables' values."""
    from rich.console import Console  # the interface has loaded it

    printed = io.StringIO()
    app.error_console = Console(file=printed, markup=False, highlight=False)
    app.run(mouse=mouse)
    if app._exception is not None:
        raise app._exception
    sys.stderr.write(printed.getvalue())


def turn_collection_on() -> None:
    """Turns garbage collection on, but excludes loaded modules: they stay loaded and would take long to scan."""
    gc.freeze()
    gc.enable()


def delete_old(store: ChatStore, days: int, except_id: str | None = None) -> str:
    """Deletes unpinned chats without a new message for ``days`` (0: none); returns a notice, empty if none was."""
    since = time.time() - days * _DAY
    old = [each for each in store.list_chats() if not each.pinned and each.updated < since and each.id != except_id]
    if not days or not old:
        return ""
    try:
        for each in old:
            store.delete(each.id)
    except SlipstreamError as error:
        return f"Old chats could not be deleted: {error.title} {error.hint}"
    were = "were" if len(old) > 1 else "was"
    return f"{plural(len(old), 'chat')} older than {days} days {were} deleted (setting keeping.days)."
