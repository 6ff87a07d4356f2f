"""Every drafter, wherever a model lies: the text of plain decoding on that very place, token by token."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Final

import pytest
from tests.devices.conftest import PLACES, Figures, ask, bundled, check_there, done_of, placed_at
from tests.devices.lender import Lender, Wire
from tests.models.sparse import dense, write_sparse

from slipstream.app.engine.exactness import SAME_TEXT
from slipstream.app.engine.process.client import Engine
from slipstream.app.protocol.events import Loaded
from slipstream.app.protocol.requests import Generate, Load, Message, Sampling
from slipstream.drafters.text_index import TextPiece, open_index
from slipstream.models.gguf.reader import read_header

JOINED: Final = ["lookup+draft", "lookup|draft", "draft:lookup", "eagle3:lookup"]
TEMPERATURES: Final = (0.0, 0.8)
PROMPTS: Final = ["Tell me a story about a small fox.", "Write a list of ten animals."]


@dataclass
class Placed:
    engine: Engine
    load: Load
    loaded: Loaded


@pytest.fixture(scope="module", params=PLACES)
def placed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Placed]:
    gpu_layers, devices = placed_at(request, request.param)
    home = tmp_path_factory.mktemp("engine")
    load = bundled(devices, gpu_layers, derived=str(home / "derived"), index=str(home / "index"))
    engine = Engine(home / "engine.log")
    engine.load(load)
    texts = [tokens(engine, ask("none", temperature, prompt)) for prompt in PROMPTS for temperature in TEMPERATURES]
    engine.close()
    with closing(open_index(home / "index", read_header(Path(load.model)))) as index:  # for retrieval
        index.add([TextPiece(str(number), text) for number, text in enumerate(texts)])
    loaded = engine.load(load)
    assert loaded.machines == list(filter(None, [devices.rpc])), loaded.device
    assert not (gpu_layers and loaded.device.startswith("CPU")), loaded.device  # as after a failure of the device
    yield Placed(engine, load, loaded)
    engine.close()


def tokens(engine: Engine, generate: Generate) -> list[int]:
    done = done_of(list(engine.reply(generate)))
    assert not done.failed
    return done.tokens


def test_every_drafter_writes_what_plain_decoding_writes(placed: Placed, figures: Figures) -> None:
    usable = [offer.name for offer in placed.loaded.drafters if offer.usable]
    assert {"draft", "medusa", "kangaroo", "space", "eagle3", "dflash", "retrieval"} <= set(usable)
    assert {"lookup", "lookahead", "recycle"} <= set(usable)
    assert not placed.loaded.failed
    if placed.loaded.promise != SAME_TEXT:
        check_there(figures, placed.load, PROMPTS, [*(name for name in usable if name != "none"), *JOINED])
        return
    compared, differing = 0, dict[str, int]()
    for prompt in PROMPTS:
        for temperature in TEMPERATURES:
            plain = tokens(placed.engine, ask("none", temperature, prompt))
            assert len(plain) > 5
            for name in (*(each for each in usable if each != "none"), *JOINED):
                written = tokens(placed.engine, ask(name, temperature, prompt))
                compared += len(plain)
                off = sum(one != other for one, other in zip_longest(written, plain))
                differing[name] = differing.get(name, 0) + off
    figures("tokens compared with plain decoding there", compared)
    figures("of them different", sum(differing.values()))
    assert not any(differing.values()), differing


def test_a_kept_state_goes_on_there(placed: Placed, tmp_path: Path) -> None:
    """The KV cache travels to the disk and back, into another process."""
    state = str(tmp_path / "chat.state")
    first = done_of(list(placed.engine.reply(replace(ask("draft"), state=state))))
    placed.engine.close()
    placed.engine.load(placed.load)
    turns = [
        Message("user", "Tell me a story about a small fox."),
        Message("assistant", first.text, first.tokens),
        Message("user", "And then?"),
    ]
    again = Generate(2, turns, Sampling(0.8, seed=5), "none", max_tokens=24, state=state)
    kept = done_of(list(placed.engine.reply(again)))
    assert Path(state).exists() and kept.prefilled_tokens < kept.prompt_tokens / 2
    fresh = done_of(list(placed.engine.reply(replace(again, state=None, request=3))))
    assert kept.tokens == fresh.tokens


def test_other_threads_write_the_same(placed: Placed) -> None:
    before = tokens(placed.engine, ask("none"))
    placed.engine.load(replace(placed.load, threads=1))
    assert tokens(placed.engine, ask("auto")) == before
    placed.engine.load(placed.load)


def test_weights_travel_once(rpc: None, tmp_path: Path) -> None:
    """Tensors of more than 10 MiB are kept by the lender, see HASH_THRESHOLD of ggml-rpc.cpp."""
    wide = write_sparse(tmp_path / "wide.gguf", dense("llama", 2048, 2, 16, 8, 128, 8192, 32_000, False))
    lender = Lender(tmp_path, ("--cache-gb", "5"))
    sent = []
    for _ in range(2):
        wire = Wire(lender.port)
        code = f"""
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.placement import Placement
from pathlib import Path
LlamaModel(Path({str(wide)!r}), placement=Placement(-1, ("{wire.endpoint}/0",))).close()
"""
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
        sent.append(wire.passed[0])
        wire.close()
    lender.end()
    assert sent[0] > 100 << 20 and sent[1] < sent[0] / 4, sent  # its attention has smaller ones
