"""How the engine opens a model: as it did where there is room, smaller where there is not, and not at all."""

from pathlib import Path

import pytest
from tests.models.kinds import write_kind
from tests.models.memory.needs import need
from tests.models.sparse import dense, write_sparse

from slipstream.app.engine.devices import FoundDevices
from slipstream.app.engine.load import load
from slipstream.app.engine.plan import fitted, options_for
from slipstream.app.library.resolve_model import choose
from slipstream.app.platform.paths import Paths
from slipstream.app.protocol.requests import Load
from slipstream.models import DEFAULT_CONTEXT
from slipstream.models.errors import SlipstreamError
from slipstream.models.gguf.reader import Header, read_header
from slipstream.models.llama.devices import Device
from slipstream.models.llama.dry_run import DryRun

GB = 10**9


def machine(memory: float, gpu: float = 0.0) -> FoundDevices:
    cpu = Device("CPU", "cpu", "a processor", round(2 * memory), round(memory))
    return FoundDevices((*([Device("GPU0", "gpu", "a GPU", round(gpu), round(gpu))] if gpu else []), cpu))


@pytest.fixture
def header(tmp_path: Path) -> Header:
    return read_header(write_sparse(tmp_path / "m.gguf", dense("llama", 2048, 14, 32, 8, 64, 8192, 32_000, True)))


def test_the_bundled_model_is_opened_as_ever(tmp_path: Path) -> None:
    paths = Paths.default({"SLIPSTREAM_HOME": str(tmp_path)})
    request = choose(paths)
    target, draft = read_header(Path(request.model)), read_header(Path(request.draft_model or ""))
    chosen = fitted(request, target, draft, found=machine(8 * GB))
    assert (chosen.n_ctx, chosen.kv_type, chosen.gpu_layers) == (target.n_ctx_train, "f16", 0)


def test_models_are_opened_in_their_own_context_on_a_gpu_unless_the_owner_says_otherwise(header: Header) -> None:
    chosen = fitted(Load(model=str(header.path)), header, None, found=machine(8 * GB))
    assert (chosen.n_ctx, chosen.kv_type, chosen.gpu_layers) == (DEFAULT_CONTEXT, "f16", 0)
    both = machine(8 * GB, 6 * GB)
    assert fitted(Load(model=""), header, None, found=both).gpu_layers == -1
    assert fitted(Load(model="", gpu_layers=0), header, None, found=both).verdict == "memory"
    assert fitted(Load(model="", gpu_layers=5), header, None, found=both).gpu_layers == 5
    with pytest.raises(SlipstreamError, match="does not fit this machine") as refused:
        fitted(Load(model=""), header, None, found=machine(0.5 * GB))
    assert "weights" in refused.value.hint and "would fit" in refused.value.hint


def test_where_it_is_tight_llama_cpp_is_asked(header: Header, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    true_answer = DryRun.graph_bytes

    def remembered(self: DryRun, options: object) -> int | None:
        answer = true_answer(self, options)  # type: ignore[arg-type]
        asked.append(answer)
        return answer

    monkeypatch.setattr(DryRun, "graph_bytes", remembered)
    assert fitted(Load(model=""), header, None, found=machine(16 * GB)).n_ctx == DEFAULT_CONTEXT
    assert not asked
    tight = need(header, DEFAULT_CONTEXT).total * 1.05 / 0.75 * 1.02
    chosen = fitted(Load(model=""), header, None, found=machine(tight))
    assert asked
    assert chosen.need.compute == (asked[0] or 0) + 4 * 64 * header.n_vocab
    assert (chosen.verdict, chosen.n_ctx) == ("memory", DEFAULT_CONTEXT)


def test_a_context_that_does_not_fit_is_refused_before_a_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_kind(tmp_path / "m.gguf", "llama", head=1024, more={"context_length": 1 << 24})
    monkeypatch.setattr("slipstream.app.engine.load.LlamaModel", None)  # to open one would be a TypeError
    with pytest.raises(SlipstreamError, match="with a context of 16,777,216 tokens does not fit") as refused:
        load(Load(model=str(path), n_ctx=1 << 24), lambda share: None)
    assert "A context of " in refused.value.hint and "tokens would fit." in refused.value.hint


def test_what_is_far_too_large_is_not_tried_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_sparse(tmp_path / "m.gguf", dense("llama", 16_384, 126, 128, 8, 128, 53_248, 128_256, True))
    monkeypatch.setattr("slipstream.app.engine.plan.check_vocabulary", lambda header: None)  # it has no tokens
    monkeypatch.setattr("slipstream.app.engine.plan.find", lambda request: machine(8 * GB))
    monkeypatch.setattr("slipstream.app.engine.plan.probe_once", None)  # to try it would be a TypeError
    with pytest.raises(SlipstreamError, match="does not fit this machine"):
        load(Load(model=str(path), probed=str(tmp_path / "probed.json")), lambda share: None)


def test_heads_and_draft_models_are_counted(header: Header, tmp_path: Path) -> None:
    heads = tmp_path / "heads.gguf"
    heads.write_bytes(bytes(1 << 20))
    with_heads, without = (fitted(Load(model=""), header, None, machine(8 * GB), each) for each in ([heads], []))
    assert with_heads.need.extras - without.need.extras == 1 << 20
    room = need(header, DEFAULT_CONTEXT).total * 1.05 / 0.75 * 1.1
    assert fitted(Load(model=""), header, None, found=machine(room)).n_ctx == DEFAULT_CONTEXT
    with pytest.raises(SlipstreamError, match="does not fit this machine"):
        fitted(Load(model=""), header, header, found=machine(room))


def test_the_type_of_the_cache_may_be_asked_for(header: Header) -> None:
    for kind in ("f16", "q8_0", "q4_0"):
        chosen = fitted(Load(model="", kv_type=kind), header, None, found=machine(8 * GB))
        assert chosen.kv_type == kind
        assert options_for(Load(model=""), 512, chosen.kv_type).flash is (None if kind == "f16" else True)
    sizes = [
        fitted(Load(model="", kv_type=kind), header, None, found=machine(8 * GB)).need.kv
        for kind in ("f16", "q8_0", "q4_0")
    ]
    assert sizes[0] * 34 // 64 == sizes[1] and sizes[0] * 18 // 64 == sizes[2]
