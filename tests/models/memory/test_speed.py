"""How fast a model is predicted to write, and what that is predicted from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.models.kinds import write_kind

from slipstream.models.gguf.reader import read_header
from slipstream.models.llama.devices import Device
from slipstream.models.llama.throughput import ROWS, TYPES, Throughput, _Meter, assumed, measure, packed, unpacked
from slipstream.models.memory.fit import Fit, estimate
from slipstream.models.memory.need import Need
from slipstream.models.memory.speed import Reads, family, predict, rate, reads_of, rough_reads

GB = 1_000_000_000
CPU = Device("CPU", "cpu", "Roomy", 64 * GB, 60 * GB)


def machine(reads: float, kind: str = "cpu", fourth: float = 1.0, operation: float = 0.0) -> Throughput:
    """Reads so many bytes a second with one row, and ``fourth`` times as many with four, of any type."""
    rows = {1: reads, 2: reads * (2 + fourth) / 3, 4: reads * fourth, 8: reads * fourth / 2}
    return Throughput(kind, {name: dict(rows) for name in TYPES}, operation)


def placed(verdict: str, gpu_layers: int = 0) -> Fit:
    return Fit(verdict, gpu_layers, 8192, "f16", Need(0, 0, 0), "")  # type: ignore[arg-type]


def test_a_pass_takes_the_bytes_it_reads_over_the_speed_of_reading_them() -> None:
    reads = Reads({"Q4_0": 2.0 * GB, "BF16": 1.0 * GB}, 30, cells=0.1 * GB)
    rates = {"Q4_0": dict.fromkeys(ROWS, 20e9), "BF16": dict.fromkeys(ROWS, 25e9)}
    here = Throughput("cpu", rates, 2e-6)
    seconds = 0.1 + 0.04 + 0.004 + 30 * 30 * 2e-6 + 0.25e-3
    assert reads.seconds(here, 1) == pytest.approx(seconds)
    found = predict(reads, placed("memory"), [here])
    assert found and found.plain.low < 1 / seconds < found.plain.high
    assert found.plain.high / found.plain.low < 1.9


def test_only_the_experts_that_a_token_uses_are_read() -> None:
    reads = Reads({"Q4_K": 1.0 * GB}, 0, experts={"Q4_K": 16.0 * GB}, used=8, count=128)
    assert reads.active == pytest.approx(2 * GB)
    one, four = (reads.seconds(machine(20e9), rows) for rows in (1, 4))
    assert one == pytest.approx(0.1, rel=0.01) and four == pytest.approx(0.05 + 0.8 * (1 - (120 / 128) ** 4), rel=0.02)
    dense, sparse = (
        predict(each, placed("memory"), [machine(20e9)], "mtp") for each in (Reads({"Q4_K": 2.0 * GB}, 40), reads)
    )
    assert dense and sparse and sparse.drafted.high < dense.drafted.high  # each guess brings experts of its own


def test_a_drafter_gains_where_more_rows_cost_little_and_never_loses() -> None:
    reads, draft = Reads({"Q4_K": 5.0 * GB}, 36), Reads({"Q8_0": 0.3 * GB}, 28)
    linear = {rows: 20e9 / rows for rows in ROWS}
    dear, cheap = Throughput("cpu", {name: linear for name in TYPES}, 0.0), machine(20e9, fourth=1.0)
    lost = predict(reads, placed("memory"), [dear], "draft", draft)
    gained = predict(reads, placed("memory"), [cheap], "draft", draft)
    assert lost and gained and lost.drafted.low == lost.plain.low
    assert gained.drafted.high > 1.5 * gained.plain.high > 1.5 * lost.plain.low
    alone = predict(reads, placed("memory"), [cheap])
    assert alone and alone.plain == gained.plain and alone.drafted.high < gained.drafted.high


def test_layers_on_two_devices_take_their_times_one_after_the_other() -> None:
    reads = Reads({"Q4_K": 8.0 * GB}, 39)
    slow, quick = machine(20e9), machine(800e9, "gpu")
    speeds = [
        found.plain.middle
        for fit in (placed("memory"), placed("split", 20), placed("gpu", -1))
        if (found := predict(reads, fit, [slow, quick]))
    ]
    assert len(speeds) == 3 and speeds[0] < speeds[1] < 3 * speeds[0] < speeds[2]
    assert predict(reads, placed("gpu", -1), [slow]) is None  # its place was not measured
    assert predict(reads, placed("too big"), [slow, quick]) is None


def test_the_embedding_is_looked_up_unless_it_is_the_output_too(tmp_path: Path) -> None:
    header = read_header(write_kind(tmp_path / "m.gguf", "llama"))
    sizes = {tensor.name: tensor.nbytes for tensor in header.tensors}
    reads = reads_of(header)
    tied = "output.weight" not in sizes
    embedding = sizes["token_embd.weight"]
    assert reads.active == sum(sizes.values()) - (0 if tied else embedding)
    assert reads.output == (embedding if tied else sizes["output.weight"])


def test_experts_of_a_file_are_counted(tmp_path: Path) -> None:
    header = read_header(write_kind(tmp_path / "m.gguf", "qwen3moe"))
    reads = reads_of(header)
    assert reads.experts and 0 < reads.used <= reads.count
    assert reads.active < sum(reads.weights.values()) + sum(reads.experts.values())


def test_what_is_known_by_its_size_alone_has_a_wider_range() -> None:
    fit = estimate(5 * GB, 8 * GB, [CPU])
    rough = predict(rough_reads(5 * GB, 8 * GB, quant="Q4_K_M"), fit, [machine(20e9)])
    assert rough and rough.plain.low < 4.2 < rough.plain.high and rough.plain.high / rough.plain.low > 1.7
    sparse = predict(rough_reads(20 * GB, 35 * GB, 3 * GB, "Q4_K_M", experts=True), fit, [machine(20e9)])
    assert sparse and sparse.plain.middle > 2 * rough.plain.middle


def test_types_that_were_not_measured_take_the_rate_of_a_like_one() -> None:
    names = {"Q4_K_M": "Q4_K", "UD-Q4_K_XL": "Q4_K", "IQ2_XXS": "Q4_K", "MXFP4": "Q4_0", "F32": "BF16", "Q5_1": "Q8_0"}
    assert {name: family(name) for name in names} == names
    here = machine(20e9, fourth=0.5)
    assert rate(here, "Q4_0", 1) == 20e9 and rate(here, "Q4_0", 4) == 10e9
    assert rate(here, "Q4_0", 4) < rate(here, "Q4_0", 3) < rate(here, "Q4_0", 2)
    assert rate(here, "Q4_0", 16) == pytest.approx(rate(here, "Q4_0", 8) / 2)


@pytest.mark.slow
def test_this_machine_is_really_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.models.llama.throughput._BYTES", {"cpu": 4 << 20, "gpu": 4 << 20})
    found = measure("cpu")
    assert found and found.rates.keys() == TYPES.keys()
    for rows in found.rates.values():
        assert tuple(rows) == ROWS and all(1e5 < rate < 1e13 for rate in rows.values())
    assert 0 < found.operation < 1  # seconds; a busy machine takes long, too
    assert unpacked(f"a driver's words\n{packed([found])}\n{{}}\n") == [found]
    assert unpacked("nothing") == [] == unpacked('{"throughput": [1]}')


def test_a_prediction_says_whether_the_machine_was_busy_when_it_was_measured() -> None:
    quiet, busy = machine(20e9), replace(machine(200e9, "gpu"), basis="busy")
    reads = Reads({"Q4_0": 1.0 * GB}, 9)
    bases = [predict(reads, placed(*each), [quiet, busy]) for each in (("memory",), ("split", 5), ("gpu",))]
    assert [each.basis for each in bases if each] == ["measured", "busy", "busy"]
    usual = predict(reads, placed("memory"), assumed(2, gpu=False))
    assert usual and usual.basis == "assumed"
    assert unpacked(packed([busy])) == [busy]
    found = []
    for processor in (1.8, 1.0):  # seconds of both threads in a second
        meter = _Meter(2)
        meter.add(1.0, processor)
        found.append(meter.basis)
    assert found == ["measured", "busy"]


def test_what_has_not_been_measured_is_taken_to_be_usual() -> None:
    (few,), (many, gpu) = assumed(2, gpu=False), assumed(64, gpu=True)
    assert few.rates["Q4_K"][1] < many.rates["Q4_K"][1] < gpu.rates["Q4_K"][1]
    assert (few.kind, gpu.kind) == ("cpu", "gpu")
