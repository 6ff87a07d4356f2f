"""Whether this machine runs on its battery."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

SUPPLIES: Final = Path("/sys/class/power_supply")
_PATIENCE: Final = 2.0  # seconds


class _PowerStatus(ctypes.Structure):
    """``SYSTEM_POWER_STATUS`` of Windows."""

    _fields_ = (
        ("line", ctypes.c_ubyte),  # 0: no mains
        ("flag", ctypes.c_ubyte),
        ("percent", ctypes.c_ubyte),
        ("saver", ctypes.c_ubyte),
        ("seconds", ctypes.c_ulong),
        ("full_seconds", ctypes.c_ulong),
    )


def on_battery(supplies: Path = SUPPLIES) -> bool:
    """Asks the system; False where it does not say.

    Args:
        supplies: Where Linux lists the sources of power.
    """
    with suppress(OSError, subprocess.SubprocessError):
        if sys.platform == "win32":
            status = _PowerStatus()
            return bool(ctypes.windll.kernel32.GetSystemPowerStatus(ctypes.byref(status))) and status.line == 0
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
