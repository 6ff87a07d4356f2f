"""Stores, lists, reads and deletes the results of benchmarks that were run from the chat."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from slipstream.app.bench.figures import BestFixed, DrafterReport, Noise
from slipstream.app.bench.plots import Style, chart
from slipstream.app.bench.progress import maybe_ratio, ratio_of, row_of
from slipstream.app.bench.report import drafters_text
from slipstream.app.platform.paths import private_folder, worded
from slipstream.models.errors import reason_of

_NAME: Final = "%Y-%m-%d %H.%M.%S"
_LARGEST: Final = 20_000_000  # bytes; a result has some ten thousand


@dataclass(frozen=True, slots=True)
class Kept:
    """A result."""

    path: Path
    when: datetime  # when it was stored, in local time
    report: DrafterReport | None = None  # None if the file cannot be read
    processor: str = ""
    problem: str = ""  # why it cannot be read; empty if it can


def kept_results(folder: Path) -> list[Kept]:
    """All results, the newest first; an unreadable one is included with the reason."""
    return sorted((_read(path) for path in folder.glob("*.json")), key=lambda kept: kept.when, reverse=True)


def place_for(folder: Path, when: datetime) -> Path:
    """The path of a new result; creates the folder."""
    stem = when.strftime(_NAME)
    place, count = private_folder(folder) / f"{stem}.json", 1
    while place.exists():
        count += 1
        place = folder / f"{stem} ({count}).json"
    return place


def keep(written: Path, place: Path) -> Kept | None:
    """Moves the figures that a benchmark wrote to their final place.

    Args:
        written: The file of its figures.
        place: See ``place_for``.

    Returns:
        The result; None if the benchmark ended without one.
    """
    with worded(place):
        if not written.exists() or not written.stat().st_size:
            written.unlink(missing_ok=True)
            return None
        written.chmod(0o600)
        written.replace(place)
    return _read(place)


def delete(kept: Kept) -> None:
    with worded(kept.path):
        kept.path.unlink(missing_ok=True)


def _read(path: Path) -> Kept:
    """Reads a result and checks it: another version or an editor may have written it."""
    when = _when(path)
    try:
        if path.stat().st_size > _LARGEST:
            raise ValueError
        figures = json.loads(path.read_text("utf-8"))
        report = _report(figures["drafters"])
        chart(report.rows, Style())  # fails if a value has the wrong type, as does the next line
        drafters_text(report)
        return Kept(path, when, report, str(figures["machine"]["processor"]))
    except OSError as error:
        return Kept(path, when, problem=f"it cannot be read: {reason_of(error)}")
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError):
        return Kept(path, when, problem="it is damaged, or of another version of slipstream")


def _when(path: Path) -> datetime:
    with suppress(ValueError):
        return datetime.strptime(path.stem.split(" (")[0], _NAME)
    with suppress(OSError):
        return datetime.fromtimestamp(path.stat().st_mtime)
    return datetime.min


def _report(found: Mapping[str, Any]) -> DrafterReport:
    rows = [row_of(row) for row in found["rows"]]
    best = [
        BestFixed(
            **{
                **row,
                "speedup": ratio_of(row["speedup"]),
                "auto": maybe_ratio(row["auto"]),
                "auto_over_best": maybe_ratio(row["auto_over_best"]),
            }
        )
        for row in found["best"]
    ]
    if not rows:
        raise ValueError
    noise = Noise(**{name: float(value) for name, value in found.get("noise", {}).items()})
    return DrafterReport(**{**found, "rows": rows, "best": best, "noise": noise})
