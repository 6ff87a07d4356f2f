"""A broken drafter of each kind: the text is plain decoding's, and its name and the reason are told."""

import math
import os
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from tests.app.engine.forced import write
from tests.drafters.changed_file import changed
from tests.models.fake_target import FakeTarget

from slipstream.app.engine import plan as module
from slipstream.app.engine.devices import FoundDevices
from slipstream.app.engine.load import load
from slipstream.app.protocol.events import Done, Loaded
from slipstream.app.protocol.requests import AUTO, Generate, Load, Message, Sampling
from slipstream.drafters.autopilot import settings
from slipstream.drafters.base import NO_DRAFT, Draft, Drafter, Plain, ShouldExtend
from slipstream.drafters.draft_model import DraftModel
from slipstream.drafters.feature_drafter import FeatureDrafter
from slipstream.drafters.guard import Guard
from slipstream.drafters.kangaroo import Kangaroo
from slipstream.drafters.lookahead import Lookahead
from slipstream.drafters.medusa import Medusa
from slipstream.drafters.memory import DrafterMemory
from slipstream.drafters.prompt_lookup import PromptLookup
from slipstream.drafters.recycle import TokenRecycling
from slipstream.drafters.space import Space
from slipstream.drafters.text_index import TextPiece, open_index
from slipstream.models.errors import SlipstreamError, UsageError
from slipstream.models.gguf.reader import Header, read_header
from slipstream.models.gguf.tensors import read_tensor
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.target import ContextOptions
from slipstream.models.memory.fit import Fit
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import ROOT, History, TokenTree

pytestmark = pytest.mark.slow

BUNDLED: Final = Path(__file__).parents[3] / "models" / "bundled"
TARGET: Final = BUNDLED / "slipstream-mini-q8_0.gguf"
FILES: Final = {
    "draft": BUNDLED / "slipstream-mini-draft-q8_0.gguf",
    "medusa": BUNDLED / "slipstream-mini-medusa.gguf",
    "kangaroo": BUNDLED / "slipstream-mini-kangaroo.gguf",
    "space": BUNDLED / "slipstream-mini-space.gguf",
    "eagle3": BUNDLED / "slipstream-mini-eagle3-q8_0.gguf",
}
KINDS: Final[dict[str, type[Drafter]]] = {
    "draft": DraftModel, "medusa": Medusa, "kangaroo": Kangaroo, "space": Space, "eagle3": FeatureDrafter,
    "lookup": PromptLookup, "lookahead": Lookahead, "recycle": TokenRecycling,
}  # fmt: skip
ASKED: Final = Generate(
    1, [Message("user", "Tell me a story about a small fox.")], Sampling(0.8, seed=4), max_tokens=40
)


def reply(request: Load, asked: Generate = ASKED, *, breaks: Callable[[], None] = lambda: None) -> tuple[Done, Loaded]:
    session, loaded = load(request, lambda _: None)
    with closing(session):
        breaks()
        return session.reply(replace(asked, drafter=request.drafter), lambda _: None, lambda: False), loaded


def ways(name: str) -> tuple[str, ...]:
    other = "lookup" if name != "lookup" else "recycle"
    return AUTO, name, f"{other}+{name}", f"{other}|{name}"


