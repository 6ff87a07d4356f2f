"""Whether this machine runs on its battery."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

SUPPLIES: Final = Path("/sys/class/power_supply")


def on_battery(supplies: Path = SUPPLIES) -> bool:
    """Returns whether the battery is being used up; False where the system does not tell.

    Args:
        supplies: Where Linux lists the sources of power.
    """
    with suppress(OSError):
        if sys.platform == "linux":  # psutil takes a wireless mouse's battery for the machine's there
            return any(_drained(supply) for supply in supplies.iterdir())
        import psutil

        battery = psutil.sensors_battery()
        return battery is not None and battery.power_plugged is False
    return False


def _drained(supply: Path) -> bool:
    return (
        _word(supply / "type") == "Battery"
        and _word(supply / "scope") != "Device"
        and _word(supply / "status") == "Discharging"
    )


def _word(file: Path) -> str:
    with suppress(OSError):
        return file.read_text("utf-8", "replace").strip()
    return ""
