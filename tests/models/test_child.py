import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slipstream.models.child import last_words, run_child

CHILD = "import os, time; from slipstream.models.child import end_with_parent; end_with_parent(); "


def test_a_child_ends_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    code = f"{CHILD}open({str(pids)!r}, 'w').write(f'{{os.getpid()}}\\n'); time.sleep(60)"
    parent = f"from slipstream.models.child import run_child; run_child(['-c', {code!r}], 60)"
    process = subprocess.Popen([sys.executable, "-c", parent], env=dict(os.environ))
    while not (pids.exists() and pids.read_text().endswith("\n")):
        time.sleep(0.05)
    child = int(pids.read_text())
    process.kill()
    process.wait()
    until = time.monotonic() + 20
    while Path(f"/proc/{child}").exists() and "State:\tZ" not in Path(f"/proc/{child}/status").read_text():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_child_that_takes_too_long_is_ended_with_its_own_and_a_short_one_is_not_cut() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        run_child(["-c", f"{CHILD}time.sleep(60)"], 1)
    done = run_child(["-c", f"{CHILD}time.sleep(0.2); print('done')"], 60)
    assert (done.returncode, done.stdout.strip()) == (0, b"done")
    began = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        run_child(["-c", f"{CHILD}import subprocess; subprocess.run(['sleep', '40'])"], 1)
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("a.cpp:1: GGML_ASSERT(x) failed", "a.cpp:1: GGML_ASSERT(x) failed"),
        ("a.cpp:1: GGML_ASSERT(x) failed\n[New LWP 12]\n#0 0x0 in wait4 ()\nAborted", "a.cpp:1: GGML_ASSERT(x) failed"),
        ("/src/a.cpp:7: GGML_ABORT: fatal: a: b", "/src/a.cpp:7: GGML_ABORT: fatal: a: b"),
        (
            "terminate called after throwing an instance of 'E'\n  what():  vk::Queue: lost: x",
            "what():  vk::Queue: lost: x",
        ),
        ("terminate called without an active exception\n", "terminate called without an active exception"),
        ("CUDA error: out of memory: 7\n  current device: 0, in function f", "CUDA error: out of memory: 7"),
        ("Traceback:\n  File x\nOSError: [Errno 5] read: a: b\n", "OSError: [Errno 5] read: a: b"),
        ("one\ntwo\n", ""),
        ("", ""),
        ("\r\n  ValueError: x: y  \r\n", "ValueError: x: y"),
        ("RuntimeError: " + "x" * 900, "RuntimeError: " + "x" * 386),
        ("MyError: first\nmore\nOtherError: second", "OtherError: second"),
    ],
)
def test_the_last_words_of_a_process_are_whole(log: str, words: str) -> None:
    assert last_words(log) == words
