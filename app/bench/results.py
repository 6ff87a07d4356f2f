"""Stores, lists, reads and deletes the results of benchmarks that were run from the chat."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from slipstream.app.bench import UNFINISHED
from slipstream.app.bench.figures import DrafterReport
from slipstream.app.bench.plots import Style, chart
from slipstream.app.bench.report import drafters_text
from slipstream.app.engine.process.frames import ProtocolError, built
from slipstream.app.platform.paths import private_folder, worded
from slipstream.models.errors import reason_of
from slipstream.models.files import HeldError, close_removed, open_locked

_NAME: Final = "%Y-%m-%d %H.%M.%S"
_LARGEST: Final = 20_000_000  # bytes; a result has some ten thousand


@dataclass(frozen=True, slots=True)
class StoredResult:
    """A result."""

    path: Path
    when: datetime  # when it was stored, in local time
    report: DrafterReport | None = None  # None if the file cannot be read
    processor: str = ""
    problem: str = ""  # why it cannot be read; empty if it can


def kept_results(folder: Path) -> list[StoredResult]:
    return sorted((_read(path) for path in folder.glob("*.json")), key=lambda kept: kept.when, reverse=True)


def place_for(folder: Path, when: datetime) -> Path:
    stem = when.strftime(_NAME)
    place, count = private_folder(folder) / f"{stem}.json", 1
    while place.exists():
        count += 1
        place = folder / f"{stem} ({count}).json"
    return place


def keep(written: Path, place: Path) -> StoredResult | None:
    """Moves the figures that a benchmark wrote to their final place; None if it ended without any."""
    with worded(place):
        if not written.exists() or not written.stat().st_size:
            written.unlink(missing_ok=True)
            return None
        written.chmod(0o600)
        written.replace(place)
    return _read(place)


def delete(kept: StoredResult) -> None:
    with worded(kept.path):
        kept.path.unlink(missing_ok=True)


def _read(path: Path) -> StoredResult:
    """Reads a result and checks it: another version or an editor may have written it."""
    when = _when(path)
    try:
        if path.stat().st_size > _LARGEST:
            raise ValueError
        figures = json.loads(path.read_text("utf-8"))
        report: DrafterReport = built(DrafterReport, figures["drafters"])
        if not report.rows:
            raise ValueError
        chart(report.rows, Style())  # fails if a value is out of range, as does the next line
        drafters_text(report)
        return StoredResult(path, when, report, str(figures["machine"]["processor"]))
    except OSError as error:
        return StoredResult(path, when, problem=f"it cannot be read: {reason_of(error)}")
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, ProtocolError):
        return StoredResult(path, when, problem="it is damaged, or of another version of slipstream")


def _when(path: Path) -> datetime:
    with suppress(ValueError):
        return datetime.strptime(path.stem.split(" (")[0], _NAME)
    with suppress(OSError):
        return datetime.fromtimestamp(path.stat().st_mtime)
    return datetime.min


@contextmanager
def unfinished(folder: Path) -> Iterator[Path]:
    """Creates the file of one benchmark, and removes it at the end unless ``keep`` has moved it.

    The file is locked while the benchmark runs: an unlocked one belongs to a killed chat, see ``recover``.
    """
    path = private_folder(folder) / f"{UNFINISHED}{os.urandom(4).hex()}"
    with worded(path):
        handle = open_locked(path)
    try:
        yield path
    finally:
        close_removed(handle, path)


def recover(folder: Path) -> list[StoredResult]:
    """Stores the figures of benchmarks whose chat was killed, and removes their files without figures."""
    recovered: list[StoredResult] = []
    for path in sorted(folder.glob(f"{UNFINISHED}*")):
        with suppress(HeldError, OSError):  # another chat's benchmark is running, or the file cannot be opened
            handle = open_locked(path)
            try:
                when = datetime.fromtimestamp(os.fstat(handle).st_mtime)
                if kept := keep(path, place_for(folder, when)):
                    recovered.append(kept)
            finally:
                os.close(handle)
    return recovered
