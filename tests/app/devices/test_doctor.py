"""What the doctor says of machines that are made up, and of this one."""

import base64
import hashlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.models.other_servers import LOOPBACK, free_port, lending, serving

from slipstream.app.cli.devices import lines
from slipstream.app.devices.hints import Gpu, Look, faster, foreign_letters, gpus, idle, reinstall
from slipstream.app.devices.report import bundled_problems, examine, places
from slipstream.app.library.load_request import BUNDLED_TARGET
from slipstream.app.platform.paths import Paths
from slipstream.app.settings.file import SettingsFile
from slipstream.drafters.autopilot import AUTO
from slipstream.drafters.memory import DrafterMemory
from slipstream.models.gguf.reader import read_header
from slipstream.models.llama.devices import Device, Survey

GB = 10**9
CPU = Device("CPU", "cpu", "A processor", 16 * GB, 12 * GB)
PLAIN = Survey((CPU,), ("CPU",), ("AVX2", "FMA", "F16C"), "0.5.0", 8)
PAGES = "https://abetlen.github.io/llama-cpp-python/whl/"


def look(
    answers: Mapping[str, str] | None = None, system: str = "Linux", machine: str = "x86_64", root: Path = Path("/none")
) -> Look:
    told = answers or {}

    def ask(command: Sequence[str]) -> str:
        name = command[0].replace("-", "_")
        return told.get(f"{name}_query" if len(command) > 1 and name == "nvidia_smi" else name, "")

    return Look(system, machine, root, ask)


