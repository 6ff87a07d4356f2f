"""Predicts how fast a model generates on this machine, with and without a drafter, before it is loaded.

Without a drafter, a pass over one token takes

    t(1) = sum over file types of bytes read / rate(type, 1) + cells / best rate + layers * 30 * operation + 0.25 ms

The bytes read are all weights, but only the experts that one token uses, and the token embedding only if it is also the
output matrix. The cells are the KV cache at 512 tokens and the states of recurrent layers. Rates and the time of an
operation are measured once per machine (``models.llama.throughput``). 30 operations approximate the rest of a layer's
work, and 0.25 ms is the time to choose a token. The times of layers on a GPU and on the processor add up. A pass over
n tokens takes t(n), at least t(n - 1), with rate(type, n) and the experts that n independent tokens use.

A drafter that drafts k tokens, each in time d and right with probability a, gives

    (1 + a + ... + a^k) / (t(k + 1) + k * d)

tokens per second; the autopilot chooses the best k, which may be 0. The range covers values of a from text that is hard
to predict to text that is easy to predict. The range without a drafter is the usual error of such formulas.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import sqrt
from types import MappingProxyType
from typing import Final

from slipstream.models.gguf.parse import TENSOR_TYPES
from slipstream.models.gguf.reader import Header
from slipstream.models.llama.throughput import ROWS, TYPES, Basis, Throughput
from slipstream.models.memory.fit import Fit
from slipstream.models.memory.shape import rough_shape, shape_of

_OPERATIONS: Final = 30
"""Number of small operations that take as long as a layer's other work."""
_CHOOSING: Final = 0.25e-3  # seconds to choose a token
_LENGTH: Final = 512
"""Assumed number of tokens in the KV cache."""
_FAST, _SLOW = 0.8, 1.5
"""Minimum and maximum ratio of a pass's real time to the formula's."""
_ROUGH: Final = 1.15
"""Widens that range if the model's header is unknown."""
_RIGHT: Final = MappingProxyType(
    {
        "draft": (0.5, 0.8),
        "eagle3": (0.5, 0.8),
        "mtp": (0.55, 0.85),
        "dflash": (0.5, 0.8),
        "dspark": (0.5, 0.8),
        "medusa": (0.4, 0.6),
        "kangaroo": (0.4, 0.7),
        "": (0.0, 0.5),
    }
)
"""Acceptance rate of each method in text that is hard and easy to predict; "" is for methods that copy text."""
_HEADS: Final = frozenset({"eagle3", "mtp", "dflash", "dspark", "medusa", "kangaroo"})
_IN_ONE_PASS: Final = frozenset({"dflash", "dspark"})  # heads that draft all tokens in one pass
_DEEPEST: Final = 7
_UNCERTAIN: Final[tuple[Basis, ...]] = ("assumed", "busy")  # the least certain first
_CACHED: Final = 32 << 20  # bytes that may fit in a last-level cache, where memory bandwidth does not matter
_EXPERTS: Final = re.compile(r"_(?:ch)?exps\.")
_FAMILIES: Final = (
    ("Q4_0", ("Q4_0", "Q4_1", "IQ4_NL", "MXFP4", "TQ")),
    ("Q6_K", ("Q6_K", "Q5_K")),
    ("Q8_0", ("Q8", "Q5_0", "Q5_1")),
    ("BF16", ("BF16", "F16", "F32")),
)
"""Measured file type to the prefixes of the types that are treated like it; the rest are treated like Q4_K."""


@dataclass(frozen=True, slots=True)
class Reads:
    """The bytes that a pass reads."""

    weights: Mapping[str, float]  # bytes of the weights that every token reads, by measured file type
    layers: int
    cells: float = 0.0  # bytes of the KV cache and of states
    experts: Mapping[str, float] = field(default_factory=dict)  # bytes of all experts, by measured file type
    used: int = 0  # number of experts that a token uses
    count: int = 0  # number of all experts
    output: float = 0.0  # bytes of the output matrix, which heads read too
    rough: bool = False  # whether these are estimates from the model's size

    @property
    def active(self) -> float:
        """Bytes of weights that a pass over one token reads."""
        return sum(self.weights.values()) + self._union(1) * sum(self.experts.values())

    def _union(self, rows: int) -> float:
        """The share of the experts that ``rows`` tokens use."""
        return 1.0 - float((1 - self.used / self.count) ** rows) if self.count else 0.0

    def seconds(self, machine: Throughput, rows: int) -> float:
        """The time of a pass over ``rows`` tokens on a device."""
        union = self._union(rows)
        each = 1 if self.count else rows  # each expert gets few rows
        times = [size / rate(machine, kind, rows) for kind, size in self.weights.items()]
        times += [union * size / rate(machine, kind, each) for kind, size in self.experts.items()]
        best = max(rate(machine, kind, 1) for kind in machine.rates)
        return sum(times, 0.0) + self.cells / best + self.layers * _OPERATIONS * machine.operation + rows * _CHOOSING


@dataclass(frozen=True, slots=True)
class Range:
    """A range of tokens per second."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        """The geometric mean of both."""
        return sqrt(self.low * self.high)


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predicted speed of a model."""

    plain: Range  # without a drafter
    drafted: Range  # with a drafter that is used only where it helps; never below ``plain``
    basis: Basis = "measured"  # where the speed of the devices is from; the least certain of them


