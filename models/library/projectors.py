"""Finds a model's mmproj file, which encodes images for it, on this machine."""

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

ARCHITECTURE: Final = "clip"  # the architecture of every mmproj file
_WIDTH: Final = "clip.vision.projection_dim"
_MOST_FILES: Final = 2_000  # maximum files that are read of a folder, and maximum mmproj files of other folders
_MOST_OFFERED: Final = 3
_TITLE: Final = "general.name"
_KIND: Final = ("general.size_label", "general.finetune", "general.version")


@dataclass(frozen=True, slots=True)
class ProjectorChoice:
    """The mmproj file of a model, or the candidates if it is not certain."""

    path: Path | None = None
    unsure: tuple[Path, ...] = ()  # candidates: they have the model's width, and their names do not exclude them


def projector_of(model: Path, elsewhere: Callable[[], Iterable[Path]]) -> ProjectorChoice:
    """The mmproj file of a model: in its folder, else in another folder if its header names the same model.

    The same width and family are not enough: fine-tuned models have different projectors, and the model cannot
    interpret the output of a wrong one.

    Args:
        elsewhere: Lists the mmproj files of all folders on this machine; called only if the model's folder has none.
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

    Makers publish it in the model's folder. If a folder contains several models, the names in the headers decide.
    """
    with suppress(OSError):
        files = [path for path in islice(model.parent.iterdir(), _MOST_FILES) if is_projector(path.name)]
        return best_projector(model, sorted(files))
    return None


def best_projector(model: Path, files: Iterable[Path]) -> Path | None:
    """The one of ``files`` that belongs to a model; None if none does, or if it is not certain which one does."""
    own, fitting = _fitting(model, files)
    if own is None or not fitting:
        return None
    named = [header for header in fitting if _names(header) & _names(own)]
    if not named and len({frozenset(_names(header)) for header in fitting}) > 1:
        return None
    return min(named or fitting, key=lambda header: projector_rank(header.path.name)).path


def _fitting(model: Path, files: Iterable[Path]) -> tuple[Header | None, list[Header]]:
    """A model's header, read only if there are files, and the headers of the mmproj files of its width."""
    from slipstream.models.gguf.reader import read_header  # imported late: slow, and most models have no mmproj file

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
    """``path``, if it is an mmproj file of the model's width; else None."""
    return path if path and _fitting(model, [path])[1] else None


def _says_the_same(header: Header, own: Header) -> bool:
    """Whether two headers name the same model: equal titles, and no difference in size, tuning and version."""
    title, other = str(header.metadata.get(_TITLE) or ""), str(own.metadata.get(_TITLE) or "")
    pairs = ((header.metadata.get(key), own.metadata.get(key)) for key in _KIND)
    agree = all(one is None or two is None or str(one).casefold() == str(two).casefold() for one, two in pairs)
    return bool(title) and title.casefold() == other.casefold() and agree


def _names(header: Header) -> set[str]:
    """The names in a header of the model that the file belongs to."""
    keys = ("general.name", "general.basename", "general.base_model.0.name")
    return {str(name).casefold() for key in keys if (name := header.metadata.get(key))}
