"""Collects the status of a model's drafters: trained files, gains, costs, and which the user disabled."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Final

from slipstream.app.chats.deletion_hooks import is_on
from slipstream.app.library.heads_files import HeadsFile, heads_for
from slipstream.app.library.learned_gains import NO_GAINS, DrafterGains, gains_of
from slipstream.app.library.offers import kept_speed
from slipstream.app.platform.paths import Paths
from slipstream.app.settings.disabled_drafters import left_out
from slipstream.drafters.autopilot.profile import measured_costs
from slipstream.drafters.memory import DrafterMemory
from slipstream.drafters.text_index import TextIndex, folder_of
from slipstream.models.errors import SlipstreamError
from slipstream.models.gguf.reader import Header, read_header
from slipstream.models.memory.row_cost import RowTimes, better_types, pass_costs
from slipstream.models.memory.speed import bytes_read, row_times

_ADVISED: Final = 3  # most types named in advice


@dataclass(frozen=True, slots=True)
class Standing:
    """The drafters of one model on this machine."""

    heads: tuple[HeadsFile, ...] = ()  # files of trained heads, including those for other models
    gains: DrafterGains = NO_GAINS  # speed over plain decoding by drafter
    # by number of rows: the cost of a pass in single-row passes
    costs: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    advice: str = ""  # other quantizations of the model that would gain from drafting here, if this one does not
    left_out: frozenset[str] = frozenset()  # disabled drafters
    documents: int = 0  # number of chats and files indexed for models of this vocabulary
    tokens: int = 0  # their tokens
    index_on: bool = True  # whether text may be indexed and used for drafts
    trains: bool = True  # whether heads can be trained here: torch is installed
    trouble: str = ""  # files that could not be read, in words

    def of(self, drafter: str) -> list[HeadsFile]:
        """The files of a method; those that fit the model first."""
        return sorted((file for file in self.heads if file.method == drafter), key=lambda file: bool(file.why_not))


def standing(model: Path, paths: Paths) -> Standing:
    """Reads the status of a model's drafters; raises ``SlipstreamError`` if the model is unreadable."""
    header = read_header(model)
    trouble = list[str]()
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
    measured = measured_costs(DrafterMemory(paths.derived, header.fingerprint))
    return Standing(
        heads=tuple(heads_for(paths, header)),
        gains=gains_of(paths, header),
        costs=_rising(measured) if measured else pass_costs(bytes_read(header), _row_times(paths)),
        advice=quant_advice(header, paths),
        left_out=off,
        documents=documents,
        tokens=tokens,
        index_on=is_on(paths.index),
        trains=find_spec("torch") is not None,
        trouble=" ".join(trouble),
    )


def _row_times(paths: Paths) -> RowTimes:
    """What rows cost here, where a model runs by default: on the GPU, if there is one."""
    machine = kept_speed(paths.derived)
    return row_times(machine, on_gpu=any(each.kind == "gpu" for each in machine))


def quant_advice(header: Header, paths: Paths) -> str:
    """A sentence on the types of the same model that would gain from drafting here; empty if its own does."""
    types = better_types(bytes_read(header), _row_times(paths))
    if not types:
        return ""
    *others, last = types[:_ADVISED]
    named = f"{', '.join(others)} or {last}" if others else last
    return f"Weights of this type gain little from drafting here; a file of the same model in {named} would gain more."


def _rising(costs: Mapping[int, float]) -> dict[int, float]:
    """Makes measured costs monotonic: more rows never cost less, but a busy machine can make it look so."""
    most, found = 1.0, {}
    for rows in sorted(costs):
        found[rows] = most = max(most, costs[rows])
    return found


def _indexed(root: Path, header: Header) -> tuple[int, int]:
    if header.tokenizer_model in (None, "none", "no_vocab"):
        return 0, 0
    found = TextIndex.existing(folder_of(root, header))
    return (found.size().documents, found.size().tokens) if found else (0, 0)
