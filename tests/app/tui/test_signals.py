"""The chat in a real terminal: signals, and what is left behind."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from slipstream.app.chats.store import ChatStore

ROOT = Path(__file__).parents[3]
CHILD = """
import sys
from pathlib import Path
from slipstream.app.chats.store import ChatStore
from slipstream.app.engine.requests import Load
from slipstream.app.tui.app import ChatApp
from tests.app.tui.scripted import Script, ScriptedEngine
from tests.app.tui.scripted_models import ScriptedModels

store = ChatStore(Path(sys.argv[1]))
engine = ScriptedEngine([Script("one two three four five six seven eight nine ten", hold=10)])
app = ChatApp(engine, Load("mini.gguf", drafter="draft"), store, models=ScriptedModels)
app.run()
store.close()
sys.exit(app.return_code)
"""
LAUNCH = "import sys; from slipstream.app.launcher import run; sys.exit(run([sys.executable, *sys.argv[1:]]))"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_signal_ends_the_chat_and_leaves_the_terminal_as_it_was(tmp_path: Path, number: signal.Signals) -> None:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    before = termios.tcgetattr(slave)
    environment = os.environ | {"TERM": "xterm-256color", "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-c", LAUNCH, "-c", CHILD, str(tmp_path / "chats.db")]
    process = subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True, cwd=ROOT
    )
    output = bytearray()

    def read_until(*marks: bytes) -> None:
        end = time.monotonic() + 40
        while not all(mark in output for mark in marks):
            assert time.monotonic() < end, bytes(output[-2000:])
            if select.select([master], [], [], 0.05)[0]:
                output.extend(os.read(master, 65536))
            if process.poll() is not None and not select.select([master], [], [], 0)[0]:
                break

    read_until(b"ready")
    os.write(master, b"hello\x1b\r")  # Alt-Enter: a second line
    os.write(master, b"you")
    read_until(b"you")
    os.write(master, b"\r")
    read_until(b"writing")
    time.sleep(0.5)  # what was written in the last 250 ms may be lost
    if number == signal.SIGKILL:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        victim = int(children.read_text().split()[0])
    else:
        victim = process.pid
    os.kill(victim, number)
    output.clear()
    read_until(b"\x1b[?1049l")
    while process.poll() is None:
        if select.select([master], [], [], 0.05)[0]:
            output.extend(os.read(master, 65536))
    assert process.wait() == 128 + number
    assert b"\x1b[?25h" in output
    assert termios.tcgetattr(slave) == before
    assert b"Traceback" not in output
    kept = ChatStore(tmp_path / "chats.db")
    question, answer = kept.messages(kept.list_chats()[0].id)
    assert question.content == "hello\nyou"
    assert answer.status == ("interrupted" if number == signal.SIGKILL else "done")
    assert answer.content.startswith("one two")
    kept.close()
    os.close(master)
    os.close(slave)
