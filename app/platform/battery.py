"""Whether this machine runs on its battery."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

SUPPLIES: Final = Path("/sys/class/power_supply")


def on_battery(supplies: Path = SUPPLIES) -> bool:
    """Returns whether the battery is discharging; False if the system does not report it.

    Args:
        supplies: Folder in which Linux lists the power supplies.
    """
    with suppress(OSError):
        if sys.platform == "linux":  # psutil would report the battery of a wireless mouse
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
