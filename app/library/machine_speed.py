"""The speed at which this machine reads weights: measured in the first few runs, and stored.

A run in which other programs used the processor does not count: the next one measures again.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Final

from slipstream.app.platform.paths import write_private
from slipstream.models.errors import SlipstreamError
from slipstream.models.llama.devices import processor
from slipstream.models.llama.throughput import Throughput, packed, throughput, unpacked
from slipstream.models.outside import read_limited

_FILE: Final = "machine_speed.json"
_MOST_BYTES: Final = 1 << 20
_TIMES: Final = 3  # number of undisturbed measurements, in separate runs: a short disturbance may go unnoticed


def kept_speed(folder: Path) -> list[Throughput]:
    """Earlier measurements of this machine and this llama.cpp; empty if there are none."""
    return _read(folder)[1]


def machine_speed(folder: Path) -> list[Throughput]:
    """Earlier measurements; while they are few, a new one of a second or two is added.

    Args:
        folder: Folder of derived files.
    """
    times, kept = _read(folder)
    if times >= _TIMES:
        return kept
    now = throughput()
    found = merged(kept, now)
    times += all(each.basis != "busy" for each in now)
    with suppress(SlipstreamError):
        write_private(folder / _FILE, f"{_key()}\n{times}\n{packed(found)}\n")
    return found


def merged(before: Sequence[Throughput], now: Sequence[Throughput]) -> list[Throughput]:
    """The better of two measurements: other programs can only make one slower."""
    known = {each.kind: each for each in before}
    out = []
    for each in now:
        old = known.pop(each.kind, each)
        rates = {
            name: {n: max(rate, old.rates.get(name, {}).get(n, rate)) for n, rate in rows.items()}
            for name, rows in each.rates.items()
        }
        basis = each.basis if old.basis == "busy" else old.basis
        out.append(Throughput(each.kind, rates, min(each.operation, old.operation), basis))
    return out + list(known.values())


def _read(folder: Path) -> tuple[int, list[Throughput]]:
    """The number of undisturbed measurements, and the result of all."""
    with suppress(OSError, ValueError):
        key, times, text = read_limited(folder / _FILE, _MOST_BYTES).decode().split("\n", 2)
        if key == _key() and (found := unpacked(text)):
            return int(times), found
    return 0, []


def _key() -> str:
    return f"{platform.machine()} {processor()} llama-cpp-python {version('llama-cpp-python')}"
