"""The engine's process as the rest of the application sees it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from slipstream.app.engine.frames import ProtocolError, read_frame, write_frame
from slipstream.app.engine.protocol import (
    VERSION,
    Done,
    Failed,
    Frame,
    Hello,
    Loaded,
    Loading,
    Prefilling,
    Stepped,
)
from slipstream.app.engine.requests import Generate, Load, Prepare, Quit, Stop, Watch
from slipstream.app.paths import private_folder
from slipstream.models.errors import EngineDiedError, SlipstreamError

_LAST_WORDS = ("GGML_ASSERT", "GGML_ABORT", "terminate called", "CUDA error", "Error:")
_SECRETS = ("TOKEN", "API_KEY", "SECRET", "PASSWORD", "LD_PRELOAD")


class Engine:
    """Starts the engine's process when it is first needed, and again after it died.

    ``load`` and ``reply`` block and belong to one thread at a time; ``prepare``, ``stop`` and ``close`` may come from
    any.
    """

    def __init__(self, log: Path) -> None:
        """Keeps where the process writes its log; nothing is started yet."""
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._greeted = False
        self._watched = False
        self._writing = threading.Lock()

    @property
    def process_id(self) -> int | None:
        """The process, or None while there is none."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Starts the process if there is none; it gets ready while the caller does other things.

        Raises:
            SlipstreamError: If its log cannot be written.
        """
        if self._process and self._process.poll() is None:
            return
        self.close()
        private_folder(self._log.parent)
        environment = {k: v for k, v in os.environ.items() if not any(word in k.upper() for word in _SECRETS)}
        environment["GGML_NO_BACKTRACE"] = "1"  # or an abort starts a debugger and hangs
        with open(os.open(self._log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "slipstream.app.engine.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C in the terminal is not for it
            )
        self._greeted = False

    def load(self, load: Load, on_progress: Callable[[float | None], None] | None = None) -> Loaded:
        """Loads a model.

        Raises:
            SlipstreamError: If it cannot be loaded; the title says why.
            EngineDiedError: If the process ended while loading.
        """
        self.start()
        if not self._greeted:
            self._greet()
            if self._watched:
                self._send(Watch(True))  # the process before knew
        self._send(load)
        while True:
            event = self._receive("while it loaded the model")
            if isinstance(event, Loading):
                if on_progress:
                    on_progress(event.share)
            elif isinstance(event, Loaded):
                return event

    def reply(self, generate: Generate) -> Iterator[Prefilling | Stepped | Done]:
        """Asks for a reply; ends with ``Done``.

        Raises:
            SlipstreamError: If it cannot be served; the engine lives on.
            EngineDiedError: If the process ended; what was yielded so far is what there is.
        """
        if self._process is None or self._process.poll() is not None:
            raise self._died("before the reply")
        self._send(generate)
        ended = False
        try:
            while not ended:
                event = self._receive("while it wrote the reply", generate.request)
                if isinstance(event, Prefilling | Stepped | Done) and event.request == generate.request:
                    ended = isinstance(event, Done)
                    yield event
        finally:
            if not ended and self._process:  # the listener left early, or an error came
                self.stop(generate.request)

    def prepare(self, prepare: Prepare) -> None:
        """Lets the engine read what is being typed, as long as it has nothing else to do; harmless if it has ended."""
        self._tell(prepare)

    def watch(self, on: bool) -> None:
        """Has every step of this reply and the next ones carry its draft, or no longer; harmless at any time."""
        self._watched = on
        self._tell(Watch(on))

    def stop(self, request: int) -> None:
        """Ends a reply; its ``Done`` still comes."""
        with suppress(SlipstreamError):
            self._send(Stop(request))

    def close(self, patience: float = 2.0) -> None:
        """Ends the process; harmless if there is none.

        Args:
            patience: Seconds that it may take, to keep the state of a chat for example, before it is killed.
        """
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(OSError, ValueError):
            assert process.stdin
            write_frame(process.stdin, Quit())
            process.stdin.close()
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout:
            process.stdout.close()

    def _greet(self) -> None:
        hello = self._receive("while it started")
        if not isinstance(hello, Hello) or hello.version != VERSION:
            self.close()
            raise SlipstreamError("the engine is of another version than the interface.", "Install slipstream again.")
        self._greeted = True

    def _tell(self, message: Prepare | Watch) -> None:
        """Sends what nothing answers; if the process has ended, the next reply finds out why."""
        process = self._process
        if process and process.stdin:
            with suppress(OSError, ValueError), self._writing:
                write_frame(process.stdin, message)

    def _send(self, message: Frame) -> None:
        process = self._process
        try:
            if process is None or process.stdin is None:
                raise BrokenPipeError
            with self._writing:
                write_frame(process.stdin, message)
        except (OSError, ValueError) as error:
            raise self._died("before it was asked") from error

    def _receive(self, when: str, request: int = 0) -> Frame:
        """Reads the next event; a refusal of this request is raised, one of an earlier reply is nobody's any more."""
        process = self._process
        while True:
            try:
                event = read_frame(process.stdout) if process and process.stdout else None
            except (ProtocolError, OSError, ValueError) as error:
                raise self._died(f"{when} ({error})") from error
            if event is None:
                raise self._died(when)
            if not isinstance(event, Failed):
                return event
            if event.request == request:
                refusal = SlipstreamError(event.title, event.hint)
                refusal.code = event.code
                raise refusal

    def _died(self, when: str) -> EngineDiedError:
        """Words the end of the process, with its signal and the last line of its log."""
        process, self._process = self._process, None
        reason = "it is not running"
        if process:
            try:
                code = process.wait(2)
            except subprocess.TimeoutExpired:
                process.kill()
                code = process.wait()
            reason = f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
            if code == -signal.SIGKILL:
                reason += ", probably out of memory"
        return EngineDiedError(
            f"the engine ended {when}: {reason}{self._last_words()}.",
            "What was written is kept; the next message starts it again.",
        )

    def _last_words(self) -> str:
        with suppress(OSError):
            lines = self._log.read_bytes()[-4096:].decode("utf-8", "replace").splitlines()
            telling = [line for line in lines if any(mark in line for mark in _LAST_WORDS)]
            if telling:
                return f" ({telling[-1].strip()[:200]})"
        return ""
