"""One run of the engine's process, and its environment variables."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from slipstream.app.engine.process.frames import ProtocolError, read_frame, write_frame
from slipstream.app.engine.process.recovery import End, end_of
from slipstream.app.engine.process.watchdog import Limits, SuspendClock, Watchdog
from slipstream.app.platform.paths import private_folder, worded
from slipstream.app.protocol.events import Beat, Counted, Frame
from slipstream.app.protocol.requests import Quit, Stop
from slipstream.drafters.crash_note import CrashNote, begin_note
from slipstream.models.errors import unstartable
from slipstream.models.outside import check_regular

_NAMES: Final = frozenset(
    (
        "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TMP", "TEMP", "VIRTUAL_ENV",
        "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH", "NIX_LD", "NIX_LD_LIBRARY_PATH",
        "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR", "SYSTEMROOT", "SYSTEMDRIVE", "WINDIR",
        "USERPROFILE", "APPDATA", "LOCALAPPDATA", "PROGRAMDATA", "PATHEXT", "COMSPEC", "NUMBER_OF_PROCESSORS",
    )
)  # fmt: skip
_BEGINNINGS: Final = (
    "LC_", "PYTHON", "SLIPSTREAM_", "GGML_", "LLAMA_", "OMP_", "GOMP_", "KMP_", "OPENBLAS_", "MKL_", "BLIS_", "VECLIB_",
    "CUDA_", "NVIDIA_", "HIP_", "HSA_", "ROCM_", "ROCR_", "GPU_", "MTL_", "METAL_", "VK_", "VULKAN_", "ONEAPI_", "ZE_",
    "SYCL_", "MESA_", "RADV_", "ANV_", "DRI_", "AMD_", "INTEL_", "PROCESSOR_",
)  # fmt: skip
_SECRET: Final = ("TOKEN", "KEY", "SECRET", "PASS", "CREDENTIAL", "AUTH")
_WORKER: Final = (  # hardened before llama.cpp is loaded, which may hang in a driver
    "from slipstream.app.platform.processes import harden; harden(); "
    "from slipstream.app.engine.process.worker import main; main()"
)
_LOOK_EVERY: Final = 1.0  # seconds
_TO_END: Final = 2.0  # maximum seconds from the end of its output to the end of the process
_LOG_END: Final = 1 << 16  # bytes


def engine_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Chooses the environment variables of the engine's process: those it needs, without secrets.

    It passes only listed names, since any other variable may hold a secret: even a proxy's address can.
    """
    chosen = {}
    for name, value in environment.items():
        secret = any(word in name.upper() for word in _SECRET)
        if name.upper() in _NAMES or (name.upper().startswith(_BEGINNINGS) and not secret):
            chosen[name] = value
    chosen["GGML_NO_BACKTRACE"] = "1"  # otherwise an abort starts a debugger, and hangs
    return chosen


class EngineProcess:
    """The process and two threads: one starts it, reads its frames and waits for its end; one is its watchdog.

    Linux kills the process when the thread that started it ends, so that thread lives as long as the process.
    """

    def __init__(
        self,
        log: Path,
        limits: Limits,
        on_end: Callable[[EngineProcess], None],
        on_count: Callable[[Counted], None],
        on_beat: Callable[[Beat], None],
    ) -> None:
        """Starts it; the callbacks run in a thread: at its end, with the size of a typed prompt, at every heartbeat."""
        self._log, self._on_end, self._on_count, self._on_beat = log, on_end, on_count, on_beat
        self._note = log.with_suffix(".note")
        self.watchdog = Watchdog(limits)
        self._events: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        self._writing = threading.Lock()
        self._ended = threading.Event()
        self._given_up = ""
        started: Future[subprocess.Popen[bytes]] = Future()
        threading.Thread(target=self._live, args=(started,), name="engine's parent", daemon=True).start()
        self._process = started.result()
        threading.Thread(target=self._judge, name="engine's watchdog", daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return not self._ended.is_set()

    def write(self, message: Frame) -> None:
        """Sends a message; raises ``OSError`` or ``ValueError`` if the pipe is closed."""
        if isinstance(message, Stop):
            self.watchdog.stop_asked()
        with self.watchdog.waiting(), self._writing:
            write_frame(self._stdin, message)

    def read(self) -> Frame | None:
        with self.watchdog.waiting():
            event = self._events.get()
        if event is None:
            self._events.put(None)  # for the next call
        return event

    def end(self) -> End:
        """Waits for the end of a process whose output has ended; returns how it ended."""
        self._ended.wait(2 * _TO_END)
        log = ""
        with suppress(OSError):
            check_regular(self._log)
            with self._log.open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_END))
                log = file.read(_LOG_END).decode("utf-8", "replace")
        return end_of(self._process.returncode, log, self._given_up, CrashNote.of(self._note))

    def close(self, patience: float) -> None:
        killer = threading.Timer(patience, self._process.kill)  # also frees a thread that writes into a full pipe
        killer.daemon = True
        killer.start()
        with suppress(OSError, ValueError), self._writing:
            write_frame(self._stdin, Quit())
            self._stdin.close()
        self._ended.wait(patience + _TO_END)
        killer.cancel()

    @property
    def _stdin(self) -> IO[bytes]:
        assert self._process.stdin
        return self._process.stdin

    def _live(self, started: Future[subprocess.Popen[bytes]]) -> None:
        try:
            process = self._start()
        except BaseException as error:
            started.set_exception(error)
            return
        started.set_result(process)
        assert process.stdout and process.stdin
        fault = "it closed its pipe"
        try:
            while (event := read_frame(process.stdout)) is not None:
                self.watchdog.received(event)
                if isinstance(event, Counted):
                    self._on_count(event)
                elif isinstance(event, Beat):
                    self._on_beat(event)
                else:
                    self._events.put(event)
        except (ProtocolError, OSError) as error:
            fault = f"it spoke nonsense ({error})"
        try:
            process.wait(_TO_END)
        except subprocess.TimeoutExpired:
            self._given_up = self._given_up or fault
            process.kill()
            process.wait()
        for pipe in (process.stdout, process.stdin):
            with suppress(OSError):  # a buffered message may fail to flush
                pipe.close()
        self._ended.set()
        self._events.put(None)
        self._on_end(self)

    def _start(self) -> subprocess.Popen[bytes]:
        private_folder(self._log.parent)
        with worded(self._log):
            never_waits = getattr(os, "O_NONBLOCK", 0)  # if it is a pipe
            file = os.open(self._log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | never_waits, 0o600)
        begin_note(self._note)
        try:
            return subprocess.Popen(
                [sys.executable, "-c", _WORKER, str(self._note)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                env=engine_environment(os.environ),
                start_new_session=True,  # Ctrl-C in the terminal must not end it
            )
        except OSError as error:
            raise unstartable("the engine's process", error) from error
        finally:
            os.close(file)

    def _judge(self) -> None:
        awake = SuspendClock(2 * _LOOK_EVERY)
        while not self._ended.wait(_LOOK_EVERY):
            verdict = self.watchdog.verdict(awake.passed())
            if verdict and not self._given_up:
                self._given_up = verdict
                self._process.kill()
