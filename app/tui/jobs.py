"""Background jobs: training, importing, indexing, a race or a benchmark, one at a time, in a separate process."""

import asyncio
import os
import re
import signal
import sys
from asyncio import StreamReader
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from slipstream.app.engine.process.process import engine_environment
from slipstream.app.platform.processes import kill_group
from slipstream.app.platform.safe_text import one_line
from slipstream.app.tui.parts.format import bar
from slipstream.models.errors import SlipstreamError, UsageError, unstartable

NICE: Final = 10  # niceness of a long job
_PREFIX: Final = "slipstream: "
_LINE: Final = 1 << 20  # maximum bytes of a line
_KEPT: Final = 200  # maximum lines of output that are kept
_PATIENCE: Final = 1.0  # seconds between an interrupt and a kill
_PERCENT: Final = re.compile(r"\b(\d+(?:\.\d+)?) ?%")
_COUNT: Final = re.compile(r"\b(\d[\d,]*) of (\d[\d,]*)\b")
_WHO: Final = re.compile(r"^bench: (drafters: )?")  # prefix of the benchmark's lines
_NOISE: Final = re.compile(r"(llama|ggml|gguf)_\w+: ")  # llama.cpp's own log lines
_BAR: Final = 12


@dataclass(frozen=True, slots=True)
class JobEnd:
    """How a command ended."""

    code: int  # its exit code; a negative one is the number of a signal
    said: tuple[str, ...]  # the last lines of its output
    error: str  # its last error message; empty if it printed none
    stopped: bool  # whether a stop was requested


@dataclass(slots=True)
class Job:
    """A running job."""

    title: str  # what is being done, as the beginning of a sentence: "Training medusa heads"
    line: str = ""  # the last line of its output
    stopping: bool = False  # whether a stop was requested
    progress: str = ""  # its progress; used instead of ``line`` if not empty

    @property
    def share(self) -> float | None:
        """Its progress from 0 to 1, parsed from ``progress`` or the last line; None if there is none."""
        line = self.progress or self.line
        if found := _PERCENT.search(line):
            return min(float(found[1]) / 100, 1.0)
        if found := _COUNT.search(line):
            done, total = (int(count.replace(",", "")) for count in found.groups())
            return min(done / total, 1.0) if total else None
        return None

    def __str__(self) -> str:
        line = self.progress or _WHO.sub("", self.line)
        words = f"{self.title}: {'stopping' if self.stopping else line or 'starting'}"
        return words if self.share is None else f"{''.join(bar(self.share, _BAR))}  {words}"


class Jobs:
    """Runs one command at a time: two would slow each other and distort measurements."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self.changed = changed
        self.job: Job | None = None  # the running job
        self._process: Process | None = None
        self._stops = 0

    async def run(
        self, title: str, arguments: Sequence[str], nice: int = NICE, on_output: Callable[[str], None] | None = None
    ) -> JobEnd:
        """Runs a command; ``nice`` is 0 for measurements, and ``on_output`` gets its lines of stdout."""
        self.check_free()
        self.job = job = Job(title)
        self._stops = 0
        self.changed()
        try:
            return await self._run(job, command(arguments, nice), on_output)
        finally:
            self.job = self._process = None
            self.changed()

    async def _run(self, job: Job, argv: list[str], on_output: Callable[[str], None] | None) -> JobEnd:
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                limit=_LINE,
                env=engine_environment(os.environ),
                start_new_session=True,  # Ctrl-C in the terminal must not reach it
            )
        except OSError as error:
            raise unstartable("the command's process", error) from error
        if self._stops:  # it was stopped before it started
            self._signal()
        assert process.stdout and process.stderr
        said: list[str] = []
        told: list[str] = []

        def tell(line: str) -> None:
            told.append(line)
            del told[:-_KEPT]
            if not _NOISE.match(line):
                job.line = line
                self.changed()

        try:
            await asyncio.gather(_read(process.stdout, on_output or said.append), _read(process.stderr, tell))
            code = await process.wait()
        finally:
            await self.end()
        named = [line.removeprefix(_PREFIX) for line in told if line.startswith(_PREFIX)]
        last = (named or (told if code else []))[-1:]
        return JobEnd(code, tuple(said[-_KEPT:]), "".join(last), job.stopping)

    def check_free(self) -> None:
        """Raises ``UsageError``, which names the job, if one is running."""
        if self.job:
            raise UsageError(f"{self.job.title.lower()} is under way.", "Wait for its end, or cancel it first.")

    async def end(self) -> None:
        """Interrupts the running job, waits ``_PATIENCE``, then kills its process group."""
        process = self._process
        if process and process.returncode is None:
            with suppress(ProcessLookupError):
                _interrupt(process)
                with suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), _PATIENCE)
                kill_group(process.pid)
                await process.wait()

    def stop(self) -> None:
        """Interrupts the running job, so that it keeps its results; the third call kills it."""
        if self.job:
            self.job.stopping = True
            self._stops += 1
            self._signal()

    def _signal(self) -> None:
        process = self._process
        if process and process.returncode is None:
            with suppress(ProcessLookupError):
                if self._stops > 2:
                    kill_group(process.pid)
                else:
                    _interrupt(process)


def command(arguments: Sequence[str], nice: int) -> list[str]:
    """The command line that runs a slipstream command; the command ends when this process does."""
    return [sys.executable, "-m", "slipstream.app.cli.main", "--supervised", str(nice), *arguments]


def _interrupt(process: Process) -> None:
    if sys.platform != "win32":
        process.send_signal(signal.SIGINT)
    elif process.stdin:
        process.stdin.close()  # ends the command; Windows cannot signal a single process


async def _read(stream: StreamReader, on_line: Callable[[str], None]) -> None:
    """Passes on every line; drops a line of more than ``_LINE`` bytes, except sometimes its end."""
    while True:
        try:
            raw = await stream.readuntil(b"\n")
        except asyncio.IncompleteReadError as end:
            if line := one_line(end.partial.decode("utf-8", "replace")):
                on_line(line)
            return
        except asyncio.LimitOverrunError as over:
            await stream.readexactly(over.consumed)
            continue
        if line := one_line(raw.decode("utf-8", "replace")):
            on_line(line)


def failure(ended: JobEnd) -> SlipstreamError:
    if ended.error:
        return SlipstreamError(ended.error, "")
    end = f"exit code {ended.code}" if ended.code >= 0 else f"signal {-ended.code}"
    why = ", probably out of memory" if ended.code == -9 else ""
    return SlipstreamError(f"it ended with {end}{why}.", "Try the same command in a terminal: it says more there.")
