"""Finds the mmproj file of a model, which encodes images for it, among the files on this machine."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from slipstream.models.errors import ModelFileError
from slipstream.models.hub.types import is_projector, projector_rank

if TYPE_CHECKING:
    from slipstream.models.gguf.reader import Header

ARCHITECTURE: Final = "clip"  # of every mmproj file
_WIDTH: Final = "clip.vision.projection_dim"
_MOST_FILES: Final = 2_000  # of a folder
_WORK: Final = 1.4  # bytes that encoding takes for each byte of the file: weights, and buffers that grow with the image


def projector_bytes(path: Path | None) -> int:
    """Memory that an mmproj file takes; 0 for none."""
    return int(_WORK * path.stat().st_size) if path and path.exists() else 0


def projector_beside(model: Path) -> Path | None:
    """The mmproj file in a model's folder that belongs to it; None if there is none, or none of its width.

    Makers publish it in the model's folder. Where a folder holds several models, the names in the headers tell them
    apart.
    """
    with suppress(OSError):
        files = [path for path in islice(model.parent.iterdir(), _MOST_FILES) if is_projector(path.name)]
        return best_projector(model, sorted(files))
    return None


def best_projector(model: Path, files: Iterable[Path]) -> Path | None:
    """Of some mmproj files the one that belongs to a model; None if none does, or one cannot tell which."""
    from slipstream.models.gguf.reader import read_header  # costs a start some time, and most models have no such file

    fitting: list[Header] = []
    own: Header | None = None
    for path in files:
        with suppress(ModelFileError, OSError):
            own = own or read_header(model)
            header = read_header(path)
            if header.architecture == ARCHITECTURE and header.metadata.get(_WIDTH) == own.n_embd:
                fitting.append(header)
    if own is None or not fitting:
        return None
    named = [header for header in fitting if _names(header) & _names(own)]
    if not named and len({frozenset(_names(header)) for header in fitting}) > 1:
        return None
    return min(named or fitting, key=lambda header: projector_rank(header.path.name)).path


def _names(header: Header) -> set[str]:
    """What a header says which model the file is of."""
    keys = ("general.name", "general.basename", "general.base_model.0.name")
    return {str(name).casefold() for key in keys if (name := header.metadata.get(key))}
