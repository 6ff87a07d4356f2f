"""Tries model files in a process of its own before they are loaded: what crashes or hangs there harms nobody.

The header's checks (:mod:`slipstream.models.gguf_check`) stop nearly all files that llama.cpp ends the process on; this
is for the rest. ``slipstream.models.probe_child`` is the process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Final

from slipstream.models.errors import ModelFileError, SlipstreamError, reason_of, unstartable
from slipstream.models.probe_record import ProbeRecord
from slipstream.models.quoting import quoted, shown_path

SHIPPED: Final = Path(__file__).resolve().parent / "bundled"
"""Files in this folder are ours and need no probe."""
COMMAND: Final = (sys.executable, "-m", "slipstream.models.probe_child")
_START_SECONDS: Final = 120.0
_WALL_SECONDS: Final = 15.0
_WALL_BYTES: Final = 10_000_000
_LAST_WORDS: Final = ("GGML_ASSERT", "GGML_ABORT", "terminate called", "what()", "Error:")
_AGAIN: Final = "Fetch it again or check it with slipstream models verify; if it stays so, choose another conversion."
_ENVIRONMENT: Final = MappingProxyType(
    {"GGML_NO_BACKTRACE": "1"}  # or an abort starts a debugger and hangs
    | dict.fromkeys(("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GGML_VK_VISIBLE_DEVICES"), "")
)


def probe_once(files: Iterable[Path], record: ProbeRecord, on_start: Callable[[], None]) -> None:
    """Probes the files that nobody has probed as they are now; what passes is remembered.

    Args:
        files: Model files whose headers have been checked; the first ones of split models.
        record: Remembers what passed.
        on_start: Called before the first probe, if there is one.

    Raises:
        ModelFileError: If llama.cpp crashes, hangs or refuses one.
        SlipstreamError: If there is not enough memory to try it.
    """
    new = [path for path in files if path.resolve().parent != SHIPPED and not record.holds(path)]
    if not new:
        return
    on_start()
    with closing(Prober()) as prober:
        for path in new:
            prober.check(path)
            record.add(path)


class Prober:
    """A process that loads one file after the other until one of them ends it; it is then started anew."""

    def __init__(self, command: Sequence[str] = COMMAND, seconds: float = _WALL_SECONDS) -> None:
        """Starts nothing yet.

        Args:
            command: What to start.
            seconds: How long a small file may take.
        """
        self._command, self._seconds = command, seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    def check(self, path: Path) -> None:
        """Loads a file and lets it read a few tokens.

        Raises:
            ModelFileError: If llama.cpp crashes, hangs or refuses it.
            SlipstreamError: If there is not enough memory to try it, or no process can be started.
        """
        try:
            limit = self._seconds + os.stat(path).st_size / _WALL_BYTES
        except OSError as error:
            reason = reason_of(error)
            raise ModelFileError(f"{shown_path(path)} cannot be read: {reason}.", "Check the path.") from None
        if self._process is None:
            self._start()
        answer, late = self._answer(str(path), limit)
        if answer is None:
            raise self._crashed(path, late)
        if answer:
            kind = ModelFileError if answer["file"] else SlipstreamError
            raise kind(str(answer["title"]), str(answer["hint"]))

    def close(self) -> None:
        """Ends the process; harmless if there is none."""
        process, self._process = self._process, None
        if process:
            process.kill()
            process.wait()
            with suppress(OSError):  # it ended before it read what was written
                process.communicate()
        if self._log:
            self._log.close()
            self._log = None

    def _start(self) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the process)
        try:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env={**os.environ, **_ENVIRONMENT},
                start_new_session=True,  # Ctrl-C in the terminal is not for it
            )
        except OSError as error:
            raise unstartable("the process that checks model files", error) from error
        if self._answer("", _START_SECONDS)[0] is None:
            words = self._last_words()
            self.close()
            raise SlipstreamError(f"the process that tries model files did not start{words}.", "Install it again.")

    def _answer(self, request: str, limit: float) -> tuple[dict[str, Any] | None, bool]:
        """Asks and waits; None and whether it was too late where the process ended instead."""
        process, late = self._process, threading.Event()
        assert process and process.stdin and process.stdout

        def end() -> None:
            late.set()
            process.kill()

        clock = threading.Timer(limit, end)
        clock.daemon = True
        clock.start()
        line = b""
        try:
            with suppress(OSError):  # the process has ended, and the answer is empty
                process.stdin.write(json.dumps(request).encode() + b"\n")
                process.stdin.flush()
            line = process.stdout.readline(1 << 16)
            answer = json.loads(line)
            return (answer if isinstance(answer, dict) else None), False
        except ValueError:  # no line, or half of one
            return None, late.is_set()
        finally:
            clock.cancel()

    def _crashed(self, path: Path, late: bool) -> SlipstreamError:
        """Words the end of the process, which loading a file has brought."""
        assert self._process
        code = self._process.wait()
        words = self._last_words()
        self.close()
        if late or code == -getattr(signal, "SIGXCPU", 0):
            return ModelFileError(
                f"{shown_path(path)} cannot be used: llama.cpp hangs when it loads it{words}.", _AGAIN
            )
        if code == -getattr(signal, "SIGKILL", 0):
            return SlipstreamError(
                f"{shown_path(path)}: there is not enough memory to check this model before its first use.",
                "Close other programs, or choose a smaller model or quantization.",
            )
        ended = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return ModelFileError(
            f"{shown_path(path)} cannot be used: llama.cpp crashes when it loads it ({ended}){words}.", _AGAIN
        )

    def _last_words(self) -> str:
        assert self._log
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - 8192))
        lines = self._log.read().decode("utf-8", "replace").splitlines()
        told = [line.strip() for line in lines if any(mark in line for mark in _LAST_WORDS)]
        return f": {quoted(told[-1], 160)}" if told else ""
