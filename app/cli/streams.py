"""The standard streams of a command: kept open, read within a limit; a failed write is reported in one line."""

import io
import locale
import os
import select
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from threading import Timer
from typing import BinaryIO, Final

from slipstream.app.platform.safe_text import one_line
from slipstream.models.errors import UsageError, reason_of

READER_LEFT: Final = 141  # the exit code of SIGPIPE, which shells expect in a pipe
_MOST_INPUT: Final = 8 << 20  # maximum bytes of standard input: eight for each token of the largest context
_PATIENCE: Final = 2.0  # seconds before the hint on a silent pipe
_LONGEST: Final = 1000  # maximum characters of a notice, which may contain file names of any length


class Output(io.FileIO):
    """A file descriptor that records a failed write in ``refused``."""

    def __init__(self, number: int, ignore: bool) -> None:
        """Wraps a descriptor, which stays open; with ``ignore``, the program continues after a failed write."""
        super().__init__(number, "wb", closefd=False)
        self.refused: OSError | None = None
        self._ignore = ignore

    def write(self, data: bytes) -> int:  # type: ignore[override]
        try:
            return super().write(data)
        except OSError as error:
            self.refused = error
            if self._ignore:
                return len(data)
            raise


class Streams:
    """Standard output and standard error of this process."""

    def __init__(self) -> None:
        """Opens closed streams (``>&-``), for which Python has None; failed writes to standard error are ignored."""
        for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
            if getattr(sys, name) is None:
                setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 (open as long as the process)
        self._output = _wrapped("stdout", 1, ignore=False)
        _wrapped("stderr", 2, ignore=True)
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                drawn = stream is sys.stderr and stream.isatty()  # a character takes its own width there
                stream.reconfigure(encoding=_usable_encoding(stream), errors="replace" if drawn else "backslashreplace")

    @property
    def refused(self) -> OSError | None:
        """The error of a failed write to standard output; None without one."""
        return self._output.refused if self._output else None

    def finish(self, code: int) -> int:
        """Flushes standard output; returns 141 if its reader has closed it, 1 after another failure, else ``code``."""
        try:
            sys.stdout.flush()
        except (OSError, ValueError):  # closed meanwhile
            code = code or 1
        error = self.refused
        if error is None:
            return code
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # otherwise Python would report the error again at its exit
        if isinstance(error, BrokenPipeError):  # the reader has closed the pipe, as `head` does
            return READER_LEFT
        notice(f"cannot write to standard output: {reason_of(error)}. Make room, or write to another place.")
        return 1


def _usable_encoding(stream: io.TextIOWrapper) -> str:
    """The stream's encoding, unless PYTHONIOENCODING names one that a terminal does not use or that fails on errors."""
    if stream.isatty():
        return locale.getencoding()
    try:
        "\u2014".encode(stream.encoding, "backslashreplace")
    except UnicodeError:
        return "utf-8"
    return stream.encoding


def notice(words: str) -> None:
    """Writes a line to standard error; cuts the middle of a very long one."""
    line = one_line(words)
    if len(line) > _LONGEST:
        line = f"{line[: _LONGEST // 2]} … {line[-_LONGEST // 2 :]}"
    print(f"slipstream: {line}", file=sys.stderr)


def print_rows(rows: Sequence[Mapping[str, object]]) -> None:
    """Prints a JSON object a line, or ``[]`` without any; a terminal gets only ASCII, to be safe."""
    import json  # --help needs none

    for row in rows:
        print(json.dumps(row, ensure_ascii=sys.stdout.isatty()))
    if not rows:
        print("[]")


@contextmanager
def notice_if_slow(doing: str, after: float = 1.0) -> Iterator[None]:
    timer = Timer(after, notice, [doing])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def can_ask() -> bool:
    """Whether the user can see and answer a question."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirmed(question: str, enter: bool = False) -> bool:
    print(f"{one_line(question)} [{'Y/n' if enter else 'y/N'}] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes", *([""] if enter else []))


def read_stdin(prompted: bool, stdin: BinaryIO) -> str:
    """Reads piped text, nothing of a terminal; a silent pipe beside a prompt causes a hint on standard error."""
    try:
        descriptor = stdin.fileno()
        mode = os.fstat(descriptor).st_mode
    except (OSError, ValueError):
        return ""  # closed
    if stat.S_ISCHR(mode):
        return ""
    if prompted:
        with suppress(OSError, ValueError):
            if not select.select([descriptor], [], [], _PATIENCE)[0]:
                notice("waiting for standard input to end; use </dev/null to go without it.")
    raw = stdin.read(_MOST_INPUT + 1)
    if len(raw) > _MOST_INPUT:
        raise UsageError(
            f"standard input has more than {_MOST_INPUT >> 20} MB, which no context holds.", "Pipe in a part of it."
        )
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"standard input is not UTF-8: byte 0x{raw[error.start]:02x} at offset {error.start:,}.",
            "Convert it first, for example with iconv -t UTF-8.",
        ) from error


def _wrapped(name: str, number: int, ignore: bool) -> Output | None:
    """Makes a standard stream write to an ``Output``, unless it is a terminal or was replaced."""
    stream = getattr(sys, name)
    if stream is not getattr(sys, f"__{name}__") or not isinstance(stream, io.TextIOWrapper) or stream.isatty():
        return None
    output = Output(number, ignore)
    lines = stream.line_buffering or stream.write_through  # PYTHONUNBUFFERED turns line buffering off
    setattr(sys, name, io.TextIOWrapper(io.BufferedWriter(output), stream.encoding, "backslashreplace", None, lines))
    return output
