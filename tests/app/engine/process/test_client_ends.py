"""How the end of the engine's process is worded, and what is changed when it is started again."""

import os
import select
import signal
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from tests.app.engine.disturbed import bundled
from tests.app.tui.scripted import LOADED

from slipstream.app.engine.process.client import Engine
from slipstream.app.engine.process.process import engine_environment
from slipstream.app.engine.process.recovery import MOST, End, Recovery, end_of
from slipstream.app.protocol.events import Done, Stepped
from slipstream.app.protocol.requests import Generate, Load, Message
from slipstream.drafters.crash_note import CrashNote, begin_note, elsewhere, map_note, set_devices
from slipstream.drafters.guard import Guard
from slipstream.models.errors import EngineDiedError, SlipstreamError

pytestmark = pytest.mark.program

LOAD = Load("mini.gguf")
LOG = Path("engine.log")
TRACE = """Fatal Python error: Aborted

Thread 0x00007f8b2d7fe6c0 (most recent call first):
  File "/lib/threading.py", line 324 in wait
"""


linux = pytest.mark.skipif(sys.platform != "linux", reason="asks the system in Linux's way")
INTERFACE = """
import sys, threading
from pathlib import Path
from slipstream.app.engine.process.client import Engine
from slipstream.app.protocol.requests import Load
from slipstream.models.errors import SlipstreamError

engine = Engine(Path(sys.argv[1]))
try:
    engine.load(Load("no such file"))
except SlipstreamError:
    print(engine.process_id, flush=True)
threading.Event().wait()
"""


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGKILL, "killed (SIGKILL), probably because memory ran out"),
        (signal.SIGABRT, "gave up (SIGABRT)"),
        (signal.SIGSEGV, "fault in llama.cpp or a library (SIGSEGV)"),
        (signal.SIGBUS, "the model file changed or its disk went away (SIGBUS)"),
        (signal.SIGILL, "another processor (SIGILL)"),
        (signal.SIGTERM, "told to end (SIGTERM)"),
        (signal.SIGXCPU, "signal SIGXCPU"),
        (-70, "signal 70"),
    ],
)
def test_every_end_has_its_words(number: int, words: str) -> None:
    end = end_of(-abs(number), "")
    assert words in end.reason
    assert end.hint and end.cause == ("memory" if number == signal.SIGKILL else "other")


def test_an_exit_code_has_its_words_and_what_was_logged_before_is_not_the_cause() -> None:
    assert end_of(3, "Error: KeyError in reply, line 7").reason == "exit code 3 (Error: KeyError in reply, line 7)"
    assert end_of(-9, "CUDA error", "it did nothing").reason == "it did nothing, so it was ended"
    assert end_of(-9, "", "it did nothing").cause == "other"
    assert end_of(None, "").reason == "the system does not let it end"
    started = ["ggml_cuda_init: found 1 CUDA devices (Total VRAM: 81079 MiB):", "  Device 0: NVIDIA H100 80GB HBM3"]
    started += ["ggml_vulkan: Found 1 Vulkan devices:", "ggml_vulkan: 0 = llvmpipe (LLVM 15.0.6, 256 bits)"]
    end = end_of(-signal.SIGABRT, "\n".join([*started, "Error: KeyError in reply, line 7"]), "", CrashNote("", True))
    assert end.cause == "other" and "GPU" not in end.reason + end.hint
    assert end_of(-signal.SIGABRT, "\n".join([*started, "ggml_cuda_compute_forward: failed"])).cause == "gpu"
    log = "failed to allocate buffer\nCUDA error: once\n" + "all is well\n" * 20
    assert end_of(-signal.SIGABRT, log).cause == "other" and end_of(-signal.SIGSEGV, log).cause == "other"


