"""Finds out what is known of the drafters of a model: trained files, gains, costs, and which its owner disabled."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from slipstream.app.bench.kept import kept_results
from slipstream.app.chats.deletion_hooks import is_on
from slipstream.app.library.heads_files import heads_file, heads_files
from slipstream.app.library.learned_gains import ModelHistory
from slipstream.app.platform.paths import Paths
from slipstream.app.settings.disabled_drafters import left_out
from slipstream.drafters.autopilot.profile import learned_gains, measured_costs
from slipstream.drafters.memory import Memory
from slipstream.drafters.none import Plain
from slipstream.drafters.text_index.index import TextIndex, folder_of
from slipstream.models.errors import SlipstreamError
from slipstream.models.gguf.reader import Header, read_header
from slipstream.models.heads.file import identity

if TYPE_CHECKING:
    from slipstream.app.library.heads_files import HeadsFile


_NOTHING: Final[Mapping[str, float]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Standing:
    """The drafters of one model on this machine."""

    heads: tuple[HeadsFile, ...] = ()  # files of trained heads, those for other models too
    # speed over plain decoding by drafter, over the newest replies that measured it
    in_chats: Mapping[str, float] = field(default_factory=lambda: _NOTHING)
    learnt: Mapping[str, float] = field(default_factory=lambda: _NOTHING)  # the same as the autopilot's records have it
    # the same as the newest kept benchmark of the model has it, over all its kinds of text
    benched: Mapping[str, float] = field(default_factory=lambda: _NOTHING)
    # cost of a pass over so many rows in passes over one row
    costs: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    left_out: frozenset[str] = frozenset()  # drafters that the autopilot leaves out
    documents: int = 0  # chats and files that are indexed for models of this vocabulary
    tokens: int = 0  # their tokens
    index_on: bool = True  # whether text may be indexed and drafted from
    trains: bool = True  # whether heads can be trained here: torch is installed
    trouble: str = ""  # what could not be found out, in words; empty if nothing

    def gain(self, drafter: str) -> float | None:
        """Speed over plain decoding here: as chats tell, else the benchmark, else the autopilot; None if none."""
        return next((found[drafter] for found in (self.in_chats, self.benched, self.learnt) if drafter in found), None)

    def of(self, drafter: str) -> list[HeadsFile]:
        """The files of a method; those that serve the model first."""
        return sorted((file for file in self.heads if file.method == drafter), key=lambda file: bool(file.why_not))


def standing(model: Path, paths: Paths) -> Standing:
    """Finds out; reads several files.

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
    folders, memory = (paths.bundled, paths.heads), Memory(paths.derived, header.fingerprint)
    return Standing(
        heads=tuple(
            file for folder in folders for path in heads_files(folder) if (file := heads_file(path, own, header))
        ),
        in_chats=ModelHistory(paths.chats).gains(header.fingerprint),
        learnt=learned_gains(memory),
        benched=_benched(paths.benches, header.name),
        costs=_rising(measured_costs(memory)),
        left_out=off,
        documents=documents,
        tokens=tokens,
        index_on=is_on(paths.index),
        trains=find_spec("torch") is not None,
        trouble=" ".join(trouble),
    )


def _rising(costs: Mapping[int, float]) -> dict[int, float]:
    """Costs as they can be: no pass is cheaper than one over fewer rows, whatever a busy machine measured."""
    most, found = 1.0, {}
    for rows in sorted(costs):
        found[rows] = most = max(most, costs[rows])
    return found


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


def _benched(folder: Path, model: str) -> dict[str, float]:
    """The newest benchmark's speed-ups by drafter: all of plain decoding's time over all of the drafter's."""
    report = next((kept.report for kept in kept_results(folder) if kept.report and kept.report.model == model), None)
    ours, plain = defaultdict[str, float](float), defaultdict[str, float](float)
    for row in report.rows if report else []:
        if row.drafter != Plain.name and row.speedup and not row.idle:
            seconds = row.tokens / row.tok_per_s
            ours[row.drafter] += seconds
            plain[row.drafter] += seconds * row.speedup.value
    return {drafter: plain[drafter] / ours[drafter] for drafter in ours}
