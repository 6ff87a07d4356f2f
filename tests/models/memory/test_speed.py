"""How fast a model is predicted to write, and what that is predicted from."""

import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from tests.bench.waiting import busy
from tests.models.kinds import write_kind

from slipstream.models.gguf.reader import read_header
from slipstream.models.llama.library import physical_cores
from slipstream.models.memory.fit import Fit
from slipstream.models.memory.need import Need
from slipstream.models.memory.row_cost import ROWS, Products, best_gain, better_types, pass_costs, type_of
from slipstream.models.memory.speed import Bandwidth, assumed, bytes_read, measure, packed, predict, row_times, unpacked

GB = 1_000_000_000
SLOW, QUICK = Bandwidth("cpu", 20e9), Bandwidth("gpu", 800e9)


def placed(verdict: str, on_gpu: int = 0) -> Fit:
    return Fit(verdict, 0, 8192, "f16", Need(8 * GB, 0, 0, (on_gpu,)), "")  # type: ignore[arg-type]


def test_a_token_takes_the_bytes_it_reads_over_the_bandwidth_of_each_device() -> None:
    found = predict(3.0 * GB, placed("memory"), [SLOW])
    assert found and found.tok_per_s == pytest.approx(20 / 3)
    assert predict(12e6, placed("memory"), [SLOW]) is None  # it fits in a cache
    places = (placed("memory"), placed("split", 4 * GB), placed("gpu", 8 * GB))
    speeds = [found.tok_per_s for fit in places if (found := predict(8.0 * GB, fit, [SLOW, QUICK]))]
    assert speeds == pytest.approx([2.5, 1 / (0.2 + 0.005), 100])
    assert predict(8.0 * GB, placed("gpu"), [SLOW]) is None  # its place was not measured
    assert predict(8.0 * GB, placed("too big"), [SLOW, QUICK]) is None


def test_only_the_experts_and_embeddings_that_a_token_uses_are_read(tmp_path: Path) -> None:
    header = read_header(write_kind(tmp_path / "m.gguf", "llama"))
    sizes = {tensor.name: tensor.nbytes for tensor in header.tensors}
    tied = "output.weight" not in sizes
    assert sum(bytes_read(header).values()) == sum(sizes.values()) - (0 if tied else sizes["token_embd.weight"])
    header = read_header(write_kind(tmp_path / "m.gguf", "qwen3moe"))
    used, count = header.number("expert_used_count"), header.number("expert_count")
    experts = sum(tensor.nbytes for tensor in header.tensors if "_exps" in tensor.name)
    every = replace(header, metadata={**header.metadata, "qwen3moe.expert_used_count": count or 0})
    assert used and count and used < count and experts
    few, all_of_them = (sum(bytes_read(each).values()) for each in (header, every))
    assert few == pytest.approx(all_of_them - experts * (1 - used / count))


@pytest.mark.slow
def test_this_machine_is_really_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.models.memory.speed._BYTES", {"cpu": 4 << 20, "gpu": 4 << 20})
    found = measure("cpu")
    assert found and found.kind == "cpu" and 1e7 < found.bytes_per_s < 1e13
    assert {"Q4_0", "Q4_1", "Q8_0", "Q4_K", "BF16"} <= found.rows.keys()
    assert all(0 < times[1] < times[16] < 100 * times[1] for times in found.rows.values())
    assert unpacked(f"a driver's words\n{packed([found])}\n{{}}\n") == [found]
    assert unpacked("nothing") == [] == unpacked('{"bandwidth": [1]}')


@pytest.mark.slow
def test_other_programs_hardly_change_a_reading() -> None:
    """All threads wait for the one that is disturbed most; a reading is no less than what one thread reads."""
    shape = (4096, 2432)
    with busy(3 * physical_cores()), ExitStack() as opened:
        found, one = measure("cpu"), Products("cpu", opened, 1)
        least = 4096 * 2432 * 8.5 / 8 / one.seconds(8, shape, 8, (1,), 0.3)[1]
    assert found and found.bytes_per_s > 0.8 * least


def test_the_measurement_ends_with_its_parent() -> None:
    command = [sys.executable, "-m", "slipstream.models.memory.speed"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
    assert done.returncode == 1 and not done.stdout  # whoever started it has closed its standard input


def test_a_prediction_says_what_it_is_predicted_from() -> None:
    busy = replace(QUICK, basis="busy")
    bases = [predict(1.0 * GB, placed(*each), [SLOW, busy]) for each in (("memory",), ("split", 5), ("gpu",))]
    assert [each.basis for each in bases if each] == ["measured", "busy", "busy"]
    usual = predict(1.0 * GB, placed("memory"), assumed(2, gpu=False))
    assert usual and usual.basis == "assumed"
    assert unpacked(packed([busy])) == [busy]
    (few,), (many, gpu) = assumed(2, gpu=False), assumed(64, gpu=True)
    assert few.bytes_per_s < many.bytes_per_s < gpu.bytes_per_s
    assert (few.kind, gpu.kind) == ("cpu", "gpu")


def test_rows_cost_what_the_processor_computes_or_what_the_memory_takes() -> None:
    by_rows = {"Q4_0": (0.02, 0.03, 0.05, 0.09, 0.18), "Q4_1": (0.04, 0.08, 0.16, 0.32, 0.64)}
    device = Bandwidth("cpu", 20e9, rows={name: dict(zip(ROWS, ns, strict=True)) for name, ns in by_rows.items()})
    assert unpacked(packed([device])) == [device]
    times = row_times([device], on_gpu=False)  # no less than 0.05 ns a byte
    assert pass_costs({"Q4_0": 5.0}, times) == pytest.approx({1: 1, 2: 1, 4: 1, 8: 1.8, 16: 3.6})
    assert pass_costs({"Q4_1": 5.0, "F32": 0.1}, times)[4] == pytest.approx(3.2)
    mixed = pass_costs({"Q4_0": 1.0, "Q4_1": 1.0}, times)
    assert 1 < mixed[4] < 3.2
    assert pass_costs({"Q4_0": 1.0, "IQ1_S": 1.0}, times) == {}  # half of it is unknown
    assert best_gain({}) == 0 and best_gain(pass_costs({"Q4_0": 1.0}, times)) == 3
    assert better_types({"Q4_1": 1.0}, times) == ["Q4_0"] and not better_types({"Q4_0": 1.0}, times)


@pytest.mark.parametrize(
    ("label", "kind"),
    [("Q4_K_M", "Q4_K"), ("UD-Q4_K_XL", "Q4_K"), ("q8_0", "Q8_0"), ("IQ4_NL", "IQ4_NL"), ("MXFP4_MOE", "MXFP4"),
     ("BF16", "BF16"), ("IQ2_XXS", ""), ("mini", "")],
)  # fmt: skip
def test_a_quantization_is_named_after_the_type_of_most_weights(label: str, kind: str) -> None:
    assert type_of(label) == kind
