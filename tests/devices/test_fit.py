"""What a model is said to need on every device, against the buffers that llama.cpp makes there."""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest
from tests.devices.conftest import Figures, Open, ask, bundled, done_of
from tests.devices.lender import Lender
from tests.models.kinds import LAYERS, write_kind
from tests.models.sparse import MODELS, write_sparse

from slipstream.app.protocol.requests import Devices, Load
from slipstream.models.gguf.reader import read_header
from slipstream.models.memory.need import ContextSize, need_of, size_of

WITHIN: Final = 0.05
CONTEXT: Final = 2048
SIZE: Final = 12  # tokens of a reply: on a busy machine a pass over the wire takes long
SHAPES: Final = ("llama-1b", "qwen3-0.6b", "qwen3moe-small", "llama-135m")
CHILD: Final = """
import json, sys
from pathlib import Path
from llama_cpp import llama_cpp as C
from slipstream.models.llama.library import process_log
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.placement import Placement
from slipstream.models.llama.target import ContextOptions

path, devices, shares, experts = json.loads(sys.argv[1])
with process_log().listening() as lines:
    place = Placement(-1 if experts else sum(shares), tuple(devices), tuple(shares), cpu_experts=experts)
    model = LlamaModel(Path(path), placement=place, repack=False)
    context = C.llama_init_from_model(model.pointer, ContextOptions(n_ctx=2048).params(2048))
    assert context, lines[-5:]
print(json.dumps(lines))
"""


def logged(path: Path, devices: Sequence[str], shares: Sequence[int], experts: int = 0) -> str:
    asked = json.dumps([str(path), devices, shares, experts])
    done = subprocess.run([sys.executable, "-c", CHILD, asked], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return "".join(json.loads(done.stdout.splitlines()[-1]))


def taken(path: Path, devices: Sequence[str], shares: Sequence[int]) -> list[int]:
    log, found = logged(path, devices, shares), []
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
def test_a_model_elsewhere_takes_what_was_counted(lender: Lender, tmp_path: Path, name: str, figures: Figures) -> None:
    path = write_sparse(tmp_path / f"{name}.gguf", MODELS[name]())
    layers = len(size_of(read_header(path)).layers)
    check(figures, path, [f"{lender.endpoint}/0"], [layers + 1])
    path.unlink()


def test_two_machines_take_as_counted(lender: Lender, own_lender: Lender, tmp_path: Path, figures: Figures) -> None:
    path = write_sparse(tmp_path / "m.gguf", MODELS["llama-135m"]())
    check(figures, path, [f"{lender.endpoint}/0", f"{own_lender.endpoint}/0"], [7, 6])


def test_a_model_on_a_gpu_takes_what_was_counted(gpu: str, tmp_path: Path, figures: Figures) -> None:
    path = write_sparse(tmp_path / "m.gguf", MODELS["llama-135m"]())
    check(figures, path, [gpu], [13])


def test_layers_are_shared_out_as_asked(lender: Lender, own_lender: Lender, opened: Open) -> None:
    devices = Devices(rpc=f"{lender.endpoint},{own_lender.endpoint}", tensor_split="2,1")
    loaded = opened().load(bundled(devices))
    assert loaded.device.startswith(f"{lender.endpoint} 10, {own_lender.endpoint} 5 of 15 layers"), loaded.device


def load_of(path: Path, lender: Lender, experts: int, drafter: str = "none") -> Load:
    devices = Devices(rpc=lender.endpoint)
    return Load(str(path), drafter=drafter, n_ctx=512, kv_type="f32", threads=1, devices=devices, cpu_experts=experts)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["qwen3moe", "qwen3next"])
def test_with_experts_in_memory_the_text_is_plain_ones(lender: Lender, opened: Open, tmp_path: Path, kind: str) -> None:
    path = write_kind(tmp_path / "model.gguf", kind)
    engine = opened()
    written = dict[tuple[int, float], str]()
    for experts in (0, 2, LAYERS):
        loaded = engine.load(load_of(path, lender, experts))
        assert loaded.machines == [lender.endpoint]
        assert (f"experts of {experts} layers on CPU" in loaded.device) == (experts > 0), loaded.device
        usable = [offer.name for offer in loaded.drafters if offer.usable]
        for temperature in (0.0, 0.8):
            plain = done_of(list(engine.reply(ask("none", temperature, size=SIZE)))).text
            written[experts, temperature] = plain
            for name in ("lookup|recycle", "lookahead", "auto") if "lookup" in usable else ("auto",):
                assert done_of(list(engine.reply(ask(name, temperature, size=SIZE)))).text == plain, name
    for temperature in (0.0, 0.8):
        assert written[0, temperature] == written[2, temperature] == written[LAYERS, temperature]


@pytest.mark.parametrize(
    ("name", "experts"), [("qwen3moe-small", 1), ("qwen3moe-small", 3), ("qwen3moe-30b", 1), ("deepseek2-lite", 2)]
)
def test_with_experts_in_memory_both_take_as_counted(lender: Lender, tmp_path: Path, name: str, experts: int) -> None:
    path, device = write_sparse(tmp_path / "model.gguf", MODELS[name]()), f"{lender.endpoint}/0"
    shape = size_of(read_header(path))
    log = logged(path, [device], [len(shape.layers) + 1], experts)
    sizes = [(line, float(size)) for line, size in re.findall(r"([^\n]*)buffer size = +([\d.]+) MiB", log)]
    there = sum(size for line, size in sizes if "RPC" in line)
    # of what is mapped, the weights that lie between are not needed; the buffer of logits grows to 64 rows
    here = sum(size for line, size in sizes if "RPC" not in line and not re.search("model|output", line))
    here += (shape.embedding + sum(layer.experts for layer in shape.layers[:experts]) + 4 * 64 * shape.vocabulary) / (
        1 << 20
    )
    need = need_of(shape, ContextSize(CONTEXT), [len(shape.layers) + 1], cpu_experts=experts, borrows=False)
    counted = need.gpu / (1 << 20), (need.total - need.gpu) / (1 << 20)
    print(
        f"{name}, experts of {experts} layers: {counted[0] / there - 1:+.1%} there, {counted[1] / here - 1:+.1%} here"
    )
    # its buffer is estimated as if it computed the experts too: of few layers that is much, of many it is little
    assert 1 - WITHIN <= counted[0] / there <= 1 + 3 * WITHIN
    assert counted[1] == pytest.approx(here, rel=WITHIN)
