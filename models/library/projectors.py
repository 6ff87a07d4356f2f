"""Finds the mmproj file of a model, which encodes images for it, among the files on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from slipstream.models.errors import ModelFileError
from slipstream.models.hub.types import is_projector, projector_rank

if TYPE_CHECKING:
    from slipstream.models.gguf.reader import Header

ARCHITECTURE: Final = "clip"  # of every mmproj file
_WIDTH: Final = "clip.vision.projection_dim"
_MOST_FILES: Final = 2_000  # of a folder, and of projectors elsewhere
_MOST_OFFERED: Final = 3
_TITLE: Final = "general.name"
_KIND: Final = ("general.size_label", "general.finetune", "general.version")
_WORK: Final = 1.4  # bytes that encoding takes for each byte of the file: weights, and buffers that grow with the image


def projector_bytes(path: Path | None) -> int:
    """Memory that an mmproj file takes; 0 for none."""
    return int(_WORK * path.stat().st_size) if path and path.exists() else 0


@dataclass(frozen=True, slots=True)
class ProjectorChoice:
    """The mmproj file of a model, or those that might be it."""

    path: Path | None = None
    unsure: tuple[Path, ...] = ()  # of its width, with names that neither prove nor exclude that they belong to it


def projector_of(model: Path, elsewhere: Callable[[], Iterable[Path]]) -> ProjectorChoice:
    """The mmproj file of a model: beside it, else in another folder if its header names the same model.

    Width and family alone do not do: fine-tuned models differ in their projectors, and a wrong one sees nonsense.

    Args:
        elsewhere: Lists the mmproj files of all folders on this machine; called only where none lies beside it.
    """
    from slipstream.models.library.places import ollama_projector

    if (path := projector_beside(model)) or (path := _of_width(model, ollama_projector(model))):
        return ProjectorChoice(path)
    own, fitting = _fitting(model, islice(elsewhere(), _MOST_FILES))
    if own is None or not fitting:
        return ProjectorChoice()
    if same := [header for header in fitting if _says_the_same(header, own)]:
        return ProjectorChoice(min(same, key=lambda header: projector_rank(header.path.name)).path)
    may_be = [header for header in fitting if not _names(header) or _names(header) & _names(own)]
    may_be.sort(key=lambda header: projector_rank(header.path.name))
    return ProjectorChoice(unsure=tuple(header.path for header in may_be[:_MOST_OFFERED]))


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
    own, fitting = _fitting(model, files)
    if own is None or not fitting:
        return None
    named = [header for header in fitting if _names(header) & _names(own)]
    if not named and len({frozenset(_names(header)) for header in fitting}) > 1:
        return None
    return min(named or fitting, key=lambda header: projector_rank(header.path.name)).path


def _fitting(model: Path, files: Iterable[Path]) -> tuple[Header | None, list[Header]]:
    """A model's header, read only if there are files, and the headers of the mmproj files of its width."""
    from slipstream.models.gguf.reader import read_header  # costs a start some time, and most models have no such file

    fitting: list[Header] = []
    own: Header | None = None
    for path in files:
        with suppress(ModelFileError, OSError):
            own = own or read_header(model)
            header = read_header(path)
            if header.architecture == ARCHITECTURE and header.metadata.get(_WIDTH) == own.n_embd:
                fitting.append(header)
    return own, fitting


def _of_width(model: Path, path: Path | None) -> Path | None:
    """A file that another program pairs with a model, if it is one of its width."""
    return path if path and _fitting(model, [path])[1] else None


def _says_the_same(header: Header, own: Header) -> bool:
    """Whether a header names the very model: title, size and tuning, as far as both have them."""
    title, other = str(header.metadata.get(_TITLE) or ""), str(own.metadata.get(_TITLE) or "")
    pairs = ((header.metadata.get(key), own.metadata.get(key)) for key in _KIND)
    agree = all(one is None or two is None or str(one).casefold() == str(two).casefold() for one, two in pairs)
    return bool(title) and title.casefold() == other.casefold() and agree


def _names(header: Header) -> set[str]:
    """What a header says which model the file is of."""
    keys = ("general.name", "general.basename", "general.base_model.0.name")
    return {str(name).casefold() for key in keys if (name := header.metadata.get(key))}