def test_a_device_that_fails_or_a_machine_that_is_lost_is_blamed_and_not_a_drafter() -> None:
    log = "Error: the GPU failed: the model could not be evaluated: llama_decode returned -3."
    assert end_of(1, log, note=CrashNote("", True)).cause == "gpu"
    assert end_of(1, log, note=CrashNote("", False, True)).cause == "machine"
    end = end_of(-signal.SIGABRT, f"{GONE}\n{TRACE}", "", CrashNote("medusa", machines=True))
    assert (end.cause, end.reason) == ("machine", "another machine was lost, its connection was closed")
    assert "with the machines that are left" in end.hint
    silent = end_of(-9, "", "it did nothing at all for 31 seconds", CrashNote("", machines=True))
    assert silent.cause == "machine" and "31 seconds, so it was ended" in silent.reason


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("CUDA error: out of memory", "memory"),
        ("terminate called after throwing an instance of 'std::bad_alloc'", "memory"),
        ("ggml_metal: error: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)", "memory"),
        ("Error: MemoryError in reply, line 7", "memory"),
        ("CUDA error: unspecified launch failure", "gpu"),
        ("terminate called after throwing an instance of 'vk::DeviceLostError'", "gpu"),
        ('/src/ggml-cuda/ggml-cuda.cu:98: GGML_ABORT("CUDA error")', "gpu"),
        ("ggml_metal_graph_compute: command buffer 0 failed with status 5", "gpu"),
    ],
)
def test_memory_is_recognized_before_a_lost_gpu(line: str, cause: str) -> None:
    end = end_of(-signal.SIGABRT, f"{line}\n{TRACE * 20}")
    reason, hint = {"memory": ("memory ran out", "half the context"), "gpu": ("the GPU failed", "on the processor")}[
        cause
    ]
    assert end.cause == cause and end.reason.startswith(reason) and hint in end.hint


@pytest.mark.parametrize("given_up", ["it did nothing at all for 31 seconds", "it came no further for 11 minutes"])
def test_a_gpu_that_hangs_is_lost(given_up: str) -> None:
    assert end_of(-9, "", given_up, CrashNote("draft", True)).cause == "gpu"
    assert end_of(-9, "", given_up, CrashNote("draft")).cause == "drafter"
    assert end_of(-9, "", given_up, CrashNote()).cause == "other"
    for other in ("it gave no sign of life for 30 seconds", "it did not stop within 20 seconds"):
        assert end_of(-9, "", other, CrashNote("", True)).cause == "other"


@pytest.mark.parametrize(
    ("code", "log", "cause"),
    [
        (-signal.SIGSEGV, "", "drafter"), (-signal.SIGABRT, "GGML_ASSERT(x) failed", "drafter"),
        (-signal.SIGBUS, "", "drafter"), (-signal.SIGKILL, "", "drafter"),
        (-signal.SIGABRT, "std::bad_alloc", "drafter"), (1, "Error: SystemError in draft, line 7", "drafter"),
        (-signal.SIGTERM, "", "other"), (-signal.SIGABRT, "CUDA error: unspecified launch failure", "gpu"),
    ],
)  # fmt: skip
def test_the_call_that_was_running_is_blamed(code: int, log: str, cause: str) -> None:
    end = end_of(code, log, "", CrashNote("medusa"))
    assert end.cause == cause and (end.drafter == "medusa") == (cause == "drafter")
    assert ("drafter medusa ended it" in end.reason) == (cause == "drafter")


def test_a_note_is_read_after_its_process_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "engine.note"
    assert CrashNote.of(path) == CrashNote()
    begin_note(path)
    assert CrashNote.of(path) == CrashNote() and path.stat().st_mode & 0o777 == 0o600
    note = map_note(path)
    guard = Guard(note=note)
    set_devices(note, gpu=True, machines=False)
    assert elsewhere(note)
    seen: list[CrashNote] = []
    guard.run("outer", lambda: guard.run("inner", lambda: seen.append(CrashNote.of(path)), None), None)
    guard.run("outer", lambda: seen.append(CrashNote.of(path)), None)
    assert seen == [CrashNote("inner", True), CrashNote("outer", True)] and CrashNote.of(path) == CrashNote("", True)
    for number in range(40):  # more than there is room for
        guard.run(f"drafter {number}", lambda: seen.append(CrashNote.of(path)), None)
    assert seen[-40] == CrashNote("drafter 0", True) and seen[-1] == CrashNote("", True)
    set_devices(note, gpu=True, machines=True)
    assert CrashNote.of(path) == CrashNote("", False, True)
    begin_note(path)  # the next process
    assert CrashNote.of(path) == CrashNote()
    assert len(map_note(tmp_path / "none")) == len(note)
    path.unlink()
    path.symlink_to("/dev/zero")
    assert CrashNote.of(path) == CrashNote()
    begin_note(path)
    assert path.is_file() and not path.is_symlink()


def test_the_context_is_halved_each_time_and_said_once() -> None:
    cures = Recovery()
    assert cures.apply(LOAD, LOG) == LOAD
    for times in (1, 2):
        cures.ended(End("", cause="memory"))
        assert cures.apply(LOAD, LOG) == replace(LOAD, halved=times)
        assert "a context of 1,024 tokens, since memory" in cures.with_remark(LOADED).remark
        assert cures.with_remark(LOADED).remark == ""
    cures.replied()
    assert cures.apply(LOAD, LOG).halved == 2
    assert cures.apply(Load("other.gguf"), LOG) == Load("other.gguf") and cures.apply(LOAD, LOG) == LOAD


