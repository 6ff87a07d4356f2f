"""The devices that hold the layers of a model."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, Final, Literal

from llama_cpp import llama_cpp as C

from slipstream.models.errors import UsageError
from slipstream.models.llama.ggml import GPU, calls, own_gpus
from slipstream.models.llama.remote import register

SplitMode = Literal["layer", "row", "none"]
"""How several GPUs share a model: by layers, by rows of its matrices, or not at all."""
_CAPTURING: Final = frozenset({b"CUDA", b"ROCm"})  # names of ggml's backends
_MODES: Final = {"none": 0, "layer": 1, "row": 2}  # llama_split_mode


@dataclass(frozen=True, slots=True)
class Placement:
    """The devices that hold the layers of a model."""

    gpu_layers: int = -1  # number of layers on GPUs, the output counted as one; -1 for all
    devices: tuple[str, ...] | None = None  # ``Device.name`` of the GPUs; None for all GPUs of this machine
    shares: tuple[int, ...] = ()  # number of layers on each of ``devices``; empty: llama.cpp chooses
    mode: SplitMode = "layer"  # how they share the model
    main: int = 0  # index in ``devices`` of the GPU for tensors that are not split by rows
    cpu_experts: int = 0  # number of first layers whose experts stay in main memory, even if the layers are on a GPU

    @property
    def machines(self) -> list[str]:
        """The other machines that lend some of ``devices``."""
        return [machine for name in self.devices or () if (machine := name.rpartition("/")[0])]

    @property
    def keeps_graphs(self) -> bool:
        """Whether a pass like the one before is cheaper: a GPU replays its graph, another machine is not sent it again.

        CUDA and HIP capture graphs; other backends of this machine only save the time of building one.
        """
        if self.machines or not self.gpu_layers:
            return bool(self.machines)
        ggml = calls()
        handles = own_gpus() if self.devices is None else [handle(name) for name in self.devices]
        return any(ggml.backend_reg_name(ggml.backend_dev_backend_reg(each)) in _CAPTURING for each in handles)

    def before_gpus(self, layers: int) -> int:
        """Number of first layers on the processor; ``layers`` counts all layers of the model, with the output."""
        if self.devices == () or (self.devices is None and not own_gpus()):
            return layers
        return max(0, layers - self.gpu_layers) if self.gpu_layers >= 0 else 0

    def beside(self) -> Placement:
        """The placement of a drafting head for this model: all its layers on the same devices."""
        return Placement(-1 if self.gpu_layers else 0, self.devices)

    def fill(self, params: Any) -> None:
        params.n_gpu_layers = self.gpu_layers
        if self.devices is None:
            ggml = calls()
            handles = own_gpus()
            separate = [each for each in handles if ggml.backend_dev_type(each) == GPU]
            handles = separate or handles[:1]
        else:
            handles = [handle(name) for name in self.devices]
        params.devices = _kept(params, (ctypes.c_void_p * (len(handles) + 1))(*handles, None))
        params.split_mode, params.main_gpu = _MODES[self.mode], self.main
        if self.shares and len(handles) > 1:
            shares = (ctypes.c_float * C.llama_max_devices())(*self.shares)
            _kept(params, shares)
            params.tensor_split = shares


def handle(name: str) -> int:
    machine, _, number = name.rpartition("/")
    found = register(machine)[int(number)] if machine else calls().backend_dev_by_name(name.encode())
    if not found:
        raise UsageError(f"there is no device {name}.", "slipstream doctor lists them.")
    return int(found)


def _kept(params: Any, array: Any) -> int:
    """Keeps an array alive with the parameters; returns its address."""
    params.arrays = [*getattr(params, "arrays", []), array]
    return ctypes.addressof(array)
