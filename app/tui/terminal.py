"""The terminal that the chat draws on: given back as it was found, also where nobody waits for it or it is gone."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import termios
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Any, cast

from textual.app import App
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver

ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGINT)
"""Signals that end the chat as its owner would; Ctrl-C is a key and sends none."""
PATIENCE = 5.0
"""Seconds that a chat has to end once it was told to; then its process is ended, and the launcher cleans up."""
LOOK_EVERY = 0.5
"""Seconds between two looks at whether the launcher and the terminal are still there."""


class ChatDriver(LinuxDriver):
    """Textual's driver for Linux and macOS, for a terminal that may be gone or another's by the time the chat ends."""

    def __init__(
        self, app: App[Any], *, debug: bool = False, mouse: bool = True, size: tuple[int, int] | None = None
    ) -> None:
        """Takes what Textual gives."""
        super().__init__(app, debug=debug, mouse=mouse, size=size)
        self._file = cast(Any, _Output(cast(IO[str], self._file), self._lost))
        self._drawing: list[Any] | None = None  # the terminal's attributes while the chat draws

    def start_application_mode(self) -> None:
        """Takes the terminal."""
        super().start_application_mode()  # type: ignore[no-untyped-call]
        self._drawing = self._attributes()

    def stop_application_mode(self) -> None:
        """Gives the terminal back.

        A shell whose job, the launcher, was killed has the terminal already: writing to its attributes would stop this
        process, or undo what the shell has set.
        """
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        if self._attributes() != self._drawing:
            self.attrs_before = None
        super().stop_application_mode()

    def _sigcont_application(self, *_: object) -> None:
        """Goes on after a stop; one that nobody announced (SIGSTOP, a terminal that hung up) has kept the terminal."""
        if self._must_signal_resume:
            super()._sigcont_application()
        else:
            self._loop.call_soon_threadsafe(self._app.refresh)

    def _attributes(self) -> list[Any] | None:
        with suppress(termios.error):
            return termios.tcgetattr(self.fileno)
        return None

    def _lost(self) -> None:
        """Ends the chat, from the thread that writes."""
        with suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(self._app.exit, None, 128 + signal.SIGHUP)


def chat_driver(usual: type[Driver]) -> type[Driver]:
    """The driver for a chat: this module's, unless another than the system's is asked for."""
    return ChatDriver if usual is LinuxDriver else usual


class _Output:
    """A terminal to write to; what is written once it is gone is gone, too, and keeps nobody waiting."""

    def __init__(self, file: IO[str], lost: Callable[[], None]) -> None:
        self._file, self._lost = file, lost

    def write(self, text: str) -> None:
        try:
            self._file.write(text)
        except OSError:
            self._lost()

    def flush(self) -> None:
        try:
            self._file.flush()
        except OSError:
            self._lost()

    def fileno(self) -> int:
        return self._file.fileno()


def leave_cleanly(app: App[int]) -> None:
    """Ends an app that runs, the terminal restored and all kept, on a signal or once launcher or terminal are gone.

    An app that does not end in time, because it waits for something, is ended: its launcher restores the terminal.
    """
    loop = asyncio.get_running_loop()
    launcher, terminal = os.getppid(), os.isatty(0)

    def end(number: int) -> None:
        app.exit(None, 128 + number)
        last = threading.Timer(PATIENCE, os._exit, (128 + number,))  # a part of the screen may never answer
        last.daemon = True
        last.start()

    def look() -> None:  # a timer of the app's would wait as the app does
        if os.getppid() != launcher or (terminal and _hung_up(0)):
            end(signal.SIGHUP)
        else:
            loop.call_later(LOOK_EVERY, look)

    for number in ENDING:
        loop.add_signal_handler(number, end, number)
    look()


def _hung_up(terminal: int) -> bool:
    """Whether the other end was closed."""
    poll = select.poll()
    poll.register(terminal, 0)
    return any(found & select.POLLHUP for _, found in poll.poll(0))
