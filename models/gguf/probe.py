"""Loads model files in a separate process before their first use, so that a crash or hang is harmless.

The checks of the header (:mod:`slipstream.models.gguf.check`) refuse nearly all files that crash llama.cpp; the probe
catches the rest. The process runs ``slipstream.models.probe_child``. Files that pass are recorded.
"""

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

from slipstream.models.child import last_words
from slipstream.models.errors import ModelFileError, SlipstreamError, reason_of, unstartable
from slipstream.models.files import make_folder, replace_file
from slipstream.models.gguf.reader import read_header, stamp_of
from slipstream.models.outside import LONGEST_REASON, quoted, read_object, shown_path

_RECORD_BYTES: Final = 4 << 20
MOST: Final = 1_000  # maximum recorded files; the oldest records are dropped
SHIPPED: Final = Path(__file__).resolve().parents[1] / "bundled"  # the bundled files, which need no probe
COMMAND: Final = (sys.executable, "-m", "slipstream.models.probe_child")
_START_SECONDS: Final = 120.0
_WALL_SECONDS: Final = 15.0
_TO_END: Final = 5.0  # maximum seconds from the end of its answers to the end of the process
_WALL_BYTES: Final = 10_000_000
_AGAIN: Final = "Fetch it again or check it with slipstream models verify; if it stays so, choose another conversion."
_ENVIRONMENT: Final = MappingProxyType(
    {"GGML_NO_BACKTRACE": "1"}  # with a backtrace, an abort starts a debugger and hangs
    | dict.fromkeys(("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GGML_VK_VISIBLE_DEVICES"), "")
)


class ProbeRecord:
    """Records the files that passed, with size, time and inode; if these or llama.cpp change, a new probe is needed."""

    def __init__(self, file: Path, build: str) -> None:
        """Reads the record from ``file``; a missing or damaged file is an empty record."""
        self._file, self._build = file, build
        kept = read_object(file, _RECORD_BYTES)
        files = kept.get("files")
        self._kept: dict[str, Any] = files if kept.get("build") == build and isinstance(files, dict) else {}

    def holds(self, path: Path) -> bool:
        """Whether a file passed and has not changed since."""
        kept = self._kept.get(str(path))
        if kept is None:
            return False
        with suppress(SlipstreamError, OSError):
            return bool(kept == stamp_of(read_header(path).parts))
        return False

    def add(self, path: Path) -> None:
        """Records a file that passed; a failure to write only costs another probe."""
        with suppress(SlipstreamError, OSError):
            self._kept.pop(str(path), None)
            self._kept = dict([*self._kept.items(), (str(path), stamp_of(read_header(path).parts))][-MOST:])
            make_folder(self._file.parent)
            replace_file(self._file, [json.dumps({"build": self._build, "files": self._kept}).encode()], sync=False)


def probe_once(
    files: Iterable[Path], record: ProbeRecord, on_start: Callable[[], None], model: Path | None = None
) -> None:
    """Probes the files that are not recorded, and records those that pass."""
    new = [path for path in files if path.resolve().parent != SHIPPED and not record.holds(path)]
    if not new:
        return
    on_start()
    with closing(Prober()) as prober:
        for path in new:
            prober.check(path, model)
            record.add(path)


class Prober:
    """Runs the process that loads the files, and restarts it after a crash."""

    def __init__(self, command: Sequence[str] = COMMAND, seconds: float = _WALL_SECONDS) -> None:
        """Sets the time limit for a small file; ``check`` starts the process."""
        self._command, self._seconds = command, seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    def check(self, path: Path, model: Path | None = None) -> None:
        """Loads a file and evaluates a few tokens; with ``model``, loads an mmproj file and encodes an image."""
        try:
            limit = self._seconds + os.stat(path).st_size / _WALL_BYTES
        except OSError as error:
            reason = reason_of(error)
            raise ModelFileError(f"{shown_path(path)} cannot be read: {reason}.", "Check the path.") from None
        if self._process is None:
            self._start()
        answer, late = self._answer([str(path), *([str(model)] if model else [])], limit)
        if answer is None:
            raise self._crashed(path, late)
        if answer:
            kind = ModelFileError if answer["file"] else SlipstreamError
            raise kind(str(answer["title"]), str(answer["hint"]))

    def close(self) -> None:
        process, self._process = self._process, None
        if process:
            process.kill()
            process.wait()
            with suppress(OSError):  # the process ended before it read its input
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
                start_new_session=True,  # so that Ctrl-C does not reach it
            )
        except OSError as error:
            raise unstartable("the process that checks model files", error) from error
        if self._answer([], _START_SECONDS)[0] is None:
            words = self._last_words()
            self.close()
            raise SlipstreamError(f"the process that tries model files did not start{words}.", "Install it again.")

    def _answer(self, request: list[str], limit: float) -> tuple[dict[str, Any] | None, bool]:
        """Sends a request; returns the answer (None if the process ended) and whether the time ran out."""
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
            with suppress(OSError):  # the process has ended
                process.stdin.write(json.dumps(request).encode() + b"\n")
                process.stdin.flush()
            line = process.stdout.readline(1 << 16)
            answer = json.loads(line)
            return (answer if isinstance(answer, dict) else None), False
        except (ValueError, RecursionError):  # no complete line, or a nested one
            return None, late.is_set()
        finally:
            clock.cancel()

    def _crashed(self, path: Path, late: bool) -> SlipstreamError:
        assert self._process
        try:
            code = self._process.wait(_TO_END)
        except subprocess.TimeoutExpired:  # what it answered is no answer
            self._process.kill()
            code, late = self._process.wait(), True
        words, shown = self._last_words(), shown_path(path)
        self.close()
        if late or code == -getattr(signal, "SIGXCPU", 0):
            return ModelFileError(f"{shown} cannot be used: llama.cpp hangs when it loads it{words}.", _AGAIN)
        if code == -getattr(signal, "SIGKILL", 0):
            return SlipstreamError(
                f"{shown}: there is not enough memory to check this model before its first use.",
                "Close other programs, or choose a smaller model or quantization.",
            )
        ended = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return ModelFileError(f"{shown} cannot be used: llama.cpp crashes when it loads it ({ended}){words}.", _AGAIN)

    def _last_words(self) -> str:
        assert self._log
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - 8192))
        found = last_words(self._log.read().decode("utf-8", "replace"))
        return f": {quoted(found, LONGEST_REASON)}" if found else ""
