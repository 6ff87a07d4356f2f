"""The terminal of the chat: reads its input, and restores it at the end, even if the launcher is gone."""

import asyncio
import os
import select
import signal
import sys
import termios
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Any, cast

from textual.app import App
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver
from textual.drivers.linux_inline_driver import LinuxInlineDriver
from textual.events import CursorPosition
from textual.message import Message

from slipstream.app.tui.input_guard import InputReader, mark
from slipstream.models.errors import UsageError

assert sys.platform != "win32"  # mypy checks the rest for POSIX only

ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGINT)
"""Signals that end the chat as Ctrl-Q does; Ctrl-C is a key here and sends no signal."""
PATIENCE = 5.0  # seconds until a chat that is ending is killed; the launcher then restores the terminal
TICK = 0.1  # seconds between two looks for the end of an unfinished sequence
READ = 1 << 16  # bytes to read at once
CHECK_EVERY = 0.5  # seconds between two checks that the launcher and the terminal are still there


class ChatDriver(LinuxDriver):
    """Textual's driver for Linux and macOS; the terminal may be gone, or used by the shell, when the chat ends."""

    def __init__(
        self, app: App[Any], *, debug: bool = False, mouse: bool = True, size: tuple[int, int] | None = None
    ) -> None:
        super().__init__(app, debug=debug, mouse=mouse, size=size)
        self._file = cast(Any, _Output(cast(IO[str], self._file), self._lost))
        self._drawing: list[Any] | None = None  # the terminal's attributes while the chat draws

    def start_application_mode(self) -> None:
        super().start_application_mode()  # type: ignore[no-untyped-call]
        self._drawing = self._attributes()

    def stop_application_mode(self) -> None:
        """Restores the terminal, unless its attributes have changed.

        After its launcher was killed, the shell has the terminal again: setting the attributes would stop this
        process, or undo what the shell has set.
        """
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        if self._attributes() != self._drawing:
            self.attrs_before = None
        super().stop_application_mode()

    def run_input_thread(self) -> None:
        _read_input(self, self.process_message)

    def send_message(self, message: Message) -> None:
        mark(message)
        super().send_message(message)

    def _sigtstp_application(self, *_: object) -> None:
        """Restores the terminal, then stops the whole job: the shell takes over once the launcher has stopped, too."""
        self.suspend_application_mode()
        self._must_signal_resume = True
        os.killpg(0, signal.SIGSTOP)

    def _sigcont_application(self, *_: object) -> None:
        """Continues after a stop. After SIGSTOP the terminal is still in the chat's mode and only has to be redrawn."""
        if self._must_signal_resume:
            super()._sigcont_application()
        else:
            self._loop.call_soon_threadsafe(self._app.refresh)

    def _attributes(self) -> list[Any] | None:
        with suppress(termios.error):
            return termios.tcgetattr(self.fileno)
        return None

    def _lost(self) -> None:
        """Ends the chat; called by the thread that writes to the terminal."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._app.exit, None, 128 + signal.SIGHUP)


class InlineDriver(LinuxInlineDriver):
    """Textual's driver for a few lines below the shell's prompt."""

    def run_input_thread(self) -> None:
        _read_input(self, self._receive)

    def send_message(self, message: Message) -> None:
        mark(message)
        super().send_message(message)

    def _receive(self, message: Message) -> None:
        if isinstance(message, CursorPosition):
            self.cursor_origin = (message.x, message.y)
        else:
            self.process_message(message)


def chat_driver(usual: type[Driver], inline: bool = False) -> type[Driver]:
    """Replaces Textual's Linux driver by the chat's; others (headless, web) stay."""
    return usual if usual is not LinuxDriver else InlineDriver if inline else ChatDriver


def _read_input(driver: ChatDriver | InlineDriver, receive: Callable[[Message], None]) -> None:
    """Passes on what the terminal sends until the driver closes its input; runs in the driver's thread."""
    reader = InputReader()
    with suppress(OSError, RuntimeError):  # the terminal is gone, or the chat has ended
        while not driver.exit_event.is_set():
            if select.select([driver.fileno], [], [], TICK)[0]:
                data = os.read(driver.fileno, READ)
                if not data:
                    return
                for message in reader.feed(data, time.monotonic()):
                    receive(message)
            for message in reader.tick(time.monotonic()):
                receive(message)


class _Output:
    """Writes to the terminal; once the terminal is gone, drops the text and reports it."""

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
    """Ends an app in order on a signal, or once the launcher or the terminal is gone.

    An app that does not end in time is killed; the launcher restores the terminal.
    """
    loop = asyncio.get_running_loop()
    launcher, terminal = os.getppid(), os.isatty(0)

    def end(number: int) -> None:
        app.exit(None, 128 + number)
        end_in_time(128 + number)

    def check() -> None:  # a timer of the app would not fire while the app hangs
        if os.getppid() != launcher or (terminal and _hung_up(0)):
            end(signal.SIGHUP)
        else:
            loop.call_later(CHECK_EVERY, check)

    for number in ENDING:
        loop.add_signal_handler(number, end, number)
    check()


def end_in_time(code: int) -> None:
    """Ends this process with an exit code after ``PATIENCE``, even if something hangs."""
    last = threading.Timer(PATIENCE, os._exit, (code,))  # a thread or a widget may hang
    last.daemon = True
    last.start()


def suspend() -> None:
    """Stops this job with its launcher, until ``fg``; raises ``UsageError`` without a shell with job control."""
    if os.getpgrp() == os.getsid(0):
        raise UsageError("there is no shell to return to; nothing was suspended.", "Ctrl-Q quits.")
    os.kill(os.getpid(), signal.SIGTSTP)


def _hung_up(terminal: int) -> bool:
    poll = select.poll()
    poll.register(terminal, 0)
    return any(found & select.POLLHUP for _, found in poll.poll(0))
