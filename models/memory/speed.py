"""Predicts tokens a second: the best bandwidth ever measured on this machine over the bytes that a token reads.

Decoding reads every weight once per token, so memory bandwidth limits its speed. One row times a matrix that is too
large for the caches measures it. Other programs can only make a reading smaller, so the best one counts, also of one
thread: a product of all threads takes as long as the one that is disturbed most. Small models and quantizations that
cost arithmetic stay below the prediction; with a drafter nothing is predicted.

It is measured in a separate process: a GPU driver takes memory in each process, and may crash it.
"""

import json
import re
import subprocess
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from math import inf
from types import MappingProxyType
from typing import Final, Literal

from slipstream.models.child import end_with_parent, run_child
from slipstream.models.gguf.architectures import EXPERTS
from slipstream.models.gguf.reader import Header
from slipstream.models.memory.fit import Fit
from slipstream.models.memory.row_cost import Products, RowTimes, measure_rows

_CACHED: Final = 32 << 20  # bytes that may fit in a last-level cache, where memory bandwidth does not matter
_EXPERTS: Final = re.compile(EXPERTS)
_Q8_0, _BITS, _COLUMNS = 8, 8.5, 4096  # ``ggml_type``, bits per weight and columns of the matrix
_BYTES: Final = MappingProxyType({"cpu": 10 << 20, "gpu": 256 << 20})
_MATRICES: Final = MappingProxyType({"cpu": 8, "gpu": 1})
"""Bytes of a matrix, and their number: together larger than most last-level caches, and each product is short."""
_SPELLS, _SECONDS = 3, 0.2  # most spells of a measurement, while other programs disturb it, and their length
_PATIENCE_S: Final = 120.0  # seconds that the process may take
_USUAL_CORE, _USUAL_MOST, _USUAL_GPU = 8e9, 40e9, 250e9
"""Typical memory bandwidth of one core, of all cores, and of a GPU, in bytes per second."""
_UNDISTURBED: Final = 0.7
"""Least share of the processor time of all threads; measured: 0.9 undisturbed, 0.3 beside two other programs."""
Basis = Literal["replies", "measured", "busy", "assumed"]
"""Where a figure is from: the model's own replies, or the memory of this machine, measured, measured while other
programs used the processor, or typical of such machines."""


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """The memory bandwidth of a device."""

    kind: str  # "gpu" or "cpu"
    bytes_per_s: float
    basis: Basis = "measured"
    rows: RowTimes = field(default_factory=dict)  # what the processor computes, without the reading of the weights


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predicted speed of a model without a drafter."""

    tok_per_s: float  # at most, unless its replies measured it: a token takes more than the reading of its weights
    basis: Basis = "measured"  # the less certain one of its devices


def bytes_read(header: Header) -> dict[str, float]:
    """Bytes of weights that a token reads, by the name of their type.

    They are those of the experts that it uses, and those of the embedding only if it is the output too.
    """
    used, count = (header.number(f"expert_{name}") or 0 for name in ("used_count", "count"))
    tied = all(tensor.name != "output.weight" for tensor in header.tensors)
    read = defaultdict[str, float](float)
    for tensor in header.tensors:
        if tensor.name.startswith("per_layer_token_embd") or (tensor.name == "token_embd.weight" and not tied):
            continue  # only single rows are read
        read[tensor.type_name] += tensor.nbytes * (used / count if count and _EXPERTS.search(tensor.name) else 1.0)
    return dict(read)


def predict(read: float, fit: Fit, machine: Sequence[Bandwidth]) -> Prediction | None:
    """Predicts the speed of reading so many bytes a token; None if too big, cached, or on a device not measured."""
    if read < _CACHED or fit.verdict == "too big":
        return None
    share = {"gpu": 1.0, "memory": 0.0}.get(fit.verdict, fit.need.gpu / max(1, fit.need.total))
    places = {kind: part for kind, part in (("gpu", share), ("cpu", 1 - share)) if part}
    used = {each.kind: each for each in machine if each.kind in places}
    if used.keys() != places.keys():
        return None
    seconds = sum(part * read / used[kind].bytes_per_s for kind, part in places.items())
    bases = {each.basis for each in used.values()}
    uncertain: tuple[Basis, ...] = ("assumed", "busy")
    return Prediction(1 / seconds, next((basis for basis in uncertain if basis in bases), "measured"))


def row_times(machine: Sequence[Bandwidth], on_gpu: bool) -> RowTimes:
    """What passes over several rows cost on a kind of device: computing or reading; empty if it was not measured."""
    found = next((each for each in machine if each.kind == ("gpu" if on_gpu else "cpu")), Bandwidth("", 1.0))
    least = 1e9 / found.bytes_per_s
    return {name: {n: max(ns, least) for n, ns in times.items()} for name, times in found.rows.items()}


def assumed(cores: int, gpu: bool) -> list[Bandwidth]:
    """Typical values of a processor, and of a GPU if there is one, for use until they are measured."""
    found = [Bandwidth("cpu", min(_USUAL_MOST, _USUAL_CORE * cores), "assumed")]
    return [*found, Bandwidth("gpu", _USUAL_GPU, "assumed")] if gpu else found


def believed(found: Sequence[Bandwidth], cores: int) -> list[Bandwidth]:
    """Readings with those of a busy machine raised to the typical value: such a reading is only a lower bound."""
    usual = {each.kind: each for each in assumed(cores, gpu=True)}
    return [
        replace(usual[each.kind], rows=each.rows)
        if each.basis == "busy" and each.bytes_per_s < usual[each.kind].bytes_per_s
        else each
        for each in found
    ]


def bandwidth() -> list[Bandwidth]:
    """Measures the GPU, if llama.cpp has one, and the processor; empty if the measuring process fails."""
    try:
        done = run_child(["-m", "slipstream.models.memory.speed"], _PATIENCE_S)
    except (OSError, subprocess.SubprocessError):
        return []
    return unpacked(done.stdout.decode("utf-8", "replace"))


def packed(found: Sequence[Bandwidth]) -> str:
    return json.dumps({"bandwidth": [asdict(each) for each in found]})


def unpacked(text: str) -> list[Bandwidth]:
    """Reads the last line that ``packed`` wrote; empty if there is none."""
    for line in reversed(text.splitlines()):  # a driver may print before and after
        try:
            return [
                Bandwidth(
                    str(each["kind"]),
                    float(each["bytes_per_s"]),
                    "busy" if each["basis"] == "busy" else "measured",
                    {
                        str(name): {int(rows): float(took) for rows, took in times.items()}
                        for name, times in each["rows"].items()
                    },
                )
                for each in json.loads(line)["bandwidth"]
            ]
        except (ValueError, LookupError, TypeError, AttributeError):
            continue
    return []


def measure(kind: str) -> Bandwidth | None:
    """Measures a device ("gpu" or "cpu") in this process; None if there is none, or if it cannot multiply."""
    from slipstream.models.llama.library import physical_cores

    threads = physical_cores()  # as a model does
    with ExitStack() as opened:
        try:
            one, every = (Products(kind, opened, count) for count in (1, threads))
            height, best = int(_BYTES[kind] * 8 / _BITS) // _COLUMNS // 64 * 64, inf
            for products in _SPELLS * (one, every):
                took = products.seconds(_Q8_0, (_COLUMNS, height), _MATRICES[kind], (1,), _SECONDS)
                best = min(best, took[1])
                if products is every and every.share >= _UNDISTURBED:
                    break
        except LookupError:
            return None
        basis: Basis = "measured" if every.share >= _UNDISTURBED else "busy"
        return Bandwidth(kind, height * _COLUMNS * _BITS / 8 / best, basis, measure_rows(kind, threads))


if __name__ == "__main__":
    end_with_parent()
    print(packed([found for kind in ("gpu", "cpu") if (found := measure(kind))]))
