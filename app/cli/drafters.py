"""``slipstream drafters``: all its commands except ``train``."""

import argparse
import os
import sys
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from slipstream.app.chats.deletion_hooks import CHAT, forget, is_on, switch
from slipstream.app.cli.models_tables import table
from slipstream.app.cli.streams import notice, print_rows
from slipstream.app.library.drafter_status import quant_advice
from slipstream.app.library.heads_files import HeadsFile, file_in, heads_for, shown_size
from slipstream.app.library.index_update import Update, is_below
from slipstream.app.library.load_request import try_first
from slipstream.app.library.resolve_model import choose
from slipstream.app.platform.paths import Paths, private_folder
from slipstream.app.platform.safe_text import one_line, plural
from slipstream.app.protocol.requests import Load
from slipstream.app.settings.disabled_drafters import leave_out, left_out
from slipstream.drafters.base import Plain
from slipstream.drafters.draft_model import DraftModel
from slipstream.drafters.registry import METHODS
from slipstream.drafters.resources import Resources
from slipstream.drafters.text_index import Document, TextIndex, folder_of, open_index
from slipstream.models.errors import ModelFileError, SlipstreamError, UsageError
from slipstream.models.gguf.reader import Header, read_header
from slipstream.models.heads.check import METHODS as IN_OUR_FILES
from slipstream.models.heads.file import read_info
from slipstream.models.heads.published import LoadPickle, import_heads
from slipstream.models.outside import shown_path
from slipstream.models.types import Abilities

_HEADINGS: Final = ("METHOD", "TRAINED FOR", "TRAINED ON", "DEPTH 1", "SIZE")
_UNKNOWN: Final = "-"
_OFF: Final = "; off for auto"
_SLOT: Final = 8  # bytes of a slot on disk


def drafters(options: argparse.Namespace) -> int:
    paths = Paths.default()
    match options.drafters_command:
        case "train":
            from slipstream.app.cli.drafters_train import train

            return train(options, paths)
        case "import":
            return import_published(options, paths)
        case "off" | "on" as way:
            return switch_drafter(options, paths, off=way == "off")
        case "index":
            return index(options, paths)

    header, off, rows = _listed(options.model, paths)
    if options.json:
        print_rows([_values(row, off) for row in rows])
    else:
        print(table((*_HEADINGS, f"WORKS WITH {_name(header)}", "FILE"), [_cells(row, off) for row in rows]))
        if advice := quant_advice(header, paths):
            notice(advice)
    return 0


def switch_drafter(options: argparse.Namespace, paths: Paths, off: bool) -> int:
    names = [name for name in METHODS if name != Plain.name]
    if options.name not in names:
        raise UsageError(f"{options.name!r} cannot be switched on or off.", f"Choose one of: {', '.join(names)}.")
    header = read_header(Path(choose(paths, options.model).model))
    leave_out(paths.drafters, header.fingerprint, options.name, off)
    print(f"Automatic {'no longer uses' if off else 'may use'} {options.name} with {_name(header)}")
    return 0


def _listed(model: str | None, paths: Paths) -> tuple[Header, frozenset[str], list[HeadsFile]]:
    """The model's header, the drafters that are switched off, and all drafters; those without a file have no path."""
    load = choose(paths, model)
    header = read_header(Path(load.model))
    off = left_out(paths.drafters, header.fingerprint)
    files = heads_for(paths, header)
    in_files = {*IN_OUR_FILES, *(file.method for file in files)}
    rows = [
        HeadsFile(Path(), name, "any model", why_not=_lacking(name, load, header))
        for name in METHODS
        if name not in in_files
    ]
    return header, off, rows + files


def _values(row: HeadsFile, off: frozenset[str]) -> dict[str, object]:
    path = str(row.path) if row.path.name else None
    return {**asdict(row), "path": path, "works": not row.why_not, "off": row.method in off}


def _cells(row: HeadsFile, off: frozenset[str]) -> tuple[str, ...]:
    verdict = f"no: {row.why_not}" if row.why_not else f"yes; stale: {row.stale}" if row.stale else "yes"
    cells = (
        row.method,
        row.trained_for,
        row.trained_on,
        "" if row.first_depth is None else f"{row.first_depth:.2f}",
        "" if row.size is None else shown_size(row.size),
    )
    file = shown_path(row.path) if row.path.name else ""
    return *(cell or _UNKNOWN for cell in cells), verdict + _OFF * (row.method in off), file


