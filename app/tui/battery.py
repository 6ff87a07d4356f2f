"""Whether this machine runs on its battery."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

SUPPLIES: Final = Path("/sys/class/power_supply")
_PATIENCE: Final = 2.0  # seconds


def on_battery(supplies: Path = SUPPLIES) -> bool:
    """Asks the system; False where it does not say.

    Args:
        supplies: Where Linux lists the sources of power.
    """
    with suppress(OSError, subprocess.SubprocessError):
        if sys.platform == "win32":
            import ctypes

            status = ctypes.create_string_buffer(12)  # SYSTEM_POWER_STATUS; its first byte is 0 without mains
            return bool(ctypes.windll.kernel32.GetSystemPowerStatus(status)) and status[0] == b"\0"
        if sys.platform == "darwin":
            told = subprocess.run(["pmset", "-g", "batt"], capture_output=True, text=True, timeout=_PATIENCE)
            return "'Battery Power'" in told.stdout
        return any(_drained(supply) for supply in supplies.iterdir())
    return False


def _drained(supply: Path) -> bool:
    """Whether this is a battery of the machine itself, not of a mouse, that is being used up."""
    return (
        _word(supply / "type") == "Battery"
        and _word(supply / "scope") != "Device"
        and _word(supply / "status") == "Discharging"
    )


def _word(file: Path) -> str:
    with suppress(OSError):
        return file.read_text("utf-8", "replace").strip()
    return ""
