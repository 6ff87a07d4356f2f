"""What a machine has: this one, and some that are made up of the files that a system shows."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from slipstream.models.llama import devices as llama_devices
from slipstream.models.llama import placement
from slipstream.models.llama.cgroups import processor_quota
from slipstream.models.llama.devices import Device, Survey, memory, read_answer
from slipstream.models.llama.library import physical_cores
from slipstream.models.llama.placement import Placement

KB, GB = 1 << 10, 1 << 30
MEMINFO = "MemTotal:       16777216 kB\nMemFree:         1048576 kB\nMemAvailable:   12582912 kB\n"
NO_LIMITS = "Limit                     Soft Limit           Hard Limit           Units\n"

Machine = Callable[..., Path]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Writes a system's files below a folder; "/" in a name is written "__"."""

    def make(**files: str) -> Path:
        for name, text in {"proc__meminfo": MEMINFO, "proc__self__limits": NO_LIMITS, **files}.items():
            path = tmp_path / name.replace("__", "/").replace("_DOT_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return make


def test_llama_cpp_says_what_is_built_in_and_here() -> None:
    found = llama_devices.devices()
    assert found[-1].kind == "cpu"
    assert 0 < found[-1].free_bytes <= found[-1].total_bytes
    assert [device.kind for device in found].count("cpu") == 1
    told = llama_devices.survey()
    assert "CPU" in told.backends and told.features and told.version and told.cores >= 1
    assert not told.problem


def test_an_answer_comes_back_whole() -> None:
    sent = Survey(
        devices=(Device("CUDA0", "gpu", "A GPU", 8 * GB, 7 * GB), Device("CPU", "cpu", "x", 16 * GB, 12 * GB)),
        backends=("CUDA", "CPU"), features=("AVX2",), version="0.5", cores=8, amx_left_out=True,
    )  # fmt: skip
    assert read_answer(b"a driver's greeting\n" + json.dumps(asdict(sent)).encode() + b"\nand farewell\n") == sent


@pytest.mark.parametrize(
    ("answer", "log", "code", "reason"),
    [
        (b"", b"one\nlibcuda.so: not found\n", 1, "devices there are: libcuda.so: not found"),
        (
            b"",
            b"ggml.c:7: GGML_ASSERT(n > 0) failed\n[New LWP 7]\n#1 0x7f in main ()\n",
            -6,
            ": ggml.c:7: GGML_ASSERT(n > 0)",
        ),
        (
            b"",
            b"terminate called after throwing\n  what():  driver: too old: 1.2\nAborted\n",
            -6,
            "what():  driver: too old: 1.2",
        ),
        (b"", b"CUDA error: no kernel image: sm_50\n  current device: 0\n", -6, ": CUDA error: no kernel image: sm_50"),
        (b"not json\n", b"", 0, "could not say"),
        (b"", b"", -4, "illegal instruction"),
    ],
)
def test_a_driver_that_ends_the_process_leaves_the_processor(answer: bytes, log: bytes, code: int, reason: str) -> None:
    told = read_answer(answer, log, code)
    assert [device.kind for device in told.devices] == ["cpu"]
    assert reason in told.problem


def test_features_are_those_that_are_on() -> None:
    assert llama_devices.features_of("CUDA : ARCHS = 900 | CPU : AVX2 = 1 | AVX512_VNNI = 0 | LLAMAFILE = 1 | ") == [
        "ARCHS",
        "AVX2",
        "LLAMAFILE",
    ]


def test_memory_is_what_a_program_can_still_take(machine: Machine) -> None:
    assert memory(machine()) == (16 * GB, 12 * GB)
    assert memory(machine(proc__meminfo="MemTotal: 2097152 kB\nMemFree: 1048576 kB\n")) == (2 * GB, GB)
    limits = NO_LIMITS + f"Max address space         {3 * GB}           unlimited            bytes\n"
    root = machine(proc__self__limits=limits, proc__self__status="VmSize:\t  1048576 kB\n")
    assert memory(root) == (16 * GB, 2 * GB)


def test_a_silent_system_has_no_figures(tmp_path: Path) -> None:
    assert memory(tmp_path) == (0, 0)


def test_a_limit_of_version_2_counts_and_files_that_were_read_do_not(machine: Machine) -> None:
    root = machine(
        proc__self__cgroup="0::/user/app\n",
        sys__fs__cgroup__user__memory_DOT_max=f"{4 * GB}\n",
        sys__fs__cgroup__user__memory_DOT_current=f"{3 * GB}\n",
        sys__fs__cgroup__user__memory_DOT_stat=f"anon 1\ninactive_file {GB}\n",
        sys__fs__cgroup__user__app__memory_DOT_max="max\n",
        sys__fs__cgroup__user__app__memory_DOT_current=f"{3 * GB}\n",
    )
    assert memory(root) == (4 * GB, 2 * GB)


@pytest.mark.parametrize(
    ("files", "quota", "most"),
    [
        ({"sys__fs__cgroup__job__cpu_DOT_max": "100000 100000\n"}, 1.0, 1),
        ({"sys__fs__cgroup__job__cpu_DOT_max": "50000 100000\n"}, 0.5, 1),
        (
            {"sys__fs__cgroup__job__cpu_DOT_max": "max 100000\n", "sys__fs__cgroup__cpu_DOT_max": "150000 100000"},
            1.5,
            1,
        ),
        ({"sys__fs__cgroup__job__cpu_DOT_max": "max 100000\n"}, 0.0, 99),
        (
            {
                "proc__self__cgroup": "4:memory:/\n5:cpu,cpuacct:/job\n",
                "sys__fs__cgroup__cpu__job__cpu_DOT_cfs_quota_us": "100000\n",
                "sys__fs__cgroup__cpu__job__cpu_DOT_cfs_period_us": "100000\n",
                "sys__fs__cgroup__cpu__cpu_DOT_cfs_quota_us": "-1\n",
                "sys__fs__cgroup__cpu__cpu_DOT_cfs_period_us": "100000\n",
            },
            1.0,
            1,
        ),
    ],
)
def test_a_quota_of_processors_limits_threads(machine: Machine, files: dict[str, str], quota: float, most: int) -> None:
    root = machine(**{"proc__self__cgroup": "0::/job\n", **files})
    assert processor_quota(root) == quota and 1 <= physical_cores(root) <= most


def test_a_limit_of_version_1_counts(machine: Machine) -> None:
    root = machine(
        proc__self__cgroup="5:cpu:/x\n4:memory:/job\n",
        sys__fs__cgroup__memory__job__memory_DOT_limit_in_bytes=f"{2 * GB}\n",
        sys__fs__cgroup__memory__job__memory_DOT_usage_in_bytes=f"{GB}\n",
        sys__fs__cgroup__memory__job__memory_DOT_stat="total_inactive_file 0\n",
        sys__fs__cgroup__memory__memory_DOT_limit_in_bytes=f"{(1 << 63) - 4096}\n",
        sys__fs__cgroup__memory__memory_DOT_usage_in_bytes="1\n",
        sys__fs__cgroup__memory__memory_DOT_stat="total_inactive_file 0\n",
    )
    assert memory(root) == (2 * GB, GB)


def test_another_system_is_asked_by_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    here = memory()[0]
    monkeypatch.setattr("sys.platform", "darwin")
    total, available = memory()
    assert total == psutil.virtual_memory().total >= here > 0 and 0 < available <= total


def test_a_processor_is_called_by_its_name(machine: Machine) -> None:
    root = machine(proc__cpuinfo="processor\t: 0\nmodel name\t: Some Processor 9\nflags\t\t: fpu avx2\n")
    assert llama_devices.processor(root) == "Some Processor 9" and llama_devices.processor_flags(root) == "fpu avx2"


@pytest.mark.parametrize(
    ("backend", "place", "keeps"),
    [
        (b"CUDA", Placement(), True),
        (b"ROCm", Placement(12, ("one",)), True),
        (b"Vulkan", Placement(), False),
        (b"CUDA", Placement(0), False),  # all layers on the processor
        (b"CPU", Placement(devices=("mac:50052/0",)), True),
    ],
)
def test_graphs_are_kept_by_gpus_that_capture_them_and_by_other_machines(
    monkeypatch: pytest.MonkeyPatch, backend: bytes, place: Placement, keeps: bool
) -> None:
    named = SimpleNamespace(
        backend_dev_by_name=lambda name: 1, backend_dev_backend_reg=lambda device: 1, backend_reg_name=lambda _: backend
    )
    monkeypatch.setattr(placement, "calls", lambda: named)
    monkeypatch.setattr(placement, "own_gpus", lambda: [1])
    assert place.keeps_graphs is keeps
