"""Commands of slipstream that go on beside the chat, each in a process of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio import StreamReader
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from slipstream.app.engine.environment import engine_environment
from slipstream.app.safe_text import one_line
from slipstream.models.errors import unstartable

INTERRUPTED: Final = 130
NICE: Final = 10
"""How much less urgent than the chat a long piece of work is, as ``nice`` counts."""

_PREFIX: Final = "slipstream: "
_LINE: Final = 1 << 20  # bytes of the longest line
_KEPT: Final = 200  # lines of its output
_PATIENCE: Final = 1.0  # seconds


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended.

    Attributes:
        code: Its exit code; negative for a signal's number.
        said: The lines that it printed, as a person reads them.
        error: Its last words on what went wrong; empty if it said nothing.
    """

    code: int
    said: tuple[str, ...]
    error: str = ""


class Background:
    """One command, from its start to its end."""

    def __init__(self, arguments: Sequence[str], nice: int = NICE) -> None:
        """Starts nothing yet.

        Args:
            arguments: What follows ``slipstream`` on the command line.
            nice: How much less urgent than others it runs; 0 for what measures time.
        """
        self._argv = command(arguments, nice)
        self._process: Process | None = None
        self._stops = 0

    async def run(self, say: Callable[[str], None]) -> Ended:
        """Runs it; if the caller is cancelled, the command is ended with all that it began.

        Args:
            say: Hears each line that it tells of its progress, on one line and safe to show.

        Raises:
            SlipstreamError: If it cannot be started.
        """
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                *self._argv,
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                limit=_LINE,
                env=engine_environment(os.environ),
                start_new_session=True,  # Ctrl-C in the terminal is not for it
            )
        except OSError as error:
            raise unstartable("the command's process", error) from error
        if self._stops:  # it was stopped before it had begun
            self._signal()
        assert process.stdout and process.stderr
        said: list[str] = []
        told: list[str] = []

        def hear(line: str) -> None:
            told.append(line)
            del told[:-_KEPT]
            say(line)

        try:
            await asyncio.gather(_read(process.stdout, said.append), _read(process.stderr, hear))
            code = await process.wait()
        finally:
            await self.end()
        named = [line.removeprefix(_PREFIX) for line in told if line.startswith(_PREFIX)]
        last = (named or (told if code else []))[-1:]
        return Ended(code, tuple(said[-_KEPT:]), "".join(last))

    async def end(self) -> None:
        """Ends it because nobody will hear of it; it has a moment to tidy up."""
        if self._process and self._process.returncode is None:
            await _end(self._process)

    def stop(self) -> None:
        """Interrupts it as Ctrl-C does, so that it keeps what it has; the third time, ends it at once."""
        self._stops += 1
        self._signal()

    def _signal(self) -> None:
        process = self._process
        if process and process.returncode is None:
            with suppress(ProcessLookupError):
                if self._stops > 2:
                    os.killpg(process.pid, signal.SIGKILL)
                else:
                    process.send_signal(signal.SIGINT)


def command(arguments: Sequence[str], nice: int) -> list[str]:
    """The process that runs a command of slipstream and ends with this one."""
    return [sys.executable, "-m", "slipstream.app.attended", str(nice), *arguments]


async def _end(process: Process) -> None:
    """Interrupts a process, and ends it with all that it began where that is not enough."""
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGINT)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _PATIENCE)
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def _read(stream: StreamReader, hear: Callable[[str], None]) -> None:
    """Hears every line; a line that is too long is passed over."""
    while True:
        try:
            raw = await stream.readuntil(b"\n")
        except asyncio.IncompleteReadError as end:
            if line := one_line(end.partial.decode("utf-8", "replace")):
                hear(line)
            return
        except asyncio.LimitOverrunError as over:
            await stream.readexactly(over.consumed)
            continue
        if line := one_line(raw.decode("utf-8", "replace")):
            hear(line)
