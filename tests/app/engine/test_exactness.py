"""A model decodes bit-equally where that is proven and cheap, or where it is asked for; the proof is kept."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from tests.models.kinds import KINDS, write_kind

from slipstream.app.engine import exactness
from slipstream.app.engine.calibrate import SAMPLE_TEXT
from slipstream.app.engine.exactness import SAME_DISTRIBUTION, SAME_TEXT, Proof, prove
from slipstream.app.engine.load import load
from slipstream.app.engine.stats import OtherPrograms
from slipstream.app.library.load_request import BUNDLED_TARGET
from slipstream.app.platform.paths import Paths
from slipstream.app.protocol.events import Loaded, Prefilling, Stepped
from slipstream.app.protocol.requests import Exact, Generate, Load, Message
from slipstream.models.gguf.reader import read_header
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.placement import Placement
from slipstream.models.llama.target import ContextOptions
from slipstream.models.memory.need import size_of

TARGET = Paths.default({}).bundled / BUNDLED_TARGET
STRICT = ContextOptions(n_ctx=512, kv="q8_0", flash=True, same_text=True)


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaModel]:
    with closing(LlamaModel(TARGET, placement=Placement(0, ()))) as opened:
        yield opened


def test_the_bundled_target_earns_its_promise_and_an_f16_cache_does_not(model: LlamaModel) -> None:
    text = model.tokenize(SAMPLE_TEXT, special=False) * 4
    with closing(LlamaTarget(model, STRICT)) as target:
        assert prove(target, text, (2, 1)) == Proof() and not target.tokens
        assert prove(target, text, (2, 1), most=1e-6).why.endswith("--exact always makes it")
    with closing(LlamaTarget(model, replace(STRICT, values="f16"))) as target:
        assert prove(target, text, (2, 1)) == Proof()
    with closing(LlamaTarget(model, ContextOptions(n_ctx=512, flash=True, same_text=True))) as target:
        assert "its logits differ by up to" in prove(target, text, (2, 1)).why


def loaded(folder: Path | None, exact: Exact = "auto", kv_type: str = "auto") -> Loaded:
    place = str(folder) if folder else None
    session, found = load(Load(str(TARGET), exact=exact, proofs=place, kv_type=kv_type, n_ctx=512), lambda _: None)
    session.close()
    return found


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    beside(monkeypatch, busy=False)


def beside(monkeypatch: pytest.MonkeyPatch, busy: bool) -> None:
    monkeypatch.setattr(OtherPrograms, "busy_at_last", lambda _: busy)


@pytest.mark.parametrize(("slower", "promise"), [(0.029, SAME_TEXT), (0.031, SAME_DISTRIBUTION)])
def test_exact_decoding_is_the_default_where_it_is_cheap(
    slower: float, promise: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(exactness, "measure_cost", lambda *_: slower)
    found = loaded(tmp_path)
    assert found.promise == promise and bool(found.promise_why) == (promise != SAME_TEXT)
    assert loaded(tmp_path, "always").promise == SAME_TEXT and loaded(tmp_path, "never").promise == SAME_DISTRIBUTION
    monkeypatch.setattr(exactness, "prove", None)  # kept, with its cost
    monkeypatch.setattr(exactness, "measure_cost", None)
    assert loaded(tmp_path).promise == promise
    if promise != SAME_TEXT:
        assert "3 % slower" in found.promise_why


@pytest.mark.parametrize(("slower", "promise"), [(0.02, SAME_TEXT), (0.25, SAME_DISTRIBUTION)])
def test_a_busy_machine_decides_nothing_for_good(
    slower: float, promise: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(exactness, "measure_cost", lambda *_: 0.09)
    beside(monkeypatch, busy=True)
    assert [loaded(tmp_path).promise for _ in range(2)] == 2 * [SAME_TEXT]
    monkeypatch.setattr(exactness, "measure_cost", lambda *_: slower)
    beside(monkeypatch, busy=False)
    found = loaded(tmp_path)
    assert found.promise == promise
    assert ("the cost of bit-equal logits has changed" in found.remark) == (promise != SAME_TEXT)
    beside(monkeypatch, busy=True)
    assert loaded(tmp_path).promise == promise and not loaded(tmp_path).remark


def test_a_cache_that_is_not_quantized_is_no_promise(tmp_path: Path) -> None:
    for exact in ("auto", "always"):
        found = loaded(tmp_path, exact, "f16")
        assert (found.promise, found.promise_why) == (SAME_DISTRIBUTION, "its KV cache is f16")
    assert loaded(None).promise == SAME_DISTRIBUTION  # nothing is measured that is not kept


def test_a_long_proof_is_made_only_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(exactness, "measure_cost", lambda *_: 0.0)
    for busy in (True, False):
        beside(monkeypatch, busy)
        with monkeypatch.context() as patched:
            patched.setattr(exactness, "_MOST_SECONDS", 1e-6)
            assert "its proof would take" in loaded(tmp_path / str(busy)).promise_why
        # on a busy machine, that is not known for good
        assert (loaded(tmp_path / str(busy)).promise == SAME_TEXT) == busy
    assert loaded(tmp_path / "False", "always").promise == SAME_TEXT


def test_a_proof_that_ends_the_process_does_so_twice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def crashing(*_: object) -> Proof:
        raise KeyboardInterrupt  # passes every handler of errors, as a crash does

    monkeypatch.setattr(exactness, "measure_cost", lambda *_: 0.0)
    with monkeypatch.context() as patched:
        patched.setattr(exactness, "prove", crashing)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                loaded(tmp_path)
        assert loaded(tmp_path).promise_why == "its proof did not end"
    assert loaded(tmp_path, "always").promise == SAME_TEXT


def test_the_user_hears_that_llama_cpp_has_changed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert not loaded(tmp_path, "always").remark
    monkeypatch.setattr("slipstream.app.engine.load.built", lambda: "another build")
    assert "llama.cpp has changed" in loaded(tmp_path, "always").remark and not loaded(tmp_path, "always").remark


@pytest.mark.parametrize(("exact", "fixed"), [("never", True), ("always", False)])
def test_no_clock_chooses_chunks_or_threads_where_they_would_change_the_text(
    exact: Exact, fixed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, _ = load(Load(str(TARGET), exact=exact, n_ctx=2048), lambda _: None)
    with closing(session):
        assert (session.model.threads is None) == fixed
        chunks = []
        for seconds in (0.0, 100.0):  # as on a slow machine, and on a fast one
            monkeypatch.setattr("slipstream.models.llama.chunk_reader._CHUNK_SECONDS", seconds)
            session.forget()
            told: list[int] = []
            request = Generate(1, [Message("user", SAMPLE_TEXT * 2)], max_tokens=1)

            def tell(event: Prefilling | Stepped, told: list[int] = told) -> None:
                told.extend([event.done] if isinstance(event, Prefilling) else [])

            session.reply(request, tell, bool)
            chunks.append(told)
        assert (chunks[0] == chunks[1]) == fixed


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_memory_is_proven_or_says_why_not(kind: str, tmp_path: Path) -> None:
    file = write_kind(tmp_path / f"{kind}.gguf", kind, q8_0=True, head=32)
    session, found = load(Load(str(file), n_ctx=512, proofs=str(tmp_path)), lambda _: None)
    session.close()
    packable = size_of(read_header(file)).packable
    assert found.promise == SAME_TEXT or found.promise_why
    assert ("cannot be quantized" in found.promise_why) != packable and "the proof failed" not in found.promise_why
