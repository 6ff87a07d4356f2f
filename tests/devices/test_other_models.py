"""Heads that the bundled model does not have, images, and adapters, on a device: the text of plain decoding there."""

import importlib
from collections.abc import Callable
from contextlib import closing
from itertools import zip_longest
from pathlib import Path
from typing import Final

import pytest
from tests.app.engine.test_images import about
from tests.app.engine.test_lora import WHOLE
from tests.devices.conftest import BUNDLED, Figures, Open, bundled, check_there, done_of, placed_at
from tests.drafters import block_file, gemma4_file
from tests.drafters.mtp_file import write_mtp
from tests.models.lora_file import write_lora
from tests.models.tiny_mmproj import write_mmproj, write_picture

from slipstream.app.engine import load as loading
from slipstream.app.engine.exactness import SAME_TEXT
from slipstream.app.engine.load import load
from slipstream.app.engine.process.client import Engine
from slipstream.app.protocol.events import Done, Loaded
from slipstream.app.protocol.requests import Generate, Load, Lora, Message, Sampling
from slipstream.models.gguf.reader import read_header

PLACES: Final = ["remote", "half remote", "gpu"]
TEMPERATURES: Final = (0.0, 0.8)
HEADS: Final = {
    "mtp in the model": "mtp", "mtp in a recurrent model": "mtp", "mtp in a file": "mtp", "dflash": "dflash",
    "dflash2": "dflash", "dspark": "dspark",
}  # fmt: skip
SIZE: Final = 64
Reply = Callable[[list[Message], str, float], Done]


def write_pair(folder: Path, kind: str) -> tuple[Path, list[str]]:
    """Writes a tiny target, and a head for it whose guesses are right; an empty list if the target has it."""
    target, head = folder / "target.gguf", folder / "head.gguf"
    if kind == "mtp in a file":
        gemma4_file.write_target(target)
        return target, [str(gemma4_file.write_assistant(head, cache=True))]
    if kind.startswith("mtp"):
        return write_mtp(target, "qwen35" if "recurrent" in kind else "glm4moe"), []
    block_file.write_target(target)
    return target, [str(block_file.write_head(head, kind))]


def asked(messages: list[Message], drafter: str, temperature: float) -> Generate:
    return Generate(1, messages, Sampling(temperature, seed=4), drafter, max_tokens=SIZE)


def of_engine(engine: Engine) -> Reply:
    return lambda messages, drafter, temperature: done_of(list(engine.reply(asked(messages, drafter, temperature))))


def compare(reply: Reply, loaded: Loaded, messages: list[Message], figures: Figures) -> dict[str, int]:
    """Compares every usable drafter with plain decoding; returns how many drafted tokens of each were right."""
    usable = [offer.name for offer in loaded.drafters if offer.usable and offer.name != "none"]
    compared, differing, accepted = 0, dict[str, int](), dict[str, int]()
    for temperature in TEMPERATURES:
        plain = reply(messages, "none", temperature)
        assert len(plain.tokens) > 5
        for name in usable:
            done = reply(messages, name, temperature)
            assert not done.failed
            off = sum(one != other for one, other in zip_longest(done.tokens, plain.tokens))
            compared += len(plain.tokens)
            differing[name] = differing.get(name, 0) + off
            accepted[name] = accepted.get(name, 0) + done.speed.accepted
    figures("tokens compared with plain decoding there", compared)
    figures("of them different", sum(differing.values()))
    assert not any(differing.values()), differing
    return accepted


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", HEADS)
def test_heads_of_every_kind(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    figures: Figures,
    kind: str,
    place: str,
) -> None:
    """In this process: the text that an engine is measured with has letters that the tiny vocabulary lacks."""
    monkeypatch.setattr(loading, "SAMPLE_TEXT", "a text in letters that the tiny vocabulary has")
    gpu_layers, devices = placed_at(request, place)
    target, heads = write_pair(tmp_path, kind)
    layers = 2 if "half" in place else gpu_layers
    wanted = Load(str(target), heads=heads, kv_type="f32", threads=1, gpu_layers=layers, devices=devices)
    session, loaded = load(wanted, lambda _: None)
    assert loaded.machines == list(filter(None, [devices.rpc])) and not loaded.failed

    def write(messages: list[Message], drafter: str, temperature: float) -> Done:
        return session.reply(asked(messages, drafter, temperature), lambda _: None, lambda: False)

    with closing(session):
        accepted = compare(write, loaded, [Message("user", "tell me")], figures)
    assert accepted[HEADS[kind]] > 5, "its drafts were never right: this shows nothing"


@pytest.mark.parametrize("place", PLACES)
def test_an_image(request: pytest.FixtureRequest, opened: Open, tmp_path: Path, figures: Figures, place: str) -> None:
    try:
        importlib.import_module("llama_cpp.mtmd_cpp")
    except FileNotFoundError:
        pytest.skip("llama.cpp is built without mtmd")
    gpu_layers, devices = placed_at(request, place)
    width = read_header(BUNDLED / "slipstream-mini-q8_0.gguf").n_embd
    mmproj = write_mmproj(tmp_path / "mmproj.gguf", "mlp", width or 0)
    engine = opened()
    reply = of_engine(engine)
    loaded = engine.load(bundled(devices, gpu_layers, mmproj=str(mmproj)))
    assert loaded.images and loaded.machines == list(filter(None, [devices.rpc]))
    assert not loaded.device.startswith("CPU"), loaded.device
    seen, other = (about(write_picture(tmp_path / f"{seed}.png", seed)) for seed in (1, 2))
    if place != "gpu" or loaded.promise == SAME_TEXT:  # elsewhere, passes of other widths round differently
        compare(of_engine(engine), loaded, [seen], figures)
    texts = {reply([message], "none", 0.0).text for message in (seen, other)}
    assert len(texts) == 2, "the image did not change the text"


@pytest.mark.parametrize("place", PLACES)
def test_a_model_with_an_adapter(
    request: pytest.FixtureRequest, opened: Open, tmp_path: Path, figures: Figures, place: str
) -> None:
    gpu_layers, devices = placed_at(request, place)
    header = read_header(BUNDLED / "slipstream-mini-q8_0.gguf")
    lora = write_lora(tmp_path / "one.gguf", header, rank=32, kind=WHOLE)
    engine, messages = opened(), [Message("user", "Tell me a story about a small fox.")]
    reply = of_engine(engine)
    engine.load(bundled(devices, gpu_layers))
    without = reply(messages, "none", 0.0).text
    changed = bundled(devices, gpu_layers, lora=[Lora(str(lora), 4.0)])
    loaded = engine.load(changed)
    assert loaded.machines == list(filter(None, [devices.rpc]))
    assert not loaded.device.startswith("CPU"), loaded.device
    if place == "gpu":
        check_there(figures, changed, [messages[0].content])
    else:
        compare(of_engine(engine), loaded, messages, figures)
    assert reply(messages, "none", 0.0).text != without, "the adapter did not change the text"
