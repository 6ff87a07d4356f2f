"""What a model is said to need on every device, against the buffers that llama.cpp makes there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest
from tests.devices.conftest import Figures, Open, bundled
from tests.devices.lender import Lender
from tests.models.sparse import MODELS, write_sparse

from slipstream.app.protocol.requests import Devices
from slipstream.models.gguf.reader import read_header
from slipstream.models.memory.need import ContextSize, need_of, size_of

WITHIN: Final = 0.05
CONTEXT: Final = 2048
SHAPES: Final = ("llama-1b", "qwen3-0.6b", "qwen3moe-small", "llama-135m")
CHILD: Final = """
import json, sys
from pathlib import Path
from llama_cpp import llama_cpp as C
from slipstream.models.llama.library import process_log
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.placement import Placement
from slipstream.models.llama.target import ContextOptions

path, devices, shares = json.loads(sys.argv[1])
with process_log().listening() as lines:
    model = LlamaModel(Path(path), placement=Placement(sum(shares), tuple(devices), tuple(shares)), repack=False)
    context = C.llama_init_from_model(model.pointer, ContextOptions(n_ctx=2048).params(2048))
    assert context, lines[-5:]
print(json.dumps(lines))
"""


def taken(path: Path, devices: Sequence[str], shares: Sequence[int]) -> list[int]:
    """Bytes of all buffers on each device, from llama.cpp's log."""
    asked = json.dumps([str(path), devices, shares])
    done = subprocess.run([sys.executable, "-c", CHILD, asked], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    log = "".join(json.loads(done.stdout.splitlines()[-1]))
    found = []
    for device in devices:
        machine, _, number = device.rpartition("/")
        name = re.escape(f"RPC{number}[{machine}]") if machine else device
        sizes = re.findall(rf"{name} +(?:model|KV|RS|compute) buffer size = +([\d.]+) MiB", log)
        assert len(sizes) >= 3, log
        found.append(round(sum(map(float, sizes)) * (1 << 20)))
    return found


def check(figures: Figures, path: Path, devices: Sequence[str], shares: Sequence[int]) -> None:
    need = need_of(size_of(read_header(path)), ContextSize(CONTEXT), shares)
    for counted, buffers in zip(need.on, taken(path, devices, shares), strict=True):
        figures("devices whose need was counted within 5 %", abs(counted / buffers - 1) <= WITHIN)
        assert counted == pytest.approx(buffers, rel=WITHIN)


@pytest.mark.parametrize("name", SHAPES)
def test_a_model_on_another_machine_takes_what_was_counted(
    lender: Lender, tmp_path: Path, name: str, figures: Figures
) -> None:
    path = write_sparse(tmp_path / f"{name}.gguf", MODELS[name]())
    layers = len(size_of(read_header(path)).layers)
    check(figures, path, [f"{lender.endpoint}/0"], [layers + 1])
    path.unlink()


def test_a_model_on_two_machines_takes_what_was_counted(
    lender: Lender, own_lender: Lender, tmp_path: Path, figures: Figures
) -> None:
    path = write_sparse(tmp_path / "m.gguf", MODELS["llama-135m"]())
    check(figures, path, [f"{lender.endpoint}/0", f"{own_lender.endpoint}/0"], [7, 6])


def test_a_model_on_a_gpu_takes_what_was_counted(gpu: str, tmp_path: Path, figures: Figures) -> None:
    path = write_sparse(tmp_path / "m.gguf", MODELS["llama-135m"]())
    check(figures, path, [gpu], [13])


def test_layers_are_shared_out_as_asked(lender: Lender, own_lender: Lender, opened: Open) -> None:
    devices = Devices(rpc=f"{lender.endpoint},{own_lender.endpoint}", tensor_split="2,1")
    loaded = opened().load(bundled(devices))
    assert loaded.device.startswith(f"{lender.endpoint} 10, {own_lender.endpoint} 5 of 15 layers"), loaded.device
