"""``slipstream chats``: lists, searches, exports, imports and changes the kept chats."""

import argparse
import sys
import time
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

from slipstream.app.chats.chat_list import has_name, id_and_title
from slipstream.app.chats.exporting import exported, format_of, markdown, write_export
from slipstream.app.chats.importing import import_chats, read_export
from slipstream.app.chats.store import ChatStore
from slipstream.app.cli.streams import can_ask, confirmed, notice, print_rows
from slipstream.app.platform.paths import Paths
from slipstream.app.platform.safe_text import clean, one_line
from slipstream.models.errors import UsageError


def chats(options: argparse.Namespace) -> int:
    paths = Paths.default()
    with closing(ChatStore(paths.chats, paths.states, paths.heads, paths.index, paths.images)) as store:
        store.listen(notice)
        command: str = options.chats_command
        if command == "list":
            _list(store, options.json)
        elif command == "search":
            _search(store, " ".join(options.words), options.limit, options.json)
        elif command == "show":
            _print(markdown(store, store.find(options.chat).id, branches=False, thoughts=options.thoughts))
        elif command == "export":
            _export(store, options)
        elif command == "import":
            for chat in import_chats(store, read_export(Path(options.file)), options.file, notice):
                print(f"{chat.id}  {one_line(chat.title)}")
        elif command == "rename":
            store.rename(store.find(options.chat).id, options.title)
        elif command == "delete":
            return _delete(store, options.chat, options.yes)
    return 0


def _list(store: ChatStore, as_json: bool) -> None:
    kept = store.list_chats()
    if as_json:
        print_rows([asdict(chat) for chat in kept])
        return
    width = max((len(chat.id) for chat in kept), default=0)
    for chat in kept:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(chat.updated))
        print(f"{chat.id:<{width}}  {when}  {'*' if chat.pinned else ' '} {one_line(chat.title) or chat.id}")
    if not kept:
        notice("no chats are kept yet.")


def _search(store: ChatStore, words: str, limit: int, as_json: bool) -> None:
    if limit < 1:
        raise UsageError(f"limit is {limit}; it must be 1 or more.")
    hits, above = store.search(words, limit), ""
    if as_json:
        print_rows([asdict(hit) for hit in hits])
        return
    for hit in hits:
        if hit.chat != above:  # the title once, above its messages
            print(f"{hit.chat}  {one_line(hit.title)}")
            above = hit.chat
        if hit.message is not None:
            who = "you" if hit.role == "user" else one_line(hit.writer) or hit.role
            print(f"    {who}: {_bold(hit.snippet, hit.spans)}")
    if not hits:
        notice(f'no matches for "{words}".')


def _bold(text: str, spans: tuple[tuple[int, int], ...]) -> str:
    if not sys.stdout.isatty():
        return text
    for start, end in reversed(spans):
        text = f"{text[:start]}\x1b[1m{text[start:end]}\x1b[0m{text[end:]}"
    return text


def _export(store: ChatStore, options: argparse.Namespace) -> None:
    found = map(store.find, options.chat) if options.chat else store.list_chats()
    form = options.format or format_of(Path(options.output or ""))
    text = exported(store, list(dict.fromkeys(chat.id for chat in found)), form)
    if options.output:
        write_export(Path(options.output), text)
    else:
        _print(text)


def _delete(store: ChatStore, names: list[str], yes: bool) -> int:
    found = [store.find(name) for name in names]  # an unknown name raises before anything is deleted
    guessed = [id_and_title(chat) for chat, name in zip(found, names, strict=True) if not has_name(chat, name)]
    if guessed and not yes:
        which = ", ".join(guessed)
        if not can_ask():
            raise UsageError(
                f"only the beginning of a title was given, of {which}.",
                "Deleting is for good: give all of the title or the id, or add --yes.",
            )
        if not confirmed(f"Delete {which} for good?"):
            notice("nothing was deleted.")
            return 1
    for chat in dict.fromkeys(chat.id for chat in found):
        store.delete(chat)
    store.erase_deleted(0.0)
    return 0


def _print(text: str) -> None:
    sys.stdout.write(clean(text) if sys.stdout.isatty() else text)
