"""No engine outlives its interface, none ends with a thread of it, and none leaves what it knew behind."""

import os
import select
import signal
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest
from tests.app.engine.disturbed import bundled

from slipstream.app.engine.process.client import Engine
from slipstream.app.protocol.events import Done, Stepped
from slipstream.app.protocol.requests import Generate, Load, Message
from slipstream.models.errors import EngineDiedError, SlipstreamError

pytestmark = pytest.mark.program

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
