"""The engine's process: reads requests from its standard input, writes events to its standard output."""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import IO, Final

from slipstream.app.engine.frames import ProtocolError, read_frame, write_frame
from slipstream.app.engine.guard import guard
from slipstream.app.engine.pace import Pace
from slipstream.app.engine.protocol import Beat, Done, Failed, Frame, Hello, Loaded, Loading
from slipstream.app.engine.pulse import Pulse
from slipstream.app.engine.requests import Generate, Load, Prepare, Quit, Stop, Watch
from slipstream.app.engine.session import Session
from slipstream.models.errors import SlipstreamError

_QUIET: Final = 1.0  # seconds
_LAST_WORDS: Final = 1.0
"""Seconds to end in order in once the interface is gone; Linux leaves it none."""


class Worker:
    """Serves one interface: a thread reads requests, the main thread does the work, so that a stop is heard at once."""

    def __init__(self, requests: IO[bytes], events: IO[bytes]) -> None:
        """Starts to listen."""
        self._requests, self._events = requests, events
        self._work: queue.SimpleQueue[Load | Generate | Prepare | None] = queue.SimpleQueue()
        self._stopped = 0  # replies up to this number are to end
        self._asked = self._answered = 0  # loads and replies
        self._watched = False  # whether somebody looks at the drafts
        self._session: Session | None = None
        self._telling = threading.Lock()
        self._pulse = Pulse(self._beat, lambda: self._asked > self._answered)
        threading.Thread(target=self._listen, name="requests", daemon=True).start()

    def serve(self) -> None:
        """Works until the interface leaves."""
        self._tell(Hello())
        self._pulse.start()
        import_module("slipstream.app.engine.loading")  # llama.cpp: while the interface gets ready, too
        while (task := self._next()) is not None:
            if isinstance(task, Prepare):
                self._prepare(task)
                continue
            try:
                answer: Frame = self._load(task) if isinstance(task, Load) else self._reply(task)
            except SlipstreamError as error:
                number = task.request if isinstance(task, Generate) else 0
                answer = Failed(error.title, error.hint, error.code, number)
            self._answered += 1
            self._tell(answer)
        if self._session:
            self._session.close()

    def _next(self) -> Load | Generate | Prepare | None:
        """Waits for a task; once it has been quiet for a while, does what can wait."""
        patience: float | None = _QUIET
        while True:
            try:
                return self._work.get(timeout=patience)
            except queue.Empty:
                more = self._session is not None and self._session.idle()
                patience = 0.0 if more else self._session.due() if self._session else None

    def _load(self, task: Load) -> Loaded:
        from slipstream.app.engine.loading import load

        if self._session:
            self._session.close()
            self._session = None
        self._session, loaded = load(task, lambda share: self._tell(Loading(share)))
        return loaded

    def _reply(self, task: Generate) -> Done:
        if self._session is None:
            raise SlipstreamError("no model is loaded.", "Load one first.")
        pace = Pace(self._tell, task.frame_ms)
        try:
            return self._session.reply(task, pace, partial(self._cancelled, task.request), lambda: self._watched)
        finally:
            pace.flush()

    def _prepare(self, task: Prepare) -> None:
        """Reads ahead until something else is asked; what fails here is said when the reply is asked for."""
        stopped = self._stopped
        if self._session and self._work.empty():
            with suppress(SlipstreamError):
                self._session.prepare(task, lambda: not self._work.empty(), lambda: self._stopped > stopped, self._tell)

    def _cancelled(self, request: int) -> bool:
        """Asked between steps, chunks and the nodes of a graph: so it shows that they come."""
        self._pulse.sign()
        return self._stopped >= request

    def _listen(self) -> None:
        asked_to_leave = False
        try:
            while not asked_to_leave and (message := read_frame(self._requests)) is not None:
                if isinstance(message, Stop):
                    self._stopped = max(self._stopped, message.request)
                elif isinstance(message, Watch):
                    self._watched = message.on
                elif isinstance(message, Load | Generate):
                    self._asked += 1
                    self._work.put(message)
                elif isinstance(message, Prepare) and self._asked == self._answered:
                    self._work.put(message)  # else it is of the chat as it was before the reply that is under way
                asked_to_leave = isinstance(message, Quit)
        except (ProtocolError, OSError):
            pass  # as if the interface were gone
        finally:
            self._stopped = sys.maxsize  # nobody is left to read what is being written
            self._work.put(None)
            if not asked_to_leave:
                time.sleep(_LAST_WORDS)
                os._exit(1)

    def _tell(self, event: Frame) -> None:
        with suppress(BrokenPipeError), self._telling:  # the reader thread sees the other end close too
            write_frame(self._events, event)
        self._pulse.sign()

    def _beat(self, beat: Beat) -> None:
        with suppress(BrokenPipeError), self._telling:
            write_frame(self._events, beat)


def main() -> None:
    """Runs the process."""
    guard()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the interface's to handle
    events = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # no printf of a C library may break a frame
    Worker(sys.stdin.buffer, events).serve()
    os._exit(0)  # the reader thread may still wait for a pipe


if __name__ == "__main__":
    main()