def reads_of(header: Header) -> Reads:
    """The bytes that a pass reads, from a model's header."""
    shape = shape_of(header)
    weights, experts = defaultdict[str, float](float), defaultdict[str, float](float)
    names = {tensor.name for tensor in header.tensors}
    output = 0.0
    for tensor in header.tensors:
        kind = family(TENSOR_TYPES[tensor.type][0] if tensor.type in TENSOR_TYPES else "")
        if tensor.name in ("token_embd.weight", "output.weight"):
            output = tensor.nbytes if tensor.name == "output.weight" or "output.weight" not in names else output
            if tensor.name == "token_embd.weight" and "output.weight" in names:
                continue
        if tensor.name.startswith("per_layer_token_embd"):  # only single rows are read
            continue
        (experts if _EXPERTS.search(tensor.name) else weights)[kind] += tensor.nbytes
    kept = sum(2 * _LENGTH * (layer.keys + layer.values) + 8 * layer.state for layer in shape.layers)
    used, count = (header.number(f"expert_{name}") or 0 for name in ("used_count", "count"))
    return Reads(dict(weights), len(shape.layers), kept, dict(experts), used, count, output)


def rough_reads(size: int, params: int = 0, used: int = 0, quant: str = "", experts: bool = False) -> Reads:
    """The bytes that a pass reads, estimated from a model's size.

    Args:
        size: Bytes of its file.
        params: Number of its parameters; 0 if unknown.
        used: Parameters that a token uses; 0 for all.
        quant: Its quantization, such as ``Q4_K_M``.
        experts: Whether the unused parameters are experts.
    """
    shape = rough_shape(size, params)
    kind, share = family(quant), min(1.0, used / shape.params) if used else 1.0
    kept = sum(2 * _LENGTH * (layer.keys + layer.values) for layer in shape.layers)
    if experts:  # only the ratio of used experts matters, so 1,000 experts are assumed
        return Reads({}, len(shape.layers), kept, {kind: float(size)}, round(1000 * share), 1000, rough=True)
    read = size - shape.embedding if share == 1.0 else share * size
    return Reads({kind: read}, len(shape.layers), kept, output=share * shape.output, rough=True)


def family(kind: str) -> str:
    """The measured file type that a type, or a mix such as ``Q4_K_M``, is treated like."""
    name = kind.upper().removeprefix("UD-")
    return next((stands for stands, prefixes in _FAMILIES if name.startswith(prefixes)), "Q4_K")


def rate(machine: Throughput, kind: str, rows: int) -> float:
    """Bytes of weights per second in a pass over ``rows`` tokens."""
    rates = machine.rates.get(kind) or machine.rates.get("Q4_K") or next(iter(machine.rates.values()))
    upper = next((at for at in ROWS if at >= rows), ROWS[-1])
    lower = max((at for at in ROWS if at <= rows), default=ROWS[0])
    if upper == lower:
        return rates[upper] * min(1.0, upper / rows)
    part = (rows - lower) / (upper - lower)
    return 1 / ((1 - part) / rates[lower] + part / rates[upper])


def predict(
    reads: Reads, fit: Fit, machine: Sequence[Throughput], method: str = "", drafter: Reads | None = None
) -> Prediction | None:
    """Predicts the speed of a model.

    Args:
        reads: The bytes that a pass reads.
        fit: The placement of the model.
        machine: The measurements of this machine.
        method: The drafting method; "" for methods without weights.
        drafter: The bytes that a pass of the draft model reads.

    Returns:
        The prediction; None if the model is too big, if it fits in a cache, or if its device was not measured.
    """
    by_kind = {each.kind: each for each in machine if each.rates.keys() & TYPES.keys()}
    near, far = by_kind.get("cpu"), by_kind.get("gpu")
    if reads.active < _CACHED or fit.verdict == "too big":
        return None
    layers = reads.layers + 1
    share = {"gpu": 1.0, "memory": 0.0}.get(fit.verdict, max(0, fit.gpu_layers) / layers)
    if (share < 1 and not near) or (share > 0 and not far):
        return None

    def seconds(what: Reads, rows: int) -> float:
        parts = ((share, far), (1 - share, near))
        return sum(part * what.seconds(place, rows) for part, place in parts if place and part)

    one = seconds(reads, 1)
    wider = _ROUGH if reads.rough else 1.0
    plain = Range(1 / (one * _SLOW * wider), 1 / (one * _FAST / wider))
    guess = 0.0
    if drafter is not None:
        guess = seconds(drafter, 1)
    elif method in _HEADS:
        guess = one * (1 / max(1, reads.layers) + reads.output / max(1.0, reads.active))
    passes = list(accumulate((seconds(reads, rows) for rows in range(1, _DEEPEST + 2)), max))

    def gain(right: float) -> float:
        tokens = [sum(right**at for at in range(depth + 1)) for depth in range(_DEEPEST + 1)]
        guesses = [min(depth, 1) if method in _IN_ONE_PASS else depth for depth in range(_DEEPEST + 1)]
        return max(one * tokens[depth] / (passes[depth] + count * guess) for depth, count in enumerate(guesses))

    hard, easy = _RIGHT.get(method, _RIGHT[""])
    drafted = Range(plain.low * max(1.0, gain(hard)), plain.high * max(1.0, gain(easy)))
    used = {place.basis for part, place in ((share, far), (1 - share, near)) if place and part}
    return Prediction(plain, drafted, next((basis for basis in _UNCERTAIN if basis in used), "measured"))
