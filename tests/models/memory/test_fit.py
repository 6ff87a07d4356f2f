"""Where a model goes, and with which context, on machines that are made up."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.models.conftest import RawModel
from tests.models.memory.needs import need
from tests.models.sparse import MODELS, Model, dense, qwen3moe, qwen35, write_sparse

from slipstream.models import DEFAULT_CONTEXT
from slipstream.models.gguf.parse import Value
from slipstream.models.gguf.reader import Header, read_header
from slipstream.models.llama.devices import Device, Kind
from slipstream.models.llama.dry_run import DryRun
from slipstream.models.llama.target import ContextOptions
from slipstream.models.memory.fit import Fit, FitOptions, estimate
from slipstream.models.memory.fit import fit as fitted
from slipstream.models.memory.need import size_of
from slipstream.models.memory.room import MARGIN
from slipstream.models.types import KvType

GB = 10**9
_KEPT_FREE = 512 << 20  # of each GPU
CASES: tuple[tuple[int, KvType], ...] = ((512, "f16"), (2048, "f16"), (4096, "q8_0"), (1024, "q4_0"))
WITHIN = 0.05

Logged = dict[tuple[str, int], dict[str, int]]


def cpu(total: float, free: float | None = None) -> Device:
    return Device("CPU", "cpu", "a processor", round(total * GB), round((0.9 * total if free is None else free) * GB))


def gpu(total: float, free: float | None = None, kind: Kind = "gpu") -> Device:
    return Device("GPU0", kind, "a GPU", round(total * GB), round((0.95 * total if free is None else free) * GB))


def fit(header: Header, devices: list[Device], n_ctx: int | None = None, **options: Any) -> Fit:
    return fitted(header, devices, FitOptions(n_ctx=n_ctx, **options))


def llama(width: int, layers: int, inner: int, head: int = 128) -> Model:
    return dense("llama", width, layers, width // head, 8, head, inner, 128_256, False)


@pytest.fixture
def made(tmp_path: Path) -> Callable[[Model], Header]:
    def make(model: Model) -> Header:
        return read_header(write_sparse(tmp_path / f"{len(list(tmp_path.iterdir()))}.gguf", model))

    return make


@pytest.fixture
def eight(made: Callable[[Model], Header]) -> Header:
    """A model of 8.5 GB, as Llama 3.1 8B in Q8_0."""
    return made(llama(4096, 32, 14_336))


@pytest.fixture
def four(made: Callable[[Model], Header]) -> Header:
    return made(llama(3072, 30, 8192))


@pytest.fixture
def tiny(made: Callable[[Model], Header]) -> Header:
    return made(dense("llama", 576, 6, 9, 3, 64, 1536, 32_000, True))


def test_the_whole_on_the_gpu_is_best_and_what_it_cannot_hold_is_split(four: Header, eight: Header) -> None:
    chosen = fit(four, [gpu(8), cpu(16)])
    assert (chosen.verdict, chosen.gpu_layers, chosen.n_ctx, chosen.kv_type) == ("gpu", -1, DEFAULT_CONTEXT, "f16")
    assert chosen.need == need(four, DEFAULT_CONTEXT, gpu_layers=-1)
    assert 0 < chosen.need.gpu < chosen.need.total  # the embedding stays beside it
    chosen = fit(eight, [gpu(8), cpu(16)])
    assert (chosen.verdict, chosen.n_ctx, chosen.kv_type) == ("split", DEFAULT_CONTEXT, "f16")
    assert 1 < chosen.gpu_layers < 33
    budget = 0.95 * 8 * GB - (512 << 20)
    assert chosen.need.gpu * 1.05 <= budget < need(eight, DEFAULT_CONTEXT, gpu_layers=chosen.gpu_layers + 1).gpu * 1.05
    assert f"{chosen.gpu_layers} of 33 layers" in chosen.why


def test_the_cache_is_packed_before_the_context_is_cut_and_that_before_layers_leave_the_gpu(four: Header) -> None:
    roomy, tight = need(four, DEFAULT_CONTEXT, "f16", -1).gpu, need(four, DEFAULT_CONTEXT, "q8_0", -1).gpu
    free = ((roomy + tight) / 2 * 1.05 + (512 << 20)) / GB
    chosen = fit(four, [gpu(8, free), cpu(16)])
    assert (chosen.verdict, chosen.n_ctx, chosen.kv_type) == ("gpu", DEFAULT_CONTEXT, "q8_0")
    shorter = max(DEFAULT_CONTEXT // 2, 4096)  # the shortest that is better than a split
    free = (need(four, shorter, "q8_0", -1).gpu * 1.06 + (512 << 20)) / GB
    chosen = fit(four, [gpu(8, free), cpu(16)])
    assert (chosen.verdict, chosen.n_ctx) == ("gpu", shorter)
    free = (need(four, 512, "q8_0", -1).gpu * 1.06 + (512 << 20)) / GB
    chosen = fit(four, [gpu(8, free), cpu(16)])
    assert chosen.verdict == "split" and chosen.n_ctx == DEFAULT_CONTEXT


def test_without_a_gpu_or_with_one_that_is_taken_a_model_goes_to_memory(eight: Header, four: Header) -> None:
    chosen = fit(eight, [cpu(16)])
    assert (chosen.verdict, chosen.gpu_layers, chosen.n_ctx, chosen.need.gpu) == ("memory", 0, DEFAULT_CONTEXT, 0)
    assert chosen.why.endswith(f"; a model may take {(0.9 - 0.1) * 16 * GB / MARGIN / 1e9:.1f} GB of memory.")
    chosen = fit(four, [gpu(8, 0.3), cpu(16)])
    assert (chosen.verdict, chosen.gpu_layers) == ("memory", 0)
    assert "none of it on a GPU" in chosen.why
    free = (need(four, 1024, "q8_0").total * 1.051 + (1 << 30)) / GB
    chosen = fit(four, [cpu(8, free)])
    assert (chosen.verdict, chosen.n_ctx) == ("memory", 1024)


def test_memory_of_gpus_counts_once_and_adds_up(eight: Header) -> None:
    # Apple silicon: 12 of 16 GB for the GPU; 9.8 GB fit once, not twice.
    assert fit(eight, [gpu(12, 12, "igpu"), cpu(16)]).verdict == "gpu"
    both = fit(eight, [gpu(7, 7, "igpu"), cpu(10, 9)])
    assert both.verdict == "too big"
    assert fit(eight, [gpu(8), cpu(16)]).verdict == "split"
    both = fit(eight, [gpu(8), gpu(8), cpu(16)])
    assert (both.verdict, both.gpu_layers) == ("gpu", -1)
    assert both.need.compute > need(eight, DEFAULT_CONTEXT, gpu_layers=-1).compute  # each has a buffer of its own


def two_gpus(first: float, second: float) -> list[Device]:
    return [replace(gpu(first), name="GPU0"), replace(gpu(second), name="GPU1"), cpu(16)]


def lent(total: float, number: int = 0) -> Device:
    size = round(total * GB)
    return Device(f"mac:50052/{number}", "gpu", "mac:50052", size, size, "mac:50052")


@pytest.mark.parametrize("sizes", [(8, 8), (6, 12), (12, 6)])
def test_layers_are_shared_out_by_room_and_each_gpu_holds_its_own(eight: Header, sizes: tuple[int, int]) -> None:
    devices = two_gpus(*sizes)
    chosen = fit(eight, devices, 4096)
    assert chosen.verdict == "gpu" and list(chosen.shares) == ["GPU0", "GPU1"]
    assert sum(chosen.shares.values()) == 33
    for taken, device in zip(chosen.need.on, devices, strict=False):
        assert taken * 1.05 <= device.free_bytes - (512 << 20)
    smaller, larger = sorted(chosen.shares.values())
    assert larger > smaller if sizes[0] != sizes[1] else larger - smaller <= 2
    assert (chosen.shares["GPU0"] > chosen.shares["GPU1"]) == (sizes[0] > sizes[1]) or sizes[0] == sizes[1]


def test_shares_that_are_asked_for_are_kept_and_no_gpu_is_promised_more_than_its_own_room(eight: Header) -> None:
    # One GPU of 12 GB beside one that is nearly full: their sum would do, each GPU's own room does not.
    chosen = fit(eight, [replace(gpu(8, 7.0), name="GPU0"), replace(gpu(8, 1.0), name="GPU1"), cpu(16)])
    assert chosen.verdict == "split"
    assert chosen.need.on[0] * 1.05 <= 7.0 * GB - (512 << 20)
    chosen = fit(eight, two_gpus(16, 16), split=[3.0, 1.0])
    assert chosen.shares == {"GPU0": 25, "GPU1": 8}
    alone = fit(eight, two_gpus(16, 16), split=[0.0, 1.0])
    assert alone.shares == {"GPU1": 33}


def test_another_machine_holds_what_this_ones_gpu_cannot(eight: Header) -> None:
    alone = fit(eight, [cpu(8)])
    assert alone.verdict == "too big"
    chosen = fit(eight, [cpu(8), lent(16)])
    assert (chosen.verdict, chosen.machines, chosen.shares) == ("gpu", ["mac:50052"], {"mac:50052/0": 33})
    assert not chosen.on_own_gpus and "all on mac:50052" in chosen.why and "GB on mac:50052 and" in chosen.why
    assert fit(eight, [gpu(16), cpu(16), lent(16)]).machines == []
    assert fit(eight, [gpu(16), cpu(16), lent(16)]).on_own_gpus
    both = fit(eight, [gpu(6), cpu(16), lent(8)])
    assert both.verdict == "gpu" and both.machines == ["mac:50052"] and list(both.shares) == ["GPU0", "mac:50052/0"]
    assert both.on_own_gpus
    assert "of 33 layers on the GPU and" in both.why and "of 33 layers on mac:50052" in both.why


def test_a_draft_model_counts_where_it_lies(four: Header, tiny: Header) -> None:
    devices = two_gpus(8, 8)
    first, second = (fit(four, devices, draft=tiny, draft_device=name, split=[1.0, 1.0]) for name in ("GPU0", "GPU1"))
    beside = fit(four, devices, draft=tiny, draft_device="CPU", split=[1.0, 1.0])
    assert first.need.on[0] > second.need.on[0] and second.need.on[1] > first.need.on[1]
    assert beside.need.gpu < first.need.gpu


def test_too_big_says_which_quantization_size_or_context_fits(eight: Header, made: Callable[[Model], Header]) -> None:
    chosen = fit(eight, [cpu(8)])
    assert chosen.verdict == "too big" and chosen.gpu_layers == 0
    assert "Needs 9." in chosen.why and "It would fit as " in chosen.why and "Q8_0" not in chosen.why
    chosen = fit(made(llama(8192, 80, 28_672)), [cpu(16)])
    assert chosen.verdict == "too big" and "A model of up to about 18 billion parameters would fit" in chosen.why
    machine = [cpu(14)]
    chosen = fit(eight, machine, n_ctx=131_072)
    assert (chosen.verdict, chosen.n_ctx) == ("too big", 131_072)
    length = int(chosen.why.split("A context of ")[1].split()[0].replace(",", ""))
    assert fit(eight, machine, n_ctx=length).verdict == "memory"
    assert fit(eight, machine, n_ctx=length + 256).verdict == "too big"


def test_who_asks_for_context_gets_what_was_trained(eight: Header, made: Callable[[Model], Header]) -> None:
    assert fit(eight, [cpu(64)], n_ctx=32_768).n_ctx == 32_768 and fit(eight, [cpu(64)], n_ctx=100).n_ctx == 100
    architecture, metadata, tensors, vocabulary = llama(1024, 2, 2048)
    header = made((architecture, {**metadata, "context_length": 1024}, tensors, vocabulary))
    assert fit(header, [cpu(16)]).n_ctx == 1024


@pytest.fixture
def routed(made: Callable[[Model], Header]) -> Header:
    return made(qwen3moe(2048, 8, 32, 128, 32, 8, 768))


def test_experts_stay_in_memory_before_whole_layers_do(routed: Header) -> None:
    whole = fit(routed, [gpu(64), cpu(64)], n_ctx=2048)
    assert (whole.verdict, whole.cpu_experts) == ("gpu", 0)
    experts = [layer.experts for layer in size_of(routed).layers]
    assert sum(experts) > 0.5 * whole.need.weights
    before = 9
    for share in (0.9, 0.7, 0.5):
        room = gpu(64, (share * whole.need.gpu * MARGIN + _KEPT_FREE) / GB)
        chosen = fit(routed, [room, cpu(64)], n_ctx=2048)
        assert (chosen.verdict, chosen.gpu_layers) == ("split", -1) and 0 < chosen.cpu_experts <= 8
        assert MARGIN * chosen.need.gpu <= room.free_bytes - _KEPT_FREE
        assert f"experts of {chosen.cpu_experts} layers in memory" in chosen.why
        fewer = fit(routed, [room, cpu(64)], n_ctx=2048, cpu_experts=chosen.cpu_experts - 1)
        assert fewer.cpu_experts == 0 or fewer.gpu_layers > 0 or fewer.verdict == "memory", "fewer would have fit"
        assert chosen.cpu_experts <= 8 and (before == 9 or chosen.cpu_experts >= before)
        before = chosen.cpu_experts
    assert fit(routed, [gpu(64), cpu(64)], n_ctx=2048, cpu_experts=3).cpu_experts == 3
    assert fit(routed, [cpu(64)], n_ctx=2048, cpu_experts=3).cpu_experts == 0


def test_a_hybrid_keeps_copies_of_its_state_where_something_drafts(made: Callable[[Model], Header]) -> None:
    header = made(qwen35(1024, 8, 3584, 16, 65_536))
    one, plain = (fit(header, [cpu(64)], n_ctx=256, drafts=drafts).need for drafts in (True, False))
    assert one.kv - plain.kv >= 8 * 6 * 4 * 128 * 128 * 16 and plain.weights == one.weights
    header = made(qwen35(1024, 8, 3584, 16, 65_536))
    assert need(header, 8192).kv - need(header, 4096).kv == 4096 * 2 * 2 * 2 * 256 * 2  # two layers with cells
    assert need(header, 256).kv > 9 * 6 * 4 * 128 * 128 * 16  # nine copies of the states of six layers


def test_heads_that_cannot_be_packed_keep_f16(made: Callable[[Model], Header]) -> None:
    header = made(dense("llama", 480, 4, 10, 10, 48, 1024, 32_000, True))
    free = need(header, 1024, "f16").total / 0.7 / GB
    assert fit(header, [cpu(2, free)]).kv_type == "f16"


def test_what_was_measured_counts_and_a_silent_system_refuses_nobody(eight: Header, tiny: Header) -> None:
    assert fit(eight, [cpu(0, 0)]).verdict == "memory"
    machine = [cpu(2, 0.3)]
    assert fit(tiny, machine).verdict == "memory"
    assert fit(tiny, machine, measure=lambda n_ctx, kv, scores: GB).verdict == "too big"
    assert fit(tiny, machine, measure=lambda n_ctx, kv, scores: None).verdict == "memory"  # no answer: counted here


def test_scores_that_are_written_down_take_memory_on_the_processor_alone(eight: Header) -> None:
    with_scores, without = (fit(eight, [cpu(64)], n_ctx=8192, scores=scores) for scores in (True, False))
    assert with_scores.need == need(eight, 8192, flash=False) != without.need == need(eight, 8192)
    packed = {fit(eight, [cpu(64)], kv_type="q8_0", scores=scores).need for scores in (True, False)}
    assert len(packed) == 1  # flash attention alone reads that
    asked: list[bool] = []

    def measure(n_ctx: int, kv: str, scores: bool) -> None:
        asked.append(scores)

    assert fit(eight, [gpu(24), cpu(64)], scores=True, measure=measure).verdict == "gpu"
    assert asked and not any(asked)
    fit(eight, [cpu(64)], scores=True, measure=measure)
    assert asked[-1]


@pytest.mark.parametrize(
    ("size", "params", "verdict"),
    [(2.5, 4e9, "gpu"), (2.5, 0, "gpu"), (8.5, 8e9, "split"), (20, 32e9, "too big"), (42, 70e9, "too big")],
)
def test_an_estimate_needs_no_header(size: float, params: float, verdict: str) -> None:
    chosen = estimate(round(size * GB), round(params), [gpu(8), cpu(16)], 32_768)
    assert chosen.verdict == verdict and chosen.need.weights == pytest.approx(size * GB, rel=0.2)


def test_an_estimate_is_near_the_truth_and_counts_the_draft_model(eight: Header, four: Header) -> None:
    for header, params in ((eight, 8e9), (four, 3.6e9)):
        rough: Fit = estimate(header.weight_bytes, round(params), [cpu(64)], header.n_ctx_train)
        assert rough.need.total == pytest.approx(need(header, DEFAULT_CONTEXT).total, rel=0.1)
    alone, both = (estimate(4 * GB, 0, [cpu(64)], draft_size=size) for size in (0, GB // 2))
    assert GB // 2 < both.need.extras == both.need.total - alone.need.total


@pytest.mark.parametrize("lie", [0, -1, 1 << 63, 1.5, "x", True, [], ["a"], [1], [-1, 0]])
@pytest.mark.parametrize(
    "key", ["attention.head_count", "attention.head_count_kv", "nextn_predict_layers", "block_count"]
)
def test_a_header_that_lies_is_counted_somehow(key: str, lie: Value, tiny: Header) -> None:
    lying = replace(tiny, metadata={**tiny.metadata, f"llama.{key}": lie})
    assert fit(lying, [gpu(8), cpu(16)]).need.total > 0


def test_a_header_that_says_little_is_counted_all_the_same(model: RawModel, save: Callable[..., Path]) -> None:
    """Tensors of other names, and no layers at all."""
    header = read_header(save(model))
    assert need(header, 64).weights == header.weight_bytes and fit(header, [cpu(8)]).verdict == "memory"


def test_metal_keeps_more_of_its_working_set_free(eight: Header) -> None:
    """Where it overflows, Metal ends the process."""
    whole = need(eight, 8192, gpu_layers=-1).gpu * 1.06
    for kept, verdict in ((2 << 30, "gpu"), (1 << 30, "split")):
        mac = replace(gpu(64, (whole + kept) / GB, "igpu"), name="MTL0")
        chosen = fit(eight, [mac, cpu(64)], 8192)
        assert chosen.verdict == verdict and chosen.taken <= chosen.room


@pytest.fixture(scope="module")
def headers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Header]:
    folder = tmp_path_factory.mktemp("sparse")
    return {name: read_header(write_sparse(folder / f"{name}.gguf", make())) for name, make in MODELS.items()}


@pytest.fixture(scope="module")
def logged(headers: dict[str, Header]) -> Logged:
    asked = json.dumps([[str(header.path), [(*case, False) for case in CASES]] for header in headers.values()])
    command = [sys.executable, str(Path(__file__).with_name("fit_child.py")), asked]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    return {
        (name, n_ctx): answer
        for name, each in zip(headers, answers, strict=True)
        for (n_ctx, _), answer in zip(CASES, each, strict=True)
    }


@pytest.mark.slow
@pytest.mark.parametrize(("n_ctx", "kv"), CASES)
@pytest.mark.parametrize("name", MODELS)
def test_need_is_what_it_takes(name: str, n_ctx: int, kv: KvType, headers: dict[str, Header], logged: Logged) -> None:
    counted, taken = need(headers[name], n_ctx, kv), logged[name, n_ctx]
    assert counted.total == pytest.approx(sum(taken.values()), rel=WITHIN)
    assert counted.weights == pytest.approx(taken["weights"], rel=0.01)
    assert counted.kv == pytest.approx(taken["kv"], rel=0.01, abs=1 << 14)  # the log gives hundredths of a MiB
    assert counted.compute == pytest.approx(taken["compute"], rel=0.3)


@pytest.mark.parametrize("name", MODELS)
def test_a_dry_run_knows_the_buffer_exactly(name: str, headers: dict[str, Header], logged: Logged) -> None:
    header = headers[name]
    run = DryRun(header.path)
    for n_ctx, kv in CASES:
        options = ContextOptions(n_ctx=n_ctx, kv=kv)
        graph = run.graph_bytes(options)
        assert graph is not None
        logits = 4 * options.max_rows * header.n_vocab
        assert graph + logits == pytest.approx(logged[name, n_ctx]["compute"], abs=1 << 20)  # of 16 roundings of 0.01
    run.close()


def test_scores_and_draft_models_are_counted_too(headers: dict[str, Header]) -> None:
    header = headers["llama-1b"]
    run = DryRun(header.path)
    taken = run.graph_bytes(ContextOptions(n_ctx=4096, flash=False))
    run.close()
    assert taken is not None
    assert need(header, 4096, flash=False).compute == pytest.approx(taken + 4 * 64 * header.n_vocab, rel=WITHIN)
    target, draft = headers["qwen3-4b"], headers["qwen3-0.6b"]
    both, alone = need(target, 4096, draft=draft), need(target, 4096)
    small = need(draft, 4096, leaves=4)
    assert both.total == alone.total + small.total
