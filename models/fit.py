"""Will a model fit this machine: what it takes, and how it is best opened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from slipstream.models.gguf import Header
from slipstream.models.runtime.devices import Device
from slipstream.models.runtime.options import KvType

Verdict = Literal["gpu", "split", "memory", "too big"]


@dataclass(frozen=True, slots=True)
class Need:
    """What an open model takes, its draft model included, in bytes.

    Attributes:
        weights: The weights.
        kv: The KV cache, and the states of recurrent layers.
        compute: Buffers that a pass computes in, and the logits.
        gpu: How much of all that is on GPUs.
    """

    weights: int
    kv: int
    compute: int
    gpu: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.kv + self.compute


@dataclass(frozen=True, slots=True)
class Fit:
    """How a model is best opened on this machine.

    Attributes:
        verdict: "gpu": whole on the GPU; "split": some layers on it; "memory": all on the processor; "too big".
        gpu_layers: Layers on the GPU; -1 for all.
        n_ctx: Context in tokens; for "too big" the one that was tried.
        kv_type: Type of the KV cache.
        need: What it takes.
        why: In a sentence for people: the numbers, and for "too big" what would fit.
    """

    verdict: Verdict
    gpu_layers: int
    n_ctx: int
    kv_type: KvType
    need: Need
    why: str


def need(
    header: Header,
    n_ctx: int,
    kv_type: KvType = "f16",
    n_gpu_layers: int = 0,
    rows: int = 64,
    leaves: int = 16,
    draft: Header | None = None,
) -> Need:
    """Adds up what a model takes once it is open.

    Args:
        header: Of the model.
        n_ctx: Context in tokens.
        kv_type: Type of the KV cache.
        n_gpu_layers: Layers on the GPU; -1 for all.
        rows: Most rows of one evaluation.
        leaves: Most leaves of a tree.
        draft: Header of its draft model.
    """
    raise NotImplementedError


def fit(header: Header, devices: Sequence[Device], want_ctx: int | None = None, draft: Header | None = None) -> Fit:
    """Chooses context, KV type and GPU layers, or says what is too much.

    Args:
        header: Of the model.
        devices: What the machine has, as ``slipstream.models.runtime.devices.devices`` lists it.
        want_ctx: The context that its owner asks for; None for the longest sensible one.
        draft: Header of its draft model.
    """
    raise NotImplementedError


def estimate(
    size: int, params: int, devices: Sequence[Device], context: int | None = None, want_ctx: int | None = None
) -> Fit:
    """Judges a model whose header is not at hand, from typical sizes of models like it.

    Args:
        size: Bytes of its file.
        params: Number of its parameters; 0 if not known.
        devices: What the machine has.
        context: Tokens that it was trained on, if known.
        want_ctx: The context that its owner asks for.
    """
    raise NotImplementedError
