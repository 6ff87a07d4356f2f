"""The machine's own memory and processor, as its system reports them."""

from __future__ import annotations

import ctypes
import platform
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

_NO_LIMIT: Final = 1 << 60
"""A cgroup without a limit shows a number near 2**63."""


def memory(root: Path = Path("/")) -> tuple[int, int]:
    """Asks the system for its memory.

    Args:
        root: Where ``proc`` and ``sys`` are mounted, on Linux.

    Returns:
        Bytes of memory, and bytes that a program can still take without swapping; 0 and 0 where nothing answers.
        A limit on this process (cgroup, ``ulimit -v``) counts as the machine's.
    """
    if sys.platform == "win32":
        return _windows()
    if sys.platform == "darwin":
        return _mac()
    return _linux(root)


def _linux(root: Path) -> tuple[int, int]:
    found = {}
    with suppress(OSError):
        for line in (root / "proc/meminfo").read_text().splitlines():
            name, _, rest = line.partition(":")
            found[name] = int(rest.split()[0]) << 10
    total = found.get("MemTotal", 0)
    available = found.get("MemAvailable", found.get("MemFree", 0))
    for limit, used in _cgroups(root):
        total, available = min(total, limit), min(available, max(0, limit - used))
    return total, min(available, _address_space(root))


def _cgroups(root: Path) -> list[tuple[int, int]]:
    """Limit and use of every group that this process is in; files that were only read count as free."""
    groups = []
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:  # version 2
                names, top = ("memory.max", "memory.current", "inactive_file"), root / "sys/fs/cgroup"
            elif "memory" in controllers.split(","):
                names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
                top = root / "sys/fs/cgroup/memory"
            else:
                continue
            folder = top / path.lstrip("/")
            while folder.is_relative_to(top):
                with suppress(OSError, ValueError):  # "max" is no number: no limit
                    limit, used = (int((folder / name).read_text()) for name in names[:2])
                    kept = re.search(rf"^{names[2]} (\d+)", (folder / "memory.stat").read_text(), re.MULTILINE)
                    if limit < _NO_LIMIT:
                        groups.append((limit, used - int(kept[1]) if kept else used))
                folder = folder.parent
    return groups


def _address_space(root: Path) -> int:
    """Bytes that ``ulimit -v`` leaves to this process."""
    with suppress(OSError):
        limits = (root / "proc/self/limits").read_text()
        limit = re.search(r"^Max address space +(\d+)", limits, re.MULTILINE)
        used = re.search(r"^VmSize:\s+(\d+)", (root / "proc/self/status").read_text(), re.MULTILINE)
        if limit:
            return max(0, int(limit[1]) - (int(used[1]) << 10 if used else 0))
    return _NO_LIMIT


def _mac() -> tuple[int, int]:
    total = int(_said("sysctl", "-n", "hw.memsize") or 0)
    return total, mac_available(_said("vm_stat")) or total // 2


def mac_available(text: str) -> int:
    """Reads what ``vm_stat`` prints: pages that are free, or hold what can be read again."""
    size = re.search(r"page size of (\d+) bytes", text)
    counts = dict(re.findall(r"^Pages ([a-z ]+):\s+(\d+)\.", text, re.MULTILINE))
    pages = sum(int(counts.get(name, 0)) for name in ("free", "inactive", "speculative", "purgeable"))
    return pages * int(size[1]) if size else 0


def _windows() -> tuple[int, int]:
    class Status(ctypes.Structure):
        """``MEMORYSTATUSEX``."""

        _fields_ = (
            ("length", ctypes.c_uint32),
            ("load", ctypes.c_uint32),
            *((name, ctypes.c_uint64) for name in ("total", "free", "page", "page_free", "own", "own_free", "more")),
        )

    status = Status(length=ctypes.sizeof(Status))
    known = ctypes.CDLL("kernel32").GlobalMemoryStatusEx(ctypes.byref(status))
    return (int(status.total), int(status.free)) if known else (0, 0)


def processor(root: Path = Path("/")) -> str:
    """The maker's name of the processor."""
    if sys.platform == "darwin":
        return _said("sysctl", "-n", "machdep.cpu.brand_string").strip() or platform.machine()
    with suppress(OSError):
        found = re.search(r"^model name\s*: (.+)$", (root / "proc/cpuinfo").read_text(errors="replace"), re.MULTILINE)
        if found:
            return found[1].strip()
    return platform.processor() or platform.machine()


def processor_flags(root: Path = Path("/")) -> str:
    """The processor's features as Linux spells them, such as ``avx2``; empty elsewhere."""
    with suppress(OSError):
        cpu = (root / "proc/cpuinfo").read_text(errors="replace")
        found = re.search(r"^(?:flags|Features)\s*: (.+)$", cpu, re.MULTILINE)
        return found[1] if found else ""
    return ""


def _said(*command: str) -> str:
    """What a command of the system prints; nothing where it is missing or fails."""
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout
    return ""
