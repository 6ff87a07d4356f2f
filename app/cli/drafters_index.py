"""``slipstream drafters index``: adds text and code to the index, lists and removes it, turns the index on and off."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Final

from slipstream.app.chats.deletion_hooks import CHAT, is_on, switch
from slipstream.app.cli.streams import notice
from slipstream.app.library.heads_files import shown_size
from slipstream.app.library.index_update import Update, is_below
from slipstream.app.library.load_request import try_first
from slipstream.app.library.resolve_model import choose
from slipstream.app.platform.paths import Paths
from slipstream.app.platform.safe_text import one_line, plural
from slipstream.drafters.text_index import Document, TextIndex, folder_of, forget, open_index, remove_earlier
from slipstream.models.errors import ModelFileError, UsageError
from slipstream.models.gguf.reader import Header, read_header
from slipstream.models.outside import shown_path

_SLOT: Final = 8  # bytes of a slot on disk


def index(options: argparse.Namespace, paths: Paths) -> int:
    """Runs ``slipstream drafters index``.

    Args:
        options: ``paths``, ``model``, ``list``, ``remove``, ``on``, ``off``, ``progress``.

    Returns:
        The exit code: 0, or 130 if it was interrupted.
    """
    asked = [bool(options.paths), options.list, bool(options.remove), options.on, options.off]
    if sum(asked) != 1:
        raise UsageError(
            f"{'more than one thing' if any(asked) else 'nothing'} is asked of the index.",
            "Give files and folders to index, or one of --list, --remove, --on and --off.",
        )
    if options.on or options.off:
        switch(paths.index, options.on)
        print(
            "The index is on: chats are indexed, and replies drafted from it."
            if options.on
            else "The index is off from the next start on; what it holds stays until --remove."
        )
        return 0
    if options.remove:
        return _remove(options.remove, paths.index)
    header = read_header(Path(choose(paths, options.model).model))
    if remove_earlier(folder_of(paths.index, header)):
        notice("an index of an earlier version is removed; chats are indexed again on their own, files when asked.")
    if options.list:
        return _list(header, paths.index)
    return _index([_existing(path) for path in options.paths], header, paths, options.progress)


def _existing(path: str) -> Path:
    found = Path(path).expanduser().resolve()
    if not (found.is_dir() or found.is_file()):
        raise UsageError(
            f"{shown_path(path)}: no such file or folder.",
            "Check its name; --remove takes text out of the index whose files are gone.",
        )
    return found


def _index(roots: Iterable[Path], header: Header, paths: Paths, progress: bool) -> int:
    if header.tokenizer_model in (None, "none", "no_vocab"):  # tokenizing would abort the process
        raise ModelFileError(f"{shown_path(header.path)} has no vocabulary.", "Get another conversion of the model.")
    from slipstream.models.llama.model import LlamaModel

    try_first(header.path, paths)
    with (
        closing(open_index(paths.index, header)) as found,
        closing(LlamaModel(header.path, vocabulary_only=True)) as model,
    ):
        update = Update(found, model.tokenize, sys.stderr, progress)
        try:
            for path in roots:
                update.take(path)
            update.finish()
        except KeyboardInterrupt:
            notice("stopped; the same command goes on.")
            return 130
        print(update)
        size = found.size()
        texts = plural(size.documents, "chat or file", "chats and files")
        held = f"{plural(size.tokens, 'token')} of {texts}, {shown_size(size.bytes)}"
        print(f"index for {one_line(header.name)}: {held}")
    _warn_if_off(paths.index)
    return 0


def _remove(paths: Iterable[str], root: Path) -> int:
    for path in paths:
        place = str(Path(path).expanduser().resolve())
        gone = forget(root, lambda name, place=place: is_below(name, place))  # type: ignore[misc]
        if not gone:
            raise UsageError(f"nothing of {shown_path(place)} is indexed.", "--list shows what is.")
        print(f"{shown_path(place)}: {_files(len(gone))} removed")
    return 0


def _list(header: Header, root: Path) -> int:
    """Prints a row for all chats, and one for each topmost folder that directly contains indexed files."""
    found = TextIndex.existing(folder_of(root, header))
    if found is None or not (documents := found.documents()):
        print(f"nothing is indexed for {one_line(header.name)}")
    else:
        rows = [("TEXT", "DOCUMENTS", "TOKENS", "SIZE")]
        rows += [_row(place, held) for place, held in _places(documents).items()]
        rows.append(_row("all", list(documents.values())))
        width = max(len(row[0]) for row in rows)
        for place, *figures in rows:
            print(f"{place:<{width}}" + "".join(f"  {figure:>10}" for figure in figures))
    _warn_if_off(root)
    return 0


def _places(documents: dict[str, Document]) -> dict[str, list[Document]]:
    places: dict[str, list[Document]] = {}
    for name in sorted(documents, key=lambda name: (not name.startswith(CHAT), os.path.dirname(name).split(os.sep))):
        folder = "chats" if name.startswith(CHAT) else os.path.dirname(name)
        last = next(reversed(places), folder)
        places.setdefault(last if is_below(folder, last) else folder, []).append(documents[name])
    return places


def _row(place: str, documents: list[Document]) -> tuple[str, str, str, str]:
    tokens = sum(document.tokens for document in documents)
    size = shown_size(_SLOT * sum(document.slots for document in documents))
    return shown_path(place), f"{len(documents):,}", f"{tokens:,}", size


def _files(count: int) -> str:
    return f"{count:,} file{'s' * (count != 1)}"


def _warn_if_off(root: Path) -> None:
    if not is_on(root):
        notice("the index is off; slipstream drafters index --on switches it on.")
