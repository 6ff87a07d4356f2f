"""How the runner of the software Vulkan device tells crashes apart and counts them; it needs no such device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pytest
from tests.devices.vulkan import Attempt, Cause, cause_of, kernel_lines, repeated

END: Final = "[29c3eb,7ff026453000+317000] likely on CPU 0 (core 0, socket 0)"
MESA: Final = f"6,9,1,-;llvmpipe-1[32]: segfault at e8 ip 00007ff0 sp 00007ff1 error 4 in libvulkan_lvp.so{END}"
MESA_TRAP: Final = (
    f"6,9,1,-;traps: llvmpipe-0[32] general protection fault ip:7ff0 sp:7ff1 error:0 in libLLVM-15.so.1{END}"
)
OURS: Final = f"6,9,1,-;python[32]: segfault at 0 ip 00007ff0 sp 00007ff1 error 6 in libggml-vulkan.so.0{END}"
LIBC: Final = f"6,9,1,-;python[32]: segfault at 0 ip 00007ff0 sp 00007ff1 error 6 in libc.so.6{END}"
SHADER: Final = (
    "6,9,1,-;llvmpipe-1[32]: segfault at 8 ip 00007ff0 sp 00007ff1 error 4 likely on CPU 1 (core 1, socket 0)"
)
NO_CRASH: Final = [
    "6,9,1,-;Code: 4c 8b 2b",
    "4,9,1,-;mmap: python (9): VmData exceeds",
    "6,9,1,-;eth0: error 4 in x[1]",
]


@pytest.mark.parametrize(
    ("code", "output", "kernel", "cause"),
    [
        (0, "1 passed", NO_CRASH, ""),
        (1, "assert 3 == 0", NO_CRASH, ""),
        (-11, "", [*NO_CRASH, MESA], "Mesa"),
        (1, "a fault in llama.cpp or a library (SIGSEGV)", [MESA_TRAP], "Mesa"),
        (0, "1 passed", [MESA], "Mesa"),  # the engine went on without the GPU
        (-11, "", [OURS], "ours"),
        (1, "", [MESA, OURS], "ours"),
        (1, "llama.cpp or a library gave up (SIGABRT) (GGML_ASSERT(x) failed)", [], "ours"),
        (-11, "", [LIBC], "unknown"),
        (-11, "", [SHADER], "unknown"),
        (-6, "", [], "unknown"),
        (1, "E   assert -11 == 0", [], "unknown"),
        (1, "a fault in llama.cpp or a library (SIGSEGV)", [], "unknown"),
    ],
)
def test_the_cause_of_a_crash(code: int, output: str, kernel: Sequence[str], cause: Cause) -> None:
    assert cause_of(code, output, kernel) == cause


@pytest.mark.parametrize(
    ("runs", "passed", "crashes"),
    [
        ([("", True)], True, {}),
        ([("", False)], False, {}),  # a failure without a crash is not repeated
        ([("Mesa", False), ("unknown", False), ("", True)], True, {"Mesa": 1, "unknown": 1}),
        ([("Mesa", False), ("", False)], False, {"Mesa": 1}),
        ([("Mesa", False), ("ours", False)], False, {"Mesa": 1, "ours": 1}),
        ([("Mesa", False)] * 4, False, {"Mesa": 4}),
    ],
)
def test_only_crashes_that_may_be_of_the_device_are_repeated(
    runs: list[tuple[Cause, bool]], passed: bool, crashes: dict[Cause, int]
) -> None:
    left = iter([Attempt(good, crash, "") for crash, good in runs])
    last, counted = repeated(lambda: next(left), retries=3)
    assert last.passed == passed and counted == crashes
    assert not list(left)


def test_without_the_log_of_the_kernel_there_is_nothing_to_read() -> None:
    assert list(kernel_lines(None)) == []
