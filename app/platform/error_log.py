"""Explains errors that nothing else handles, and logs their place in the code."""

import os
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final

from slipstream.app.platform.paths import Paths, private_folder
from slipstream.models.errors import SlipstreamError, reason_of
from slipstream.models.outside import LONGEST_REASON, quoted, shown_path

NAME: Final = "errors.log"
_MOST_BYTES: Final = 1 << 20  # a log of this size is emptied
_FRAMES: Final = 40
_NO_MEMORY: Final = ("allocate", "memory", "failed to map")  # in the words of a library that does not fit
HARMLESS: Final = (ImportError, MemoryError, OSError)
"""Errors whose messages name only files and libraries; messages of other errors may quote a prompt."""


def explained(error: BaseException) -> str:
    """Logs where an error came from; returns one line: what happened, what to try, and where the log is."""
    log = note("", error)
    where = f"The details are in {shown_path(log)}." if log else "The details could not be logged."
    return f"{_words(error)} {where}"


def note(words: str, error: BaseException | None = None) -> Path | None:
    try:
        log = private_folder(Paths.default().logs) / NAME
        first = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {words}".rstrip()
        _append(log, "\n".join([first, *(trace(error) if error else ()), ""]))
    except (OSError, SlipstreamError, MemoryError):
        return None
    return log


def trace(error: BaseException) -> Iterator[str]:
    """Lists the frames of an error and of its causes, without values: these may be text of a chat."""
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None:
        yield from trace(cause)
    for frame in traceback.extract_tb(error.__traceback__, limit=-_FRAMES):
        yield f'  File "{frame.filename}", line {frame.lineno}, in {frame.name}'
    yield f"{type(error).__name__}: {error}" if isinstance(error, HARMLESS) else type(error).__name__


def _append(log: Path, text: str) -> None:
    full = log.exists() and log.stat().st_size >= _MOST_BYTES
    mode = os.O_CREAT | os.O_WRONLY | getattr(os, "O_NONBLOCK", 0) | (os.O_TRUNC if full else os.O_APPEND)
    handle = os.open(log, mode, 0o600)
    try:
        os.write(handle, text.encode("utf-8", "backslashreplace"))
    finally:
        os.close(handle)


def _folder_gone() -> bool:
    try:
        os.getcwd()
    except OSError:
        return True
    return False


def _words(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return "memory ran out. Close other programs and try again."
    if isinstance(error, ImportError):
        words = str(error).strip()
        cure = "Free some memory, or install" if any(word in words for word in _NO_MEMORY) else "Install"
        return f"a library cannot be loaded: {quoted(words, 200)}. {cure} it again."
    if isinstance(error, RecursionError):
        return "the input is nested too deeply."
    if isinstance(error, UnicodeError):
        return "a name or a text is not valid UTF-8."
    if isinstance(error, FileNotFoundError) and error.filename is None and _folder_gone():
        return "the current folder is gone. Change to another one and try again."
    if isinstance(error, OSError):
        place = f"{shown_path(os.fsdecode(error.filename))}: " if isinstance(error.filename, str | bytes) else ""
        return f"the system refused: {place}{reason_of(error)}."
    return f"an unexpected error, {type(error).__name__}: {quoted(str(error), LONGEST_REASON)}."


def print_place(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
    """Prints the place and type of an error to the engine's log; the last line is shown to the user."""
    where = ""
    for frame in traceback.extract_tb(trace):
        print(f'  File "{frame.filename}", line {frame.lineno}, in {frame.name}', file=sys.stderr)
        where = f" in {frame.name}, line {frame.lineno}"
    words = f": {error}" if isinstance(error, HARMLESS) else ""
    print(f"Error: {kind.__name__}{where}{words}", file=sys.stderr, flush=True)
