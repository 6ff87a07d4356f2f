"""Detects passes that another program disturbed, by the processor time that they got.

While a thread of a pass waits for a core, the pass gets less processor time a millisecond than usual: its threads
either compute or spin until the last one is done. No system reports the waiting time of all threads in one cheap call,
so this share stands for it on Linux and macOS; Windows counts processor time in units of 16 ms, too coarse for a pass.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from slipstream.drafters.autopilot import settings

MEASURABLE: Final = sys.platform != "win32"


class Disturbance:
    """Follows the share of processor time that passes usually get."""

    def __init__(self) -> None:
        self._usual = 0.0

    def add(self, milliseconds: float, processor_ms: float) -> bool:
        """Adds a pass; returns whether it was disturbed.

        Args:
            milliseconds: What it took.
            processor_ms: Processor time of all threads during it; 0 where that is not measured.
        """
        share = processor_ms / milliseconds if MEASURABLE and milliseconds > 0 else 0.0
        self._usual = max(share, settings.SHARE_DECAY * self._usual)
        # a GPU computes: the processor only waits, and its share has no meaning
        return share < settings.DISTURBED * self._usual and self._usual >= settings.COMPUTES


def undisturbed(passes: Sequence[tuple[float, float]]) -> list[float]:
    """The times of the passes that got about the largest share of processor time; never empty if ``passes`` is not.

    Args:
        passes: Time and processor time of each, in any unit.
    """
    shares = [processor / took if took > 0 else 0.0 for took, processor in passes]
    least = settings.DISTURBED * max(shares, default=0.0) if MEASURABLE else 0.0
    return [took for (took, _), share in zip(passes, shares, strict=True) if share >= least]
