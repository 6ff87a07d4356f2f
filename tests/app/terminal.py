"""A real terminal for a program: a pseudo-terminal, a terminal emulator behind it, and a shell that waits in front."""

import copy
import ctypes
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pyte

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0  # seconds; a busy machine is slow, a program that shows nothing for so long has failed
_SHELL = 'printf started; "$@"; echo "left $?."; read -r _'
"""Starts a program as a job of its own, as an owner's shell does, and tells how it ended once the terminal is back."""
_PR_SET_PDEATHSIG = 1
_NOT_EMULATED = re.compile(rb"\x1b\[[<>=][0-9;]*[a-zA-Z]|\x1b\[\?\d+\$p|\x1b(?:\[[0-?]*)?[ -/]*(?=\x1b)")
"""The keyboard's protocols, questions, and a sequence that another one breaks off, as that of a killed program is."""
_UNENDED = re.compile(rb"\x1b(?:\[[<>=?0-9;$]*)?\Z")
_PUSH, _POP = re.compile(rb"\x1b\[>\d+u"), b"\x1b[<u"
_ALTERNATE = 1049
_LONGEST = 64  # bytes of a sequence


class _Screen(pyte.Screen):
    """pyte's screen, and the other one that full-screen programs draw on."""

    alternate = False

    def set_mode(self, *modes: int, **more: Any) -> None:
        super().set_mode(*modes, **more)
        if more.get("private") and _ALTERNATE in modes and not self.alternate:
            self.alternate = True
            self._main = copy.deepcopy(dict(self.buffer)), copy.copy(self.cursor)
            self.erase_in_display(2)

    def reset_mode(self, *modes: int, **more: Any) -> None:
        super().reset_mode(*modes, **more)
        if more.get("private") and _ALTERNATE in modes and self.alternate:
            self.alternate = False
            lines, self.cursor = self._main
            self.buffer.clear()
            self.buffer.update(lines)
            self.dirty.update(range(self.lines))


def process_on(
    terminal: int, command: Sequence[str], home: Path, more: Iterable[tuple[str, str]] = ()
) -> subprocess.Popen[bytes]:
    """Starts a program whose controlling terminal this is; it dies with this process, however this one ends."""
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None

    def before() -> None:
        os.login_tty(terminal)  # else nobody hears that the terminal was closed
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)  # the tests may run where they are ignored, as under nohup
        if libc:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    environment = {
        **os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", "TEXTUAL_ANIMATIONS": "none",
        "SLIPSTREAM_HOME": str(home), "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}", **dict(more),
    }  # fmt: skip
    return subprocess.Popen(command, env=environment, cwd=ROOT, preexec_fn=before)


class Terminal:
    def __init__(
        self, *command: str, home: Path, size: tuple[int, int] = (80, 24), more: Iterable[tuple[str, str]] = ()
    ) -> None:
        """Starts a program in a terminal of columns and lines; the other arguments are those of ``process_on``."""
        self._master, self._slave = pty.openpty()
        self._screen = _Screen(*size)
        self._stream = pyte.ByteStream(self._screen)
        self._rest = b""
        self._keyboards = 0
        self.sent = bytearray()  # all that the terminal was sent
        self.resize(*size)
        self._before = self.state
        shell = ["sh", "-mc", _SHELL, "sh", *command]
        self._shell = process_on(self._slave, shell, home, more)

    # --- what is seen ---------------------------------------------------------------------------------------------

    @property
    def shown(self) -> str:
        return "\n".join(line.rstrip() for line in self._screen.display)

    @property
    def state(self) -> tuple[object, ...]:
        """All that a program can change of a terminal: attributes, modes, screen, protocols of the keyboard."""
        return (
            termios.tcgetattr(self._slave), frozenset(self._screen.mode), self._screen.alternate,
            self._screen.cursor.hidden, self._keyboards,
        )  # fmt: skip

    @property
    def as_before(self) -> bool:
        return self.state == self._before

    @property
    def process(self) -> int:
        """The shell, whose child the program is."""
        return self._shell.pid

    @property
    def code(self) -> int | None:
        """The program's exit code as its shell saw it; None while it runs."""
        left = re.search(rb"left (\d+)\.", self.sent)
        return int(left[1]) if left else None

    def read(self, seconds: float = 0.0) -> bool:
        """Takes what the terminal was sent; whether there was something within these seconds."""
        if not select.select([self._master], [], [], seconds)[0]:
            return False
        try:
            new = os.read(self._master, 1 << 16)
        except OSError:  # the last process has left the terminal
            return False
        self.sent += new
        whole = self._rest + new
        unended = _UNENDED.search(whole, max(len(whole) - _LONGEST, 0))
        end = unended.start() if unended else len(whole)
        whole, self._rest = whole[:end], whole[end:]
        self._keyboards += len(_PUSH.findall(whole)) - whole.count(_POP)
        self._stream.feed(_NOT_EMULATED.sub(b"", whole))
        return True

    def until(self, done: Callable[[], bool], seconds: float = PATIENCE) -> None:
        end = time.monotonic() + seconds
        while not done():
            over = self.code is not None  # then nothing more comes, but what is on its way
            assert self.read(0.05) or not over or done(), self.shown
            assert time.monotonic() < end, self.shown

    def shows(self, *texts: str) -> None:
        """Lets the program run until its screen has all of these."""
        self.until(lambda: all(text in self.shown for text in texts))

    def replies(self) -> None:
        """Lets the program write its first reply, or have written it: a short one may be over in a frame."""
        before = self.shown.count("first token")  # of earlier replies on the screen
        self.until(lambda: "Esc stops" in self.shown or self.shown.count("first token") > before)

    # --- what is done ---------------------------------------------------------------------------------------------

    def type(self, keys: str) -> None:
        self.send(keys.encode())

    def send(self, data: bytes) -> None:
        """Sends bytes, and reads meanwhile: a program that has much to draw takes nothing before that."""
        while data:
            if select.select([], [self._master], [], 0)[1]:
                data = data[os.write(self._master, data[:1024]) :]
            else:
                self.read(0.01)

    def resize(self, columns: int, lines: int) -> None:
        self._screen.resize(lines, columns)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def ended(self) -> int:
        """Waits until the shell has its terminal again; returns the exit code, 128 and its number for a signal."""
        self.until(lambda: self.code is not None)
        code = self.code
        assert code is not None
        return code

    def hang_up(self) -> None:
        os.close(self._master)
        os.close(self._slave)
        self._master = self._slave = -1
        self._shell.wait(PATIENCE)

    def close(self) -> None:
        if self._master >= 0:
            self.hang_up()

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def gone(process: int, seconds: float = PATIENCE, beside: Terminal | None = None) -> bool:
    """Whether a process ends within some seconds; its terminal is read meanwhile, for which it may wait."""
    end = time.monotonic() + seconds
    while _lives(process):
        if time.monotonic() > end:
            return False
        if beside is None or not beside.read(0.005):
            time.sleep(0.005)
    return True


def _lives(process: int) -> bool:
    """Whether a process has not ended; one that has, but whose parent has not heard of it yet, lives no more."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(process)], capture_output=True, text=True).stdout
    return not state.strip().startswith("Z")
