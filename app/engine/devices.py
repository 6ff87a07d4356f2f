"""The devices of this machine and of others that a load may use, and the placement of models on them."""

from collections import Counter
from dataclasses import dataclass

from slipstream.app.protocol.requests import Devices, Load
from slipstream.models.errors import UsageError
from slipstream.models.llama.devices import Device, survey_here
from slipstream.models.llama.ggml import rpc_call
from slipstream.models.llama.placement import Placement, SplitMode
from slipstream.models.llama.remote import ask_all
from slipstream.models.memory.fit import Fit
from slipstream.models.outside import quoted

PROCESSOR = "CPU"


@dataclass(frozen=True, slots=True)
class FoundDevices:
    """The devices for a load."""

    devices: tuple[Device, ...]  # usable devices; GPUs that other machines lend come last
    lacking: tuple[str, ...] = ()  # a sentence for each machine that cannot be used, with the reason

    @property
    def gpus(self) -> list[Device]:
        return [device for device in self.devices if device.kind in ("gpu", "igpu")]


def find(request: Load) -> FoundDevices:
    own, wanted = survey_here().devices, request.devices
    if not request.gpu_layers and not (wanted.draft and request.draft_gpu_layers):
        return FoundDevices(tuple(device for device in own if device.kind == "cpu"))
    lenders = ask_all(wanted.rpc)
    if lenders:
        rpc_call("add_server")
    lent = [device for lender in lenders for device in lender.devices]
    lacking = [f"Without {lender.endpoint}: {lender.problem}." for lender in lenders if lender.problem]
    found = FoundDevices((*own, *lent), tuple(lacking))
    if wanted.split_mode == "none" and found.gpus:
        names = [device.name for device in found.gpus]
        if wanted.main_gpu >= len(names):
            title = f"main-gpu is {wanted.main_gpu}; there are {len(names)} GPUs, counted from 0."
            raise UsageError(title, ", ".join(names))
        main = found.gpus[wanted.main_gpu]
        rest = [device for device in found.devices if device.kind not in ("gpu", "igpu")]
        return FoundDevices((main, *rest), found.lacking)
    return found


def proportions(wanted: Devices, found: FoundDevices) -> list[float]:
    """Reads ``Devices.tensor_split``: a number for each GPU; 0 for GPUs beyond its end."""
    shares = wanted.shares()
    if wanted.split_mode == "none" or not shares:
        return []
    if len(shares) > len(found.gpus) or min(shares) < 0 or not sum(shares):
        names = ", ".join(device.name for device in found.gpus) or "none"
        raise UsageError(
            f"tensor-split is {quoted(wanted.tensor_split)}; it takes a share for each GPU.", f"GPUs here: {names}."
        )
    return shares + [0.0] * (len(found.gpus) - len(shares))


def draft_device(wanted: Devices, found: FoundDevices) -> str:
    """The name of the draft model's device; empty for the default."""
    names = [device.name for device in found.gpus] + [PROCESSOR]
    if not wanted.draft or wanted.draft in names:
        return wanted.draft
    if len(names) == 1 or any(f"Without {wanted.draft.rpartition('/')[0]}: " in line for line in found.lacking):
        return PROCESSOR
    raise UsageError(
        f"there is no device {quoted(wanted.draft)} for the draft model.", f"There are {', '.join(names)}."
    )


def placement(request: Load, fit: Fit) -> Placement:
    if not fit.shares:
        return Placement(0, ())
    wanted, names = request.devices, tuple(fit.shares)
    mode: SplitMode = "row" if wanted.split_mode == "row" else "layer"
    main = wanted.main_gpu if mode == "row" and wanted.main_gpu < len(names) else 0
    return Placement(
        fit.gpu_layers, names, tuple(fit.shares.values()), mode=mode, main=main, cpu_experts=fit.cpu_experts
    )


def draft_placement(request: Load, fit: Fit, found: FoundDevices, name: str) -> Placement:
    """The draft model's placement: on the named device, or this machine's first GPU if the target uses GPUs."""
    own = [device.name for device in found.gpus if not device.machine]
    name = name or (own[0] if own and fit.shares else PROCESSOR)
    if name == PROCESSOR or not request.draft_gpu_layers:
        return Placement(0, ())
    return Placement(request.draft_gpu_layers, (name,))


def describe(fit: Fit, found: FoundDevices, threads: int, layers: int, draft: Placement | None = None) -> str:
    """Describes where a model of ``layers`` layers, the output counted as one, runs, for people."""
    processor = f"CPU, {threads} thread{'s' if threads > 1 else ''}"
    if not fit.shares:
        return processor
    held = Counter[str]()
    by_name = {device.name: device for device in found.gpus}
    for name, count in fit.shares.items():
        held[_label(by_name[name])] += count
    counts = ", ".join(f"{name} {count}" for name, count in held.items())
    text = next(iter(held)) if held.total() >= layers and len(held) == 1 else f"{counts} of {layers} layers"
    text += f", experts of {fit.cpu_experts} layers on CPU" if fit.cpu_experts else ""
    on = draft.devices[0] if draft and draft.devices else PROCESSOR
    if draft and on not in fit.shares:
        text += f", draft on {_label(by_name[on]) if on in by_name else PROCESSOR}"
    return text


def _label(device: Device) -> str:
    if device.machine:
        return device.machine
    kind = device.name.rstrip("0123456789")
    return {"MTL": "Metal"}.get(kind, device.name if kind != device.name and device.name[-1] != "0" else kind)
