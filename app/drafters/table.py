"""``slipstream drafters list``: the methods and all heads, and whether they serve a model."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from slipstream.app.drafters.files import heads_files, shown_size
from slipstream.app.drafters.heads_file import HeadsFile, heads_file
from slipstream.app.drafters.left_out import left_out
from slipstream.app.engine.requests import Load
from slipstream.app.model_choice import choose
from slipstream.app.paths import Paths
from slipstream.app.safe_text import one_line
from slipstream.drafters.draft_model import DraftModel
from slipstream.drafters.parts import Parts
from slipstream.drafters.registry import METHODS
from slipstream.drafters.text_index.index import TextIndex
from slipstream.drafters.text_index.vocabulary import folder_of
from slipstream.models.companions import HEAD_ARCHITECTURES
from slipstream.models.errors import SlipstreamError
from slipstream.models.gguf import Header, read_header
from slipstream.models.heads import identity
from slipstream.models.heads_check import METHODS as TRAINED_METHODS
from slipstream.models.quoting import shown_path
from slipstream.models.types import Abilities

_HEADINGS: Final = ("METHOD", "TRAINED FOR", "TRAINED ON", "DEPTH 1", "SIZE")
_UNKNOWN: Final = "-"
_OFF: Final = "; off for auto"


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
    off = left_out(paths.drafters, header.fingerprint)
    rows: list[tuple[str, ...]] = [(*_HEADINGS, f"SERVES {one_line(header.name)}", "FILE")]
    for name in METHODS:
        if name not in TRAINED_METHODS and name not in HEAD_ARCHITECTURES:
            serves = _serves_untrained(name, load, header) + _OFF * (name in off)
            rows.append((name, "any model", _UNKNOWN, _UNKNOWN, _UNKNOWN, serves, ""))
    own = identity(header)
    for folder in (paths.bundled, paths.heads):
        rows += [_row(file, off) for path in heads_files(folder) if (file := heads_file(path, own, header))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _row(file: HeadsFile, off: frozenset[str]) -> tuple[str, ...]:
    """A file of heads."""
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
