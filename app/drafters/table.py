"""``slipstream drafters list``: the methods and all heads, and whether they serve a model."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from slipstream.app.drafters.files import heads_files, shown_size
from slipstream.app.engine.requests import Load
from slipstream.app.model_choice import choose
from slipstream.app.paths import Paths
from slipstream.app.safe_text import one_line
from slipstream.drafters.draft_model import DraftModel
from slipstream.drafters.parts import Parts
from slipstream.drafters.registry import METHODS
from slipstream.drafters.text_index.index import TextIndex
from slipstream.drafters.text_index.vocabulary import folder_of
from slipstream.models.companions import HEAD_ARCHITECTURES, TARGET_KEY
from slipstream.models.errors import SlipstreamError
from slipstream.models.gguf import Header, read_header
from slipstream.models.heads import ARCHITECTURE, HeadsInfo, identity, read_info
from slipstream.models.heads_check import METHODS as TRAINED_METHODS
from slipstream.models.heads_stale import stale
from slipstream.models.quoting import shown_path
from slipstream.models.types import Abilities

_HEADINGS: Final = ("METHOD", "TRAINED FOR", "TRAINED ON", "DEPTH 1", "SIZE")
_UNKNOWN: Final = "-"


def table(model: str | None, paths: Paths) -> str:
    """Everything that may draft, as lines.

    Args:
        model: The model to be served, as :func:`slipstream.app.model_choice.choose` takes it.
        paths: Where heads are kept.

    Raises:
        UsageError: If there is no such model.
        SlipstreamError: If it cannot be read.
    """
    load = choose(paths, model)
    header = read_header(Path(load.model))
    rows: list[tuple[str, ...]] = [(*_HEADINGS, f"SERVES {one_line(header.name)}", "FILE")]
    for name in METHODS:
        if name not in TRAINED_METHODS and name not in HEAD_ARCHITECTURES:
            rows.append((name, "any model", _UNKNOWN, _UNKNOWN, _UNKNOWN, _serves_untrained(name, load, header), ""))
    own = identity(header)
    for folder in (paths.bundled, paths.heads):
        rows += [row for path in heads_files(folder) if (row := _row(path, own, header))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _row(path: Path, own: str, header: Header) -> tuple[str, ...] | None:
    """A file of heads; None for a model."""
    try:
        theirs = read_header(path)
        size = shown_size(path.stat().st_size)
        if theirs.architecture in HEAD_ARCHITECTURES:
            return _row_of_model_head(theirs, own, header, size)
        if theirs.architecture != ARCHITECTURE:
            return None
        info = read_info(path)
    except (SlipstreamError, OSError):
        return (*[_UNKNOWN] * 5, "no: damaged, or not readable", shown_path(path))
    on = f"{len(info.chats)} chats" if info.text == "chats" else info.text
    verdict = _serves(path, info, own, header)
    return info.method, one_line(info.target_name), on, _first_depth(info), size, verdict, shown_path(path)


def _row_of_model_head(theirs: Header, own: str, header: Header, size: str) -> tuple[str, ...]:
    """A file of heads that llama.cpp runs itself; it names its model by its content only."""
    fits = theirs.metadata.get(TARGET_KEY) == own
    verdict = "yes" if fits else "no: trained for another model"
    trained_for = one_line(header.name) if fits else _UNKNOWN
    return theirs.architecture, trained_for, _UNKNOWN, _UNKNOWN, size, verdict, shown_path(theirs.path)


def _serves(path: Path, info: HeadsInfo, own: str, header: Header) -> str:
    if info.target != own:
        return f"no: trained for another {'version of it' if info.target_name == header.name else 'model'}"
    if deleted := stale(path):
        return f"yes; stale: trained on {len(deleted)} deleted chat{'s' * (len(deleted) > 1)}; train again"
    return "yes"


def _serves_untrained(name: str, load: Load, header: Header) -> str:
    """The verdict as far as the model's header tells; the registry has the last word when the model is loaded."""
    facts = Abilities(header.n_vocab, load.n_ctx, header.n_embd or 0, header.n_layer or 0, max_rows=1, max_leaves=1)
    if name == DraftModel.name and load.draft_model:
        return "yes"
    try:
        index = TextIndex.existing(folder_of(Path(load.index), header)) if load.index else None
    except SlipstreamError:
        index = None  # damaged: the command that the table then names says so
    lacking = METHODS[name].lacks(Parts(facts, text_index=index, header=header))
    return f"no: {lacking}" if lacking else "yes"


def _first_depth(info: HeadsInfo) -> str:
    shares = info.settings.get("acceptance")
    first = shares[0] if isinstance(shares, list) and shares else None
    return f"{first:.2f}" if isinstance(first, float) else _UNKNOWN
