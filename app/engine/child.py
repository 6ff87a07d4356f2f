"""One process of the engine, from its start to its end."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from slipstream.app.engine.awake import AwakeClock
from slipstream.app.engine.ends import End, end_of
from slipstream.app.engine.environment import engine_environment
from slipstream.app.engine.frames import ProtocolError, read_frame, write_frame
from slipstream.app.engine.patience import Limits, Patience
from slipstream.app.engine.protocol import Beat, Counted, Frame
from slipstream.app.engine.requests import Quit, Stop
from slipstream.app.paths import private_folder, unwritable
from slipstream.models.errors import unstartable

_LOOK_EVERY: Final = 1.0  # seconds
_TO_END: Final = 2.0  # seconds between the end of what it says and its own
_LOG_END: Final = 1 << 16  # bytes


class Child:
    """The process, and two threads: one starts it, hears what it says and sees it end; the other one judges it.

    Linux ends the process with the thread that started it, so that thread lives for as long as the process does.
    """

    def __init__(
        self, log: Path, limits: Limits, on_end: Callable[[Child], None], on_count: Callable[[Counted], None]
    ) -> None:
        """Starts it.

        Args:
            log: Where its standard error goes.
            limits: How long it may be silent.
            on_end: Hears, in a thread, that it has ended.
            on_count: Hears, in a thread, what a prompt takes that is being typed.

        Raises:
            SlipstreamError: If it cannot be started, or its log not be written.
        """
        self._log, self._on_end, self._on_count = log, on_end, on_count
        self._patience = Patience(limits)
        self._events: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        self._writing = threading.Lock()
        self._ended = threading.Event()
        self._given_up = ""
        started: Future[subprocess.Popen[bytes]] = Future()
        threading.Thread(target=self._live, args=(started,), name="engine's parent", daemon=True).start()
        self._process = started.result()
        threading.Thread(target=self._judge, name="engine's judge", daemon=True).start()

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return not self._ended.is_set()

    def write(self, message: Frame) -> None:
        """Sends a message.

        Raises:
            OSError: If nobody reads any more.
            ValueError: If the pipe was closed.
        """
        if isinstance(message, Stop):
            self._patience.stop_asked()
        with self._patience.waiting(), self._writing:
            write_frame(self._stdin, message)

    def read(self) -> Frame | None:
        """Waits for what it says next; None once it has ended."""
        with self._patience.waiting():
            event = self._events.get()
        if event is None:
            self._events.put(None)  # for whoever asks again
        return event

    def end(self) -> End:
        """Waits for the end of a process that says no more; returns why it ended."""
        self._ended.wait(2 * _TO_END)
        log = ""
        with suppress(OSError), self._log.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_END))
            log = file.read().decode("utf-8", "replace")
        return end_of(self._process.returncode, log, self._given_up)

    def close(self, patience: float) -> None:
        """Asks it to end, and kills it if it takes longer than ``patience`` seconds."""
        killer = threading.Timer(patience, self._process.kill)  # frees whoever writes into a full pipe, too
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
                self._patience.heard(event)
                if isinstance(event, Counted):
                    self._on_count(event)
                elif not isinstance(event, Beat):
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
            with suppress(OSError):  # half a message may wait in it
                pipe.close()
        self._ended.set()
        self._events.put(None)
        self._on_end(self)

    def _start(self) -> subprocess.Popen[bytes]:
        private_folder(self._log.parent)
        try:
            file = os.open(self._log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
        except OSError as error:
            raise unwritable(self._log, error) from error
        try:
            return subprocess.Popen(
                [sys.executable, "-m", "slipstream.app.engine.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                env=engine_environment(os.environ),
                start_new_session=True,  # Ctrl-C in the terminal is not for it
            )
        except OSError as error:
            raise unstartable("the engine's process", error) from error
        finally:
            os.close(file)

    def _judge(self) -> None:
        awake = AwakeClock(2 * _LOOK_EVERY)
        while not self._ended.wait(_LOOK_EVERY):
            verdict = self._patience.verdict(awake.passed())
            if verdict and not self._given_up:
                self._given_up = verdict
                self._process.kill()
