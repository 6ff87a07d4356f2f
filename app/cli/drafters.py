"""``slipstream drafters``: all its commands except ``train`` and ``index``."""

from __future__ import annotations

import argparse
import os
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from slipstream.app.cli.models_tables import table
from slipstream.app.cli.streams import notice
from slipstream.app.library.heads_files import HeadsFile, file_in, heads_file, heads_files, shown_size
from slipstream.app.library.resolve_model import choose
from slipstream.app.platform.paths import Paths, private_folder
from slipstream.app.platform.safe_text import one_line
from slipstream.app.protocol.requests import Load
from slipstream.app.settings.disabled_drafters import leave_out, left_out
from slipstream.drafters.draft_model import DraftModel
from slipstream.drafters.none import Plain
from slipstream.drafters.registry import METHODS
from slipstream.drafters.resources import Resources
from slipstream.drafters.text_index import TextIndex, folder_of
from slipstream.models.errors import SlipstreamError, UsageError
from slipstream.models.gguf.reader import Header, read_header
from slipstream.models.heads.check import METHODS as IN_OUR_FILES
from slipstream.models.heads.file import identity, read_info
from slipstream.models.heads.published import LoadPickle, import_heads
from slipstream.models.outside import shown_path
from slipstream.models.types import Abilities


def drafters(options: argparse.Namespace) -> int:
    """Runs ``slipstream drafters``.

    Returns:
        The exit code: 0, or 130 if it was interrupted.
    """
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
            from slipstream.app.cli.drafters_index import index

            return index(options, paths)

    print(drafters_table(options.model, paths))
    return 0


def switch_drafter(options: argparse.Namespace, paths: Paths, off: bool) -> int:
    """Disables or enables a drafter of a model for the autopilot.

    Args:
        options: ``name``, ``model``.
    """
    names = [name for name in METHODS if name != Plain.name]
    if options.name not in names:
        raise UsageError(f"{options.name!r} cannot be switched on or off.", f"Choose one of: {', '.join(names)}.")
    header = read_header(Path(choose(paths, options.model).model))
    leave_out(paths.drafters, header.fingerprint, options.name, off)
    print(f"Automatic {'no longer uses' if off else 'may use'} {options.name} with {one_line(header.name)}")
    return 0


_HEADINGS: Final = ("METHOD", "TRAINED FOR", "TRAINED ON", "DEPTH 1", "SIZE")
_UNKNOWN: Final = "-"
_OFF: Final = "; off for auto"


def drafters_table(model: str | None, paths: Paths) -> str:
    """A table of all drafters and heads.

    Args:
        model: As for :func:`slipstream.app.library.resolve_model.choose`.

    Raises:
        UsageError: If there is no such model.
        SlipstreamError: If it cannot be read.
    """
    load = choose(paths, model)
    header = read_header(Path(load.model))
    off = left_out(paths.drafters, header.fingerprint)
    own = identity(header)
    folders = [path for folder in (paths.bundled, paths.heads) for path in heads_files(folder)]
    files = [file for path in folders if (file := heads_file(path, own, header))]
    in_files = {*IN_OUR_FILES, *(file.method for file in files)}
    rows: list[tuple[str, ...]] = []
    for name in METHODS:
        if name not in in_files:
            serves = _serves_untrained(name, load, header) + _OFF * (name in off)
            rows.append((name, "any model", _UNKNOWN, _UNKNOWN, _UNKNOWN, serves, ""))
    rows += [_row(file, off) for file in files]
    return table((*_HEADINGS, f"WORKS WITH {one_line(header.name)}", "FILE"), rows)


def _row(file: HeadsFile, off: frozenset[str]) -> tuple[str, ...]:
    verdict = f"no: {file.why_not}" if file.why_not else f"yes; stale: {file.stale}" if file.stale else "yes"
    verdict += _OFF * (file.method in off)
    cells = (
        file.method,
        file.trained_for,
        file.trained_on,
        "" if file.first_depth is None else f"{file.first_depth:.2f}",
        "" if file.size is None else shown_size(file.size),
    )
    return *(cell or _UNKNOWN for cell in cells), verdict, shown_path(file.path)


def _serves_untrained(name: str, load: Load, header: Header) -> str:
    """Whether a drafter without a heads file works, judged by the model's header; loading may still refuse it."""
    facts = Abilities(header.n_vocab, load.n_ctx, header.n_embd or 0, header.n_layer or 0, max_rows=1, max_leaves=1)
    if name == DraftModel.name and load.draft_model:
        return "yes"
    try:
        index = TextIndex.existing(folder_of(Path(load.index), header)) if load.index else None
    except SlipstreamError:
        index = None  # damaged, which ``drafters index`` reports
    lacking = METHODS[name].lacks(Resources(facts, text_index=index, header=header))
    return f"no: {lacking}" if lacking else "yes"


def import_published(options: argparse.Namespace, paths: Paths) -> int:
    """Converts published heads into a file in the folder of heads.

    Args:
        options: ``path``, ``model``, ``licence``, ``exit_layer``.
    """
    target = read_header(Path(choose(paths, options.model).model))
    arrived = private_folder(paths.heads) / f"{target.path.stem}-{os.getpid()}.import"  # the method is not known yet
    source = Path(options.path).expanduser()
    try:
        import_heads(source, target, arrived, options.licence or "", _load_pickle(), options.exit_layer)
        info = read_info(arrived)
        out = file_in(paths.heads, target, f"{info.method}-imported", notice)
        os.replace(arrived, out)
    finally:
        with suppress(OSError):
            arrived.unlink(missing_ok=True)
    print(f"{shown_path(out)}: {shown_size(out.stat().st_size)}, {info.method} heads for {shown_path(target.path)}")
    return 0


def _load_pickle() -> LoadPickle | None:
    """The reader of PyTorch files; None without torch."""
    if find_spec("torch") is None:
        return None
    from slipstream.drafters.training.pickles import load_pickle

    return load_pickle