@pytest.fixture(scope="module")
def derived(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Keeps what is measured of this machine, so that it is measured once."""
    return str(tmp_path_factory.mktemp("derived"))


@pytest.fixture(scope="module")
def plain() -> Done:
    return reply(Load(str(TARGET), exact="always"))[0]


def with_file(name: str, file: Path, derived: str | None = None) -> Load:
    files = FILES | {name: file}
    heads = [str(path) for each, path in files.items() if each != "draft"]
    return Load(str(TARGET), str(files["draft"]), heads=heads, exact="always", derived=derived)


def filled(name: str, copy: Path, value: float) -> Path:
    header = read_header(FILES[name])
    arrays: dict[str, Any] = {tensor.name: read_tensor(header, tensor) for tensor in header.tensors}
    numbers = {each: np.full_like(values, value) for each, values in arrays.items() if values.dtype.kind == "f"}
    return changed(FILES[name], copy, {}, numbers)


BREAKS: Final[dict[str, Callable[[str, Path], object]]] = {
    "nan": lambda name, copy: filled(name, copy, np.nan),
    "inf": lambda name, copy: filled(name, copy, np.inf),
    "cut short": lambda name, copy: copy.write_bytes(FILES[name].read_bytes()[:-1000]),
    "empty": lambda name, copy: copy.write_bytes(b""),
    "other bytes": lambda name, copy: copy.write_bytes(os.urandom(4096)),
    "gone": lambda name, copy: None,
}


@pytest.mark.parametrize("how", BREAKS)
@pytest.mark.parametrize("name", FILES)
def test_a_broken_file(
    name: str, how: str, tmp_path: Path, plain: Done, derived: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / f"{name}.gguf"
    BREAKS[how](name, copy)
    monkeypatch.setattr(settings, "MEASURE_SECONDS", 1e3)  # on a busy machine too, the autopilot calls each once
    for way in ways(name)[: None if how == "nan" else 2]:  # joined ones fail alike, however the file is broken
        DrafterMemory(Path(derived), read_header(TARGET).fingerprint).write(AUTO, b"")  # none is known
        done, loaded = reply(replace(with_file(name, copy, derived), drafter=way))
        assert done.text == plain.text and done.tokens == plain.tokens, way
        assert (loaded.failed | done.failed)[name], way


@pytest.mark.parametrize("verb", ["begin", "draft", "observe"])
@pytest.mark.parametrize("name", KINDS)
def test_a_drafter_raises(name: str, verb: str, plain: Done, derived: str, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []

    def fails(*_: object) -> None:
        called.append(way)
        raise MemoryError if verb == "draft" else KeyError("the secret words of a chat")

    why = "memory ran out" if verb == "draft" else "an error in its code (KeyError)"
    for way in ways(name) if verb == "draft" else [name]:
        with monkeypatch.context() as patched:
            request = replace(with_file("draft", FILES["draft"], derived), drafter=way)
            if way == AUTO:
                patched.setattr(KINDS[name], verb, fails)  # it may never draft in so short a reply
            done, loaded = reply(request, breaks=lambda: patched.setattr(KINDS[name], verb, fails))
        assert done.text == plain.text and done.tokens == plain.tokens, way
        assert loaded.failed | done.failed == ({name: why} if way in called else {}), way
        assert way in called or way == AUTO, way  # in so short a reply it may ask others


@pytest.mark.parametrize("verb", ["on_prefill", "reading_ms", "rewind", "close"])
def test_a_drafter_that_raises_elsewhere(verb: str, plain: Done, derived: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(FeatureDrafter, verb, fails)
    for way in (AUTO, "eagle3", "lookup|eagle3"):
        done, loaded = reply(replace(with_file("draft", FILES["draft"], derived), drafter=way))
        assert done.text == plain.text and not (loaded.failed | done.failed).keys() - {"eagle3"}, way


def test_a_drafter_that_is_never_right_falls_silent_and_is_named_once(tmp_path: Path) -> None:
    filled("kangaroo", copy := tmp_path / "kangaroo.gguf", 0.0)
    asked = replace(ASKED, drafter="kangaroo", max_tokens=90)
    session, _ = load(replace(with_file("kangaroo", copy), drafter="kangaroo"), lambda _: None)
    with closing(session):
        first, second = (session.reply(asked, lambda _: None, lambda: False) for _ in range(2))
    assert first.text == second.text and second.speed.drafted < first.speed.drafted < 40
    assert "wrong" in first.silent["kangaroo"] and second.silent.keys() == {"kangaroo"}
    assert "kangaroo" in "".join(first.remarks) and not second.remarks


@pytest.mark.parametrize("way", ways("retrieval"))
@pytest.mark.parametrize("how", ["cut short", "zeros", "no file", "a file"])
def test_a_broken_index(how: str, way: str, tmp_path: Path, plain: Done, derived: str) -> None:
    header = read_header(TARGET)
    with closing(open_index(tmp_path, header)) as index:
        index.add([TextPiece("story", plain.tokens)])
    for path in [each for each in tmp_path.rglob("*") if each.is_file()]:
        if how == "cut short":
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        elif how == "zeros":
            path.write_bytes(bytes(path.stat().st_size))
        elif how == "no file":
            path.unlink()
        elif how == "a file":
            folder = path.parent
            shutil.rmtree(folder, ignore_errors=True)
            folder.write_bytes(b"")
            break
    request = Load(str(TARGET), index=str(tmp_path), exact="always", derived=derived, drafter=way)
    if how == "no file" and way != AUTO:
        with pytest.raises(UsageError, match="it needs indexed text"):  # a new index is empty
            reply(request)
        return
    done, loaded = reply(request)
    assert done.text == plain.text and (how == "no file" or (loaded.failed | done.failed)["retrieval"])


@pytest.mark.parametrize("content", [b"", b"nonsense", bytes(5000)])
def test_a_broken_table_is_learnt_anew(content: bytes, tmp_path: Path, plain: Done) -> None:
    for way in ways("recycle"):
        DrafterMemory(tmp_path, read_header(TARGET).fingerprint).write("recycle", content)
        done, loaded = reply(Load(str(TARGET), exact="always", derived=str(tmp_path), drafter=way))
        assert done.text == plain.text and not loaded.failed | done.failed, way


@pytest.mark.parametrize("size", [40, 48, 64, 72, 96])
def test_a_small_context_has_room_for_a_reply_with_every_drafter(size: int) -> None:
    asked = replace(ASKED, messages=[Message("user", "Say hi")])
    request = replace(with_file("draft", FILES["draft"]), n_ctx=size)
    alone = reply(replace(request, drafter="none"), asked)[0]
    for name in (AUTO, *KINDS, "lookup+draft", "space|medusa"):
        done, loaded = reply(replace(request, drafter=name), asked)
        assert (done.text, done.reason) == (alone.text, alone.reason), name
        assert name == AUTO or not loaded.failed | done.failed, name


class Odd(Drafter):
    name = "odd"

    def __init__(self, *drafts: Draft) -> None:
        self._drafts, self._at = drafts, 0

    def draft(self, history: History, worth: ShouldExtend, sampler: Sampler) -> Draft:
        self._at += 1
        return self._drafts[self._at % len(self._drafts)] if self._at % 3 == 0 else NO_DRAFT


def odd(tokens: list[int], probs: list[float], tree: TokenTree | None = None) -> Draft:
    return Draft(tree or TokenTree.chain(tokens), tuple(probs), ("odd",) * len(tokens))


DRAFTS: Final = {
    "a token beyond the vocabulary": odd([3, 64], [0.5, 0.5]),
    "a token below zero": odd([-1], [0.5]),
    "a mask that may be accepted": odd([65], [0.5]),
    "a probability that is not a number": odd([3], [math.nan]),
    "a probability above one": odd([3], [7.0]),
    "too few probabilities": odd([3, 4], [0.5]),
    "too many leaves": odd([*range(20)], [0.1] * 20, TokenTree((*range(20),), (ROOT,) * 20)),
}


@pytest.mark.parametrize("draft", DRAFTS.values(), ids=DRAFTS)
@pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "alone"])
def test_a_draft_that_no_target_can_evaluate(draft: Draft, guarded: bool) -> None:
    sampler, prompt, guard = Sampler(seed=2), [1, 2, 3], Guard()
    alone, _ = write(FakeTarget(), Plain(), sampler, prompt, 40)
    target = FakeTarget()
    target.use_masks(np.zeros((4, 8), np.float32))
    drafter: Drafter = Odd(draft)
    if guarded:
        drafter = guard.made("odd", lambda: Odd(draft), target.abilities)
    text, _ = write(target, drafter, sampler, prompt, 40)
    assert text == alone and bool(guard.failed) == guarded


def test_a_draft_is_cut_to_the_room_that_is_there() -> None:
    target = FakeTarget(n_ctx=20)
    drafter = Guard().made("odd", lambda: Odd(odd([5] * 30, [0.5] * 30)), target.abilities)
    for size, room in ((3, 17), (18, 2), (20, 0)):
        history = History([1] * size)
        sizes = {len(drafter.draft(history, lambda *_: True, Sampler()).tree) for _ in range(6)}
        assert sizes == {0, room} and not drafter.failed


def test_rows_that_are_not_numbers_are_blamed_on_the_draft_and_leave_nothing_behind() -> None:
    """NaN in the place of masks reaches the target's own rows where attention writes its scores down."""
    options = ContextOptions(n_ctx=512, kv="f32", flash=False, threads=1)
    with closing(LlamaModel(TARGET)) as model, closing(LlamaTarget(model, options)) as target:
        sampler, prompt = Sampler(temperature=0.0), [1, *range(60, 90)]
        alone, _ = write(target, Plain(), sampler, prompt, 60)
        target.use_masks(np.full((3, target.abilities.n_embd), np.nan, np.float32))
        guard = Guard()
        drafter = guard.made("space", lambda: Space(target.abilities, 3), target.abilities)
        text, _ = write(target, drafter, sampler, prompt, 60)
    assert text == alone and guard.failed == {"space": "what it computes is not a number"}


def test_too_large_a_draft_model_is_left_out(plain: Done, derived: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fitted(request: Load, header: Header, draft: Header | None, found: FoundDevices, **more: Any) -> Fit:
        if draft or [*more.get("heads", ())]:
            raise SlipstreamError("it does not fit this machine.")
        return fits(request, header, draft, found, **more)

    fits = module.fitted
    monkeypatch.setattr(module, "fitted", fitted)
    done, loaded = reply(replace(with_file("draft", FILES["draft"], derived), drafter="draft"))
    assert done.text == plain.text and set(loaded.failed) == set(FILES)
    assert set(loaded.failed.values()) == {"there is no memory for it beside the model"}


def test_a_target_that_is_broken_is_not_blamed_on_a_drafter(tmp_path: Path) -> None:
    header = read_header(TARGET)
    arrays = {tensor.name: read_tensor(header, tensor) for tensor in header.tensors}
    broken = changed(TARGET, tmp_path / "t.gguf", {}, {"output_norm.weight": arrays["output_norm.weight"] * np.nan})
    with pytest.raises(SlipstreamError, match="The model's output is not a number"):
        reply(Load(str(broken), drafter="lookup"))