def test_a_gpu_that_failed_is_not_used_again() -> None:
    cures = Recovery()
    cures.apply(LOAD, LOG)
    cures.ended(End("", cause="gpu"))
    cures.ended(End(""))
    changed = cures.apply(LOAD, LOG)
    assert (changed.gpu_layers, changed.draft_gpu_layers, changed.halved) == (0, 0, 0)
    assert cures.with_remark(LOADED).remark == "the engine was started again on the processor, since the GPU failed."


GONE = "/src/ggml/src/ggml-rpc/ggml-rpc.cpp:552: Remote RPC server crashed or returned malformed response"


def test_after_a_lost_machine_the_next_start_is_as_before_and_says_with_which() -> None:
    cures = Recovery()
    cures.apply(LOAD, LOG)
    cures.ended(End("", cause="machine"))
    assert cures.apply(LOAD, LOG) == LOAD and not cures.can_retry
    loaded = replace(LOADED, machines=["mac:50052"], remark="Without pi:50052: connection refused.")
    expected = "the engine was started again with mac:50052. Without pi:50052: connection refused."
    assert cures.with_remark(loaded).remark == expected
    cures.ended(End("", cause="machine"))
    assert "on this machine alone" in cures.with_remark(LOADED).remark


def test_a_drafter_that_ended_it_is_left_out_and_what_was_asked_goes_on() -> None:
    cures = Recovery()
    for name in ("medusa", "draft", "space", "eagle3"):
        cures.apply(LOAD, LOG)
        cures.ended(end_of(-signal.SIGSEGV, "", "", CrashNote(name)))
        assert cures.can_retry
    failed = cures.apply(LOAD, LOG).failed
    assert set(failed) == {"medusa", "draft", "space", "eagle3"}
    assert failed["medusa"] == "the engine ended in it: a fault in llama.cpp or a library (SIGSEGV)"
    cures.ended(end_of(-signal.SIGSEGV, "", "", CrashNote("medusa")))  # although it was left out
    assert not cures.can_retry and cures.apply(Load("other.gguf"), LOG).failed == {}


def test_three_ends_in_a_row_stop_until_somebody_asks_again() -> None:
    cures = Recovery()
    cures.apply(LOAD, LOG)
    for _ in range(2):
        for _ in range(MOST - 1):
            cures.ended(End(""))
            cures.apply(LOAD, LOG)
        cures.replied()  # in a row, that is
    for _ in range(MOST):
        cures.ended(End(""))
    for _ in range(2):
        with pytest.raises(SlipstreamError, match=r"3 times in a row.*engine\.log"):
            cures.apply(LOAD, LOG)
        cures.apply(LOAD, LOG)
        cures.ended(End(""))
    assert cures.apply(Load("other.gguf"), LOG).model == "other.gguf"


def test_only_what_the_engine_needs_reaches_it() -> None:
    needed = {
        "PATH": "/bin", "HOME": "/home/me", "LC_ALL": "C", "OMP_NUM_THREADS": "2", "CUDA_VISIBLE_DEVICES": "0",
        "GGML_VK_VISIBLE_DEVICES": "1", "LD_LIBRARY_PATH": "/cuda", "TMPDIR": "/tmp",
        "MESA_VK_DEVICE_SELECT": "1002:73bf", "RADV_PERFTEST": "nggc", "DRI_PRIME": "1",
    }  # fmt: skip
    secret = (
        "HF_TOKEN", "OPENAI_API_KEY", "LLAMA_API_KEY", "LLAMA_ARG_HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION",
        "AWS_PROFILE", "GITHUB_PAT", "PGPASSWORD", "HTTPS_PROXY", "https_proxy", "SSH_AUTH_SOCK", "LD_PRELOAD", "DSN",
        "NVIDIA_API_KEY", "MYSQL_PWD", "DATABASE_URL", "KUBECONFIG", "PYTHON_KEYRING_BACKEND", "NETRC",
    )  # fmt: skip
    chosen = engine_environment(needed | dict.fromkeys(secret, "hush"))
    assert chosen == needed | {"GGML_NO_BACKTRACE": "1"}


def ended(handle: int) -> bool:
    return bool(select.select([handle], [], [], 60)[0])