def nvidia(version: str = "12.6") -> dict[str, str]:
    return {"nvidia_smi_query": "NVIDIA GeForce RTX 4070\n", "nvidia_smi": f"| CUDA Version: {version}  |"}


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths.default({"SLIPSTREAM_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)})


def advised(seen: Look, told: Survey = PLAIN, flags: str = "") -> str:
    hints = faster(gpus(seen), told, seen, "0.3.36", flags)
    return "\n".join(f"{hint.what} {hint.command}" for hint in hints)


@pytest.mark.parametrize(
    ("system", "home", "noted"),
    [("Windows", "C:/Users/Jörg", True), ("Windows", "C:/Users/Jorg", False), ("Linux", "/home/Jörg", False)],
)
def test_a_home_by_a_name_that_windows_may_not_open_is_noted(paths: Paths, system: str, home: str, noted: bool) -> None:
    named = foreign_letters(look(system=system), [Path("/srv"), Path(home)])
    assert bool(named) == noted and ("Jörg" in named and "SLIPSTREAM_HOME" in named) == noted
    report = replace(examine(paths, look()), notes=(named,) if named else ())
    assert ("To know" in "\n".join(lines(report))) == noted


@pytest.mark.parametrize(
    ("version", "page"),
    [("11.8", "cu118"), ("12.4", "cu124"), ("12.6", "cu125"), ("13.0", "cu130"), ("14.1", "cu132"), ("", "cu124")],
)
def test_an_idle_nvidia_gpu_gets_the_wheel_that_its_driver_runs(version: str, page: str) -> None:
    advice = advised(look(nvidia(version)))
    assert "RTX 4070 lies idle: llama.cpp is built without CUDA" in advice
    assert advice.endswith(f"--extra-index-url {PAGES}{page} llama-cpp-python==0.3.36")
    assert sys.executable in advice


def test_each_system_gets_its_wheel_or_a_build() -> None:
    assert f"{PAGES}cu118 " in advised(look(nvidia("12.3"), "Windows", "AMD64"))
    for advice in (advised(look(nvidia(), machine="aarch64")), advised(look(nvidia("11.2")))):
        assert "-DGGML_CUDA=on" in advice and "--no-binary llama-cpp-python" in advice
    assert f"{PAGES}cpu" in reinstall(look(), "0.3.36")


def test_gpus_are_seen_without_their_tool_and_on_windows(tmp_path: Path) -> None:
    folder = tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0"
    folder.mkdir(parents=True)
    (folder / "information").write_text("Model: \t\t NVIDIA A10\nIRQ: 1\n")
    assert gpus(look(root=tmp_path)) == [Gpu("NVIDIA A10", "NVIDIA")]
    names = "AMD Radeon RX 7800\r\nMicrosoft Basic Display Adapter\r\n"
    seen = look({"powershell": names}, "Windows", "AMD64")
    assert gpus(seen) == [Gpu("AMD Radeon RX 7800", "AMD")]
    assert idle(gpus(seen), replace(PLAIN, backends=("Vulkan", "CPU"))) == []


def test_a_gpu_that_is_in_use_needs_no_advice_but_graphs_or_a_driver() -> None:
    gpu = Device("CUDA0", "gpu", "RTX 4070", 12 * GB, 11 * GB)
    used = replace(PLAIN, devices=(gpu, CPU), backends=("CUDA", "CPU"))
    assert advised(look(nvidia()), replace(used, features=(*used.features, "USE_GRAPHS"))) == ""
    assert "-DGGML_CUDA_GRAPHS=on" in advised(look(nvidia()), used)
    assert "its driver does not answer" in advised(look(nvidia()), replace(PLAIN, backends=("CUDA", "CPU")))


def test_apple_silicon_amd_and_intel_get_what_fits_them(tmp_path: Path) -> None:
    assert f"{PAGES}metal" in advised(look(None, "Darwin", "arm64"))
    metal = replace(PLAIN, backends=("MTL", "CPU"), devices=(GPU_OF_MAC, CPU))
    assert advised(look(None, "Darwin", "arm64"), metal) == ""
    assert "install Slipstream with one for ARM" in advised(look({"sysctl": "1\n"}, "Darwin", "x86_64"))
    assert advised(look({"sysctl": "0\n"}, "Darwin", "x86_64")) == ""
    amd, intel, virtual = (tmp_path / name for name in ("amd", "intel", "virtual"))
    advice = advised(look(root=cards(amd, "0x1002", "0x8086")))
    assert "AMD GPU (card0) lies idle" in advice
    assert f"{PAGES}vulkan" in advice
    assert "Intel" not in advice  # beside another GPU
    assert "may or may not be faster" in advised(look(root=cards(intel, "0x8086")))
    assert gpus(look(root=cards(virtual, "0x1af4"))) == []


GPU_OF_MAC = Device("MTL0", "igpu", "Apple M4", 12 * GB, 12 * GB)


def cards(root: Path, *vendors: str) -> Path:
    for number, vendor in enumerate(vendors):
        folder = root / f"sys/class/drm/card{number}/device"
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(vendor + "\n")
    return root


def test_features_that_the_build_leaves_out_are_told() -> None:
    cuda_wheel = replace(PLAIN, features=("SSE3",))
    assert "AVX2 and FMA" in advised(look(), cuda_wheel, "sse3 avx2 fma")
    assert "AVX512" in advised(look(), PLAIN, "avx2 fma f16c avx512_vnni")
    assert "-DGGML_NATIVE=on" in advised(look(), replace(PLAIN, amx_left_out=True))
    assert advised(look(), PLAIN, "avx2 fma f16c") == ""


def test_all_is_well_here_and_the_share_of_replayed_passes_is_told(paths: Paths) -> None:
    report = examine(paths, look(), PLAIN)
    assert report.problems == ()
    assert {fitting.fit.verdict for fitting in report.models if fitting.fit} == {"memory"}
    text = "\n".join(lines(report))
    assert "Nothing is broken." in text and "12.0 GB of 16.0 GB memory free" in text
    assert "8 cores; in use: AVX2, FMA, F16C" in text
    assert not paths.chats.exists()  # it only looks
    memory = DrafterMemory(paths.derived, read_header(paths.bundled / BUNDLED_TARGET).fingerprint)
    assert "of passes" not in "\n".join(lines(examine(paths, look(), PLAIN)))
    for kept, words in ((b'{"replayed": 0.881}', "88% of passes replayed"), (b"[", "Nothing is broken.")):
        memory.write(AUTO, kept)
        assert words in "\n".join(lines(examine(paths, look(), PLAIN)))


@pytest.mark.skipif(os.name != "posix", reason="a file in a folder's place is another error elsewhere")
def test_a_place_that_cannot_be_written_is_broken(paths: Paths, tmp_path: Path) -> None:
    (tmp_path / "home").write_text("no folder")
    broken = [place for place in places(paths) if place.problem]
    assert {place.name for place in broken} == {name for name, _ in paths.rows() if name != "bundled"}
    report = examine(paths, look(), PLAIN)
    assert any("cannot write to" in problem and "SLIPSTREAM_HOME" in problem for problem in report.problems)
    assert "not writable" in "\n".join(lines(report))


def test_unreadable_settings_and_another_binding_are_broken(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    paths.settings.parent.mkdir(parents=True, exist_ok=True)
    paths.settings.write_text("[sampling\n", encoding="utf-8")
    assert any("broken at line 1" in problem for problem in examine(paths, look(), PLAIN).problems)
    paths.settings.write_text("[sampling]\nbogus = 1\n", encoding="utf-8")
    assert any("sampling.bogus" in problem for problem in examine(paths, look(), PLAIN).problems)
    version: Callable[[str], str] = importlib.metadata.version
    monkeypatch.setattr(
        importlib.metadata, "version", lambda name: "0.3.1" if name == "llama-cpp-python" else version(name)
    )
    assert any("llama-cpp-python is 0.3.1" in problem for problem in examine(paths, look(), PLAIN).problems)


def test_a_bundled_model_that_is_missing_or_cut_short_is_broken(paths: Paths, tmp_path: Path) -> None:
    folder = tmp_path / "bundled"
    shutil.copytree(paths.bundled, folder)
    assert bundled_problems(folder) == []
    target = folder / "slipstream-mini-q8_0.gguf"
    target.write_bytes(target.read_bytes()[: 1 << 20])
    assert any("damaged" in problem for problem in bundled_problems(folder))
    target.unlink()
    assert any("missing" in problem for problem in bundled_problems(folder))


def test_a_bundled_model_of_wrong_bytes_is_bad(paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "bundled"
    shutil.copytree(paths.bundled, folder)
    target = folder / "slipstream-mini-q8_0.gguf"
    digest = base64.urlsafe_b64encode(hashlib.sha256(target.read_bytes()).digest()).rstrip(b"=").decode()
    record = tmp_path / "slipstream-1.dist-info" / "RECORD"
    record.parent.mkdir()
    record.write_text(f"bundled/{target.name},sha256={digest},{target.stat().st_size}\n")
    installed = importlib.metadata.PathDistribution(record.parent)
    monkeypatch.setattr(importlib.metadata, "files", lambda name: installed.files)
    assert bundled_problems(folder) == []
    content = bytearray(target.read_bytes())
    content[-1] ^= 1
    target.write_bytes(content)
    assert any("is not what was installed" in problem for problem in bundled_problems(folder))


def test_a_llama_cpp_that_does_not_answer_is_broken(paths: Paths) -> None:
    report = examine(paths, look(), Survey((CPU,), problem="llama.cpp could not say what devices there are: lost"))
    assert any("lost. Install it again: " in problem for problem in report.problems)
    assert "does not answer" in "\n".join(lines(report))


def test_other_machines_are_asked_and_counted_and_a_build_without_rpc_is_broken(paths: Paths) -> None:
    there, gone = serving(lending((20 * GB, 24 * GB))), f"{LOOPBACK}:{free_port()}"
    told = replace(PLAIN, backends=("RPC", "CPU"))
    report = examine(paths, look(), told, f"{there},{gone}")
    text = "\n".join(lines(report))
    assert f"Lent by    {there}, 20.0 GB of 24.0 GB memory free" in text
    assert f"Lent by    {gone}: nothing, connection refused" in text
    assert f"fits whole on {there}: " in text and not report.problems
    there = serving(lending((GB, GB)))
    SettingsFile(paths.settings).change("devices.rpc", there)
    [problem] = examine(paths, look(), PLAIN).problems
    assert "built without RPC" in problem and "-DGGML_RPC=on" in problem


def test_the_command_prints_text_or_json_and_its_code_tells(tmp_path: Path) -> None:
    environment = {**os.environ, "SLIPSTREAM_HOME": str(tmp_path), "HOME": str(tmp_path)}
    command = [sys.executable, "-m", "slipstream.app.cli.main", "doctor"]
    told = subprocess.run([*command, "--json"], capture_output=True, text=True, env=environment)
    assert told.returncode == 0, told.stderr
    report = json.loads(told.stdout)
    assert report["problems"] == [] and report["survey"]["devices"][-1]["kind"] == "cpu"
    broken = {**environment, "LLAMA_CPP_LIB_PATH": str(tmp_path)}
    said = subprocess.run(command, capture_output=True, text=True, env=broken)
    assert said.returncode == 1 and "Broken" in said.stdout and "LLAMA_CPP_LIB_PATH" in said.stdout