def _lacking(name: str, load: Load, header: Header) -> str:
    """Why a drafter without a heads file does not work, judged by the model's header; loading may still refuse it."""
    facts = Abilities(header.n_vocab, load.n_ctx, header.n_embd or 0, header.n_layer or 0, max_rows=1, max_leaves=1)
    if name == DraftModel.name and load.draft_model:
        return ""
    try:
        index = TextIndex.existing(folder_of(Path(load.index), header)) if load.index else None
    except SlipstreamError:
        index = None  # damaged, which ``drafters index`` reports
    return METHODS[name].lacks(Resources(facts, text_index=index, header=header))


def import_published(options: argparse.Namespace, paths: Paths) -> int:
    target = read_header(Path(choose(paths, options.model).model))
    arrived = private_folder(paths.heads) / f"{target.path.stem}-{os.getpid()}.import"  # the method is not known yet
    source = Path(options.path).expanduser()
    try:
        import_heads(
            source, target, arrived, options.licence or "", load_pickle=_load_pickle(), exit_layer=options.exit_layer
        )
        info = read_info(arrived)
        out = file_in(paths.heads, target, f"{info.method}-imported", notice)
        os.replace(arrived, out)
    finally:
        with suppress(OSError):
            arrived.unlink(missing_ok=True)
    print(f"{shown_path(out)}: {shown_size(out.stat().st_size)}, {info.method} heads for {shown_path(target.path)}")
    return 0


def _load_pickle() -> LoadPickle | None:
    if find_spec("torch") is None:
        return None
    from slipstream.drafters.training.pickles import load_pickle

    return load_pickle


def index(options: argparse.Namespace, paths: Paths) -> int:
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
        return _remove_from_index(options.remove, paths.index)
    header = read_header(Path(choose(paths, options.model).model))
    if options.list:
        return _print_index(header, paths.index, options.json)
    return _add_to_index([_existing(path) for path in options.paths], header, paths, options.progress)


def _existing(path: str) -> Path:
    found = Path(path).expanduser().resolve()
    if not (found.is_dir() or found.is_file()):
        raise UsageError(
            f"{shown_path(path)}: no such file or folder.",
            "Check its name; --remove takes text out of the index whose files are gone.",
        )
    return found


def _add_to_index(roots: Iterable[Path], header: Header, paths: Paths, progress: bool) -> int:
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
        print(f"index for {_name(header)}: {held}")
    _warn_if_off(paths.index)
    return 0


def _remove_from_index(paths: Iterable[str], root: Path) -> int:
    for path in paths:
        place = str(Path(path).expanduser().resolve())
        gone = forget(root, lambda name, place=place: is_below(name, place))  # type: ignore[misc]
        if not gone:
            raise UsageError(f"nothing of {shown_path(place)} is indexed.", "--list shows what is.")
        print(f"{shown_path(place)}: {plural(len(gone), 'file')} removed")
    return 0


def _print_index(header: Header, root: Path, as_json: bool) -> int:
    """Prints a row for all chats, and one for each topmost folder that directly contains indexed files."""
    found = TextIndex.existing(folder_of(root, header))
    documents = found.documents() if found else {}
    if as_json:
        print_rows([{"name": name, **asdict(document)} for name, document in documents.items()])
    elif not documents:
        print(f"nothing is indexed for {_name(header)}")
    else:
        rows = [("TEXT", "DOCUMENTS", "TOKENS", "SIZE")]
        rows += [_index_row(place, held) for place, held in _folders_of(documents).items()]
        rows.append(_index_row("all", list(documents.values())))
        width = max(len(row[0]) for row in rows)
        for place, *figures in rows:
            print(f"{place:<{width}}" + "".join(f"  {figure:>10}" for figure in figures))
    _warn_if_off(root)
    return 0


def _folders_of(documents: dict[str, Document]) -> dict[str, list[Document]]:
    places: dict[str, list[Document]] = {}
    for name in sorted(documents, key=lambda name: (not name.startswith(CHAT), os.path.dirname(name).split(os.sep))):
        folder = "chats" if name.startswith(CHAT) else os.path.dirname(name)
        last = next(reversed(places), folder)
        places.setdefault(last if is_below(folder, last) else folder, []).append(documents[name])
    return places


def _index_row(place: str, documents: list[Document]) -> tuple[str, str, str, str]:
    tokens = sum(document.tokens for document in documents)
    size = shown_size(_SLOT * sum(document.slots for document in documents))
    return shown_path(place), f"{len(documents):,}", f"{tokens:,}", size


def _warn_if_off(root: Path) -> None:
    if not is_on(root):
        notice("the index is off; slipstream drafters index --on switches it on.")


def _name(header: Header) -> str:
    return one_line(header.title)