@pytest.mark.parametrize("stopped", [False, True])
def test_an_interface_that_is_killed_takes_the_engine_with_it(tmp_path: Path, stopped: bool) -> None:
    if sys.platform != "linux":
        pytest.skip("asks the system in Linux's way")
    script = [sys.executable, "-c", INTERFACE, str(tmp_path / "engine.log")]
    interface = subprocess.Popen(script, stdout=subprocess.PIPE)
    assert interface.stdout
    with interface:
        engine = int(interface.stdout.readline())
        handle = os.pidfd_open(engine)
        if stopped:  # it can read no pipe: only the system can end it
            os.kill(engine, signal.SIGSTOP)
        interface.kill()
        assert ended(handle)
        os.close(handle)


def test_without_the_systems_help_a_closed_pipe_ends_one_that_hangs(tmp_path: Path) -> None:
    hangs = "w.import_module = lambda name: threading.Event().wait()"
    program = f"import threading, slipstream.app.engine.process.worker as w; {hangs}; w.main()"
    command = [sys.executable, "-c", program, str(tmp_path / "note")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as engine:
        assert engine.stdin and engine.stdout and engine.stdout.read(4)
        engine.stdin.close()
        assert engine.wait(60) == 1


def test_the_engine_outlives_the_thread_that_asked_for_it(tmp_path: Path) -> None:
    with closing(Engine(tmp_path / "engine.log")) as engine:
        asked = threading.Thread(target=engine.load, args=(bundled(tmp_path / "derived"),))
        asked.start()
        asked.join()
        *_, done = engine.reply(Generate(1, [Message("user", "Hello")], max_tokens=4))
        assert isinstance(done, Done)


@linux
def test_a_fault_leaves_no_core_and_says_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    log = tmp_path / "logs" / "engine.log"
    with closing(Engine(log)) as engine:
        with pytest.raises(SlipstreamError, match="no such file"):
            engine.load(Load("no such file"))
        limits = Path(f"/proc/{engine.process_id}/limits").read_text()
        assert next(line for line in limits.splitlines() if "core file" in line).split()[4:6] == ["0", "0"]
        with pytest.raises(EngineDiedError, match="SIGSEGV"):
            os.kill(engine.process_id or 0, signal.SIGSEGV)
            engine.load(Load("no such file"))
        assert "Segmentation fault" in log.read_text() and "worker.py" in log.read_text()
    assert {path.name for path in tmp_path.rglob("*")} == {"logs", "engine.log", "engine.note"}


@linux
def test_nobody_may_look_into_its_memory() -> None:
    module = "slipstream.app.platform.processes"
    program = f"import ctypes; from {module} import harden; harden(); print(ctypes.CDLL(None).prctl(3))"
    assert subprocess.check_output([sys.executable, "-c", program]) == b"0\n"  # PR_GET_DUMPABLE


def test_an_end_is_told_while_nothing_is_asked_but_not_one_that_was_wanted(tmp_path: Path) -> None:
    told: list[EngineDiedError] = []
    heard = threading.Event()

    def tell(error: EngineDiedError) -> None:
        told.append(error)
        heard.set()

    with closing(Engine(tmp_path / "engine.log")) as engine:
        engine.tell_end(tell)
        whole = engine.load(bundled(tmp_path / "derived"))
        os.kill(engine.process_id or 0, signal.SIGBUS)
        assert heard.wait(60)
        assert "while nothing was asked of it: the model file changed" in str(told[0])
        assert engine.process_id is None
        engine.load(bundled(tmp_path / "derived"))
        os.kill(engine.process_id or 0, signal.SIGKILL)  # amid a reply: whoever asked is told
        with pytest.raises(EngineDiedError, match="SIGKILL"):
            for event in engine.reply(Generate(1, [Message("user", "Hello")])):
                assert not isinstance(event, Done)
        halved = engine.load(bundled(tmp_path / "derived"))
        assert halved.n_ctx == whole.n_ctx // 2 and f"a context of {halved.n_ctx:,} tokens" in halved.remark
        steps = [event for event in engine.reply(Generate(2, [Message("user", "Hi")], max_tokens=4))]
        assert any(isinstance(step, Stepped) for step in steps)
    assert len(told) == 1


def test_errors_are_logged_without_what_they_quote() -> None:
    program = """
import threading
from slipstream.app.platform.processes import harden
harden()
def reply(text):
    raise ValueError(f"cannot write {text}")
reply_thread = threading.Thread(target=reply, args=("a secret",))
reply_thread.start()
reply_thread.join()
try:
    {"another secret": 1}["a third secret"]
except KeyError:
    reply("a fourth secret")
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.returncode == 1 and "secret" not in ran.stderr
    assert ran.stderr.count("Error: ValueError in reply, line 6") == 2
