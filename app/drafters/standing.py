"""What is known on this machine of the drafters of a model: trained files, gains, costs, and what its owner wants."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Final

from slipstream.app.drafters.files import heads_files
from slipstream.app.drafters.heads_file import HeadsFile, heads_file
from slipstream.app.drafters.indexed import is_on
from slipstream.app.drafters.left_out import left_out
from slipstream.app.engine.flight_log import COSTS
from slipstream.app.models.history import ModelHistory
from slipstream.app.models.learnt import learnt_gains
from slipstream.app.paths import Paths
from slipstream.drafters.memory import Memory
from slipstream.drafters.text_index.index import TextIndex
from slipstream.drafters.text_index.vocabulary import folder_of
from slipstream.models.errors import SlipstreamError
from slipstream.models.gguf import Header, read_header
from slipstream.models.heads import identity

_NOTHING: Final[Mapping[str, float]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Standing:
    """The drafters of one model on this machine.

    Attributes:
        heads: Files of trained heads, those for other models too.
        in_chats: Speed over plain decoding by drafter, over the newest replies that measured it.
        learnt: The same as the autopilot's records have it.
        costs: Cost of a pass over so many rows in passes over one row.
        left_out: Drafters that the autopilot leaves out.
        documents: Chats and files that are indexed for models of this vocabulary.
        tokens: Their tokens.
        index_on: Whether text may be indexed and drafted from.
        trains: Whether heads can be trained here: torch is installed.
        trouble: What could not be found out, in words; empty if nothing.
    """

    heads: tuple[HeadsFile, ...] = ()
    in_chats: Mapping[str, float] = field(default_factory=lambda: _NOTHING)
    learnt: Mapping[str, float] = field(default_factory=lambda: _NOTHING)
    costs: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    left_out: frozenset[str] = frozenset()
    documents: int = 0
    tokens: int = 0
    index_on: bool = True
    trains: bool = True
    trouble: str = ""

    def gain(self, drafter: str) -> float | None:
        """Speed over plain decoding here, as chats tell, else as the autopilot learnt; None where nobody knows."""
        return self.in_chats.get(drafter, self.learnt.get(drafter))

    def of(self, drafter: str) -> list[HeadsFile]:
        """The files of a method; those that serve the model first."""
        return sorted((file for file in self.heads if file.method == drafter), key=lambda file: bool(file.why_not))


def standing(model: Path, paths: Paths) -> Standing:
    """Finds out; reads several files.

    Args:
        model: The model's file.
        paths: Where things are kept.

    Raises:
        SlipstreamError: If the model cannot be read any more.
    """
    header = read_header(model)
    own, trouble = identity(header), list[str]()
    off = frozenset[str]()
    try:
        off = left_out(paths.drafters, header.fingerprint)
    except SlipstreamError as error:
        trouble.append(f"{error.title} {error.hint}")
    documents, tokens = 0, 0
    try:
        documents, tokens = _indexed(paths.index, header)
    except SlipstreamError as error:
        trouble.append(f"{error.title} {error.hint}")
    folders = (paths.bundled, paths.heads)
    return Standing(
        heads=tuple(
            file for folder in folders for path in heads_files(folder) if (file := heads_file(path, own, header))
        ),
        in_chats=ModelHistory(paths.chats).gains(header.fingerprint),
        learnt=learnt_gains(paths.derived, header.fingerprint),
        costs=_costs(paths.derived, header.fingerprint),
        left_out=off,
        documents=documents,
        tokens=tokens,
        index_on=is_on(paths.index),
        trains=find_spec("torch") is not None,
        trouble=" ".join(trouble),
    )


def _indexed(root: Path, header: Header) -> tuple[int, int]:
    """Documents and tokens that are indexed for the model's vocabulary."""
    if header.tokenizer_model in (None, "none", "no_vocab"):
        return 0, 0
    found = TextIndex.existing(folder_of(root, header))
    if found is None:
        return 0, 0
    try:
        size = found.size()
    finally:
        found.close()
    return size.documents, size.tokens


def _costs(derived: Path, fingerprint: str) -> dict[int, float]:
    with suppress(ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError):  # damaged, or another version's
        short = json.loads(Memory(derived, fingerprint).read(COSTS) or b"{}")["short"]
        return {int(rows): float(ms) / float(short["1"]) for rows, ms in short.items()}
    return {}
