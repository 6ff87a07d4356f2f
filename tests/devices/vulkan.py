"""Runs the GPU tests of this folder on Mesa's software Vulkan device: ``python -m tests.devices.vulkan``.

Each test runs in a process of its own, and again if Mesa's library crashed in it, as it does at times in own threads.
The kernel's log names the library of a crash, if it can be read and no other program crashes meanwhile. A crash without
a name counts as unknown, and the test is repeated too. A crash in another library is a failure, and so is a failure
without a crash. A test in which the engine went on after a crash, on the processor, has not passed.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

Cause = Literal["", "Mesa", "ours", "unknown"]

ROOT: Final = Path(__file__).parents[2]
OFF: Final = ("ASYNC", "FUSION", "GRAPH_OPTIMIZE", "F16")  # with them, Mesa 22.3 crashes within a few steps
SETTINGS: Final = {"GGML_VK_VISIBLE_DEVICES": "0"} | {f"GGML_VK_DISABLE_{name}": "1" for name in OFF}
MESA: Final = ("libvulkan_lvp", "libLLVM")  # the device, and the compiler of its shaders
SYSTEM: Final = ("libc.", "libc-", "libstdc++", "libm.", "libgcc", "libpthread", "ld-linux")  # called by all others
FAULT: Final = re.compile(r"\[\d+\]:? (?:segfault|general protection|trap) .*?error:?\s?\w+(?: in ([^\s\[]+))?")
SIGNAL: Final = re.compile(r"\bSIG(?:SEGV|ABRT|BUS|FPE|ILL)\b|assert -\d+ == 0")
FIGURE: Final = re.compile(r"^([a-z][^:=\n]*): ([\d,]+)$", re.MULTILINE)  # see pytest_terminal_summary in conftest.py
LIMIT: Final = 1800.0  # seconds for one test
PYTEST: Final = (sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:faulthandler", "-p", "no:cacheprovider")
SURVEY: Final = """
import json
from slipstream.models.llama.devices import survey
print(json.dumps([device.description for device in survey().devices if device.kind == "gpu"]))
"""
# the kernel logs only faults without a handler, and the engine's process installs this one
NO_HANDLER: Final = "import faulthandler\nfaulthandler.enable = lambda *_, **__: None\n"


@dataclass(frozen=True, slots=True)
class Attempt:
    passed: bool
    crash: Cause  # empty if nothing crashed
    output: str


def cause_of(code: int, output: str, kernel: Sequence[str]) -> Cause:
    """Classifies a crash of the test or of its engine, by what pytest and the kernel wrote."""
    libraries = [found[1] or "" for line in kernel if (found := FAULT.search(line))]
    if "GGML_ASSERT" in output or any(each and not each.startswith(MESA + SYSTEM) for each in libraries):
        return "ours"
    if any(each.startswith(MESA) for each in libraries):
        return "Mesa"
    return "unknown" if libraries or code < 0 or (code and SIGNAL.search(output)) else ""


def repeated(attempt: Callable[[], Attempt], retries: int) -> tuple[Attempt, Counter[Cause]]:
    """Runs a test until it ends without a crash of Mesa's; returns its last run, and all crashes by cause."""
    crashes = Counter[Cause]()
    while True:
        last = attempt()
        crashes.update([last.crash] if last.crash else [])
        if last.crash not in ("Mesa", "unknown") or crashes.total() > retries:
            return last, crashes


def kernel_lines(log: int | None) -> Iterator[str]:
    """What the kernel has logged since the last call."""
    with suppress(BlockingIOError):
        while log is not None:
            with suppress(BrokenPipeError):  # lines were overwritten before they were read
                yield os.read(log, 8192).decode("utf-8", "replace")


def attempted(test: str, log: int | None) -> Attempt:
    list(kernel_lines(log))
    try:
        done = subprocess.run([*PYTEST, test], cwd=ROOT, stdout=-1, stderr=-2, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return Attempt(False, "", f"not done after {LIMIT:.0f} s")
    crash = cause_of(done.returncode, done.stdout, list(kernel_lines(log)))
    return Attempt(not done.returncode and not crash and " passed" in done.stdout, crash, done.stdout)


def main() -> int:
    """Runs them, and prints the counts; returns 1 if a test fails, 2 without such a device."""
    parser = argparse.ArgumentParser(prog="python -m tests.devices.vulkan", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("-k", default="gpu", metavar="WORDS", help="which tests, as pytest's -k (gpu)")
    parser.add_argument("--retries", type=int, default=5, metavar="N", help="most repetitions of a test (5)")
    options = parser.parse_args()
    os.environ.update(SETTINGS)
    found = subprocess.run([sys.executable, "-c", SURVEY], cwd=ROOT, stdout=-1, text=True).stdout.strip() or "[]"
    if not any("llvmpipe" in name for name in json.loads(found)):
        print(f"llama.cpp finds no Vulkan device of Mesa's llvmpipe (it needs -DGGML_VULKAN=on); GPUs: {found}")
        return 2
    collect = [*PYTEST, "--collect-only", "tests/devices", "-k", options.k]
    listed = subprocess.run(collect, cwd=ROOT, stdout=-1, text=True).stdout
    tests, log = [line for line in listed.splitlines() if "::" in line], None
    try:
        log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
        os.lseek(log, 0, os.SEEK_END)
    except OSError as error:
        print(f"The kernel's log cannot be read ({error.strerror}): the causes of crashes stay unknown")
    first, failed, crashes, figures = 0, 0, Counter[Cause](), Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "sitecustomize.py").write_text(NO_HANDLER)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
        for test in tests:
            began = time.monotonic()
            last, ended = repeated(lambda: attempted(test, log), options.retries)  # noqa: B023 (called at once)
            crashes += ended
            first, failed = first + (last.passed and not ended), failed + (not last.passed)
            if last.passed:
                figures.update({name: int(count.replace(",", "")) for name, count in FIGURE.findall(last.output)})
            told = ", ".join([f"{time.monotonic() - began:.0f} s", *(f"{n} x {cause}" for cause, n in ended.items())])
            print(f"{'passed' if last.passed else 'FAILED'} {test} ({told})", flush=True)
            print("" if last.passed else last.output, end="", flush=True)
    print(*(f"{name}: {total:,}" for name, total in figures.items()), sep="\n")
    print(f"{len(tests)} tests: {first} passed at once, {len(tests) - first - failed} after a crash, {failed} failed")
    print(f"crashes: {crashes['Mesa']} in Mesa, {crashes['ours']} elsewhere, {crashes['unknown']} unknown")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
