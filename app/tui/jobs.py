"""What goes on beside the chat: training, importing, indexing or a benchmark, one of them at a time."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from slipstream.app.background import NICE, Background, Ended
from slipstream.app.tui.figures import bar
from slipstream.models.errors import SlipstreamError, UsageError

_PERCENT: Final = re.compile(r"\b(\d+(?:\.\d+)?) ?%")
_COUNT: Final = re.compile(r"\b(\d[\d,]*) of (\d[\d,]*)\b")
_WHO: Final = re.compile(r"^bench: (drafters: )?")  # what the benchmark's lines begin with
_NOISE: Final = re.compile(r"(llama|ggml|gguf)_\w+: ")  # what llama.cpp says by itself
_BAR: Final = 12


@dataclass(slots=True)
class Job:
    """A piece of work.

    Attributes:
        title: What is being done, as a sentence's beginning: "Training medusa heads".
        line: What it said last.
        stopping: Whether it was asked to stop.
    """

    title: str
    line: str = ""
    stopping: bool = False

    @property
    def share(self) -> float | None:
        """How far it is, 0 to 1, by its last line; None where that says nothing of it."""
        if found := _PERCENT.search(self.line):
            return min(float(found[1]) / 100, 1.0)
        if found := _COUNT.search(self.line):
            done, total = (int(count.replace(",", "")) for count in found.groups())
            return min(done / total, 1.0) if total else None
        return None

    def __str__(self) -> str:
        """What is being done and how far it is, in a line."""
        words = f"{self.title}: {'stopping' if self.stopping else _WHO.sub('', self.line) or 'starting'}"
        return words if self.share is None else f"{''.join(bar(self.share, _BAR))}  {words}"


class Jobs:
    """Runs commands in processes of their own; two at a time would slow each other, and spoil what is measured."""

    def __init__(self) -> None:
        """Nothing goes on yet."""
        self.job: Job | None = None
        """What goes on now."""
        self._background: Background | None = None

    async def run(
        self, title: str, arguments: Sequence[str], changed: Callable[[], None], nice: int = NICE
    ) -> tuple[Ended, bool]:
        """Runs a command to its end.

        Args:
            title: See ``Job.title``.
            arguments: What follows ``slipstream`` on the command line.
            changed: Called whenever there is something new to show.
            nice: See ``Background``.

        Returns:
            How it ended, and whether it was asked to stop.

        Raises:
            UsageError: If something goes on already.
            SlipstreamError: If it cannot be started.
        """
        self.check_free()
        self.job = job = Job(title)
        self._background = Background(arguments, nice)

        def say(line: str) -> None:
            if not _NOISE.match(line):
                job.line = line
                changed()

        changed()
        try:
            return await self._background.run(say), job.stopping
        finally:
            self.job = self._background = None
            changed()

    def check_free(self) -> None:
        """Refuses a second piece of work.

        Raises:
            UsageError: Names what goes on.
        """
        if self.job:
            raise UsageError(f"{self.job.title.lower()} is under way.", "Wait for its end, or cancel it first.")

    async def end(self) -> None:
        """Ends what goes on: the chat is closed."""
        if self._background:
            await self._background.end()

    def stop(self) -> None:
        """Asks what goes on to stop; what it has done is kept."""
        if self.job and self._background:
            self.job.stopping = True
            self._background.stop()


def failure(ended: Ended) -> SlipstreamError:
    """Words for a command that failed."""
    if ended.error:
        return SlipstreamError(ended.error, "")
    end = f"exit code {ended.code}" if ended.code >= 0 else f"signal {-ended.code}"
    why = ", probably out of memory" if ended.code == -9 else ""
    return SlipstreamError(f"it ended with {end}{why}.", "Try the same command in a terminal: it says more there.")
