"""A model with experts beside a device of another machine: experts in this machine's memory, the rest over there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from tests.devices.conftest import Open, ask, done_of
from tests.devices.lender import Lender
from tests.models.kinds import LAYERS, write_kind
from tests.models.sparse import MODELS, write_sparse

from slipstream.app.protocol.requests import Devices, Load
from slipstream.models.gguf.reader import read_header
from slipstream.models.memory.need import ContextSize, need_of, size_of

WITHIN: Final = 0.05
CONTEXT: Final = 2048
SIZE: Final = 12  # tokens of a reply: on a busy machine a pass over the wire takes long
CHILD: Final = """
import json, sys
from pathlib import Path
from llama_cpp import llama_cpp as C
from slipstream.models.llama.library import process_log
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.placement import Placement
from slipstream.models.llama.target import ContextOptions

path, device, layers, experts = json.loads(sys.argv[1])
with process_log().listening() as lines:
    place = Placement(-1, (device,), (layers,), cpu_experts=experts)
    model = LlamaModel(Path(path), placement=place, repack=False)
    context = C.llama_init_from_model(model.pointer, ContextOptions(n_ctx=2048).params(2048))
    assert context, lines[-5:]
print(json.dumps(lines))
"""


def load_of(path: Path, lender: Lender, experts: int, drafter: str = "none") -> Load:
    devices = Devices(rpc=lender.endpoint)
    return Load(str(path), drafter=drafter, n_ctx=512, kv_type="f32", threads=1, devices=devices, cpu_experts=experts)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["qwen3moe", "qwen3next"])
def test_the_text_is_that_of_plain_decoding(lender: Lender, opened: Open, tmp_path: Path, kind: str) -> None:
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
def test_what_it_takes_there_and_here_is_what_was_counted(
    lender: Lender, tmp_path: Path, name: str, experts: int
) -> None:
    path, device = write_sparse(tmp_path / "model.gguf", MODELS[name]()), f"{lender.endpoint}/0"
    shape = size_of(read_header(path))
    asked = json.dumps([str(path), device, len(shape.layers) + 1, experts])
    done = subprocess.run([sys.executable, "-c", CHILD, asked], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    log = "".join(json.loads(done.stdout.splitlines()[-1]))
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
