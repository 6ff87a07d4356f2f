"""The limits of this process's Linux control groups, as a container sets them."""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

_NO_LIMIT: Final = 1 << 60  # a group without a limit of memory shows a number near 2**63


def memory_limits(root: Path) -> list[tuple[int, int]]:
    """Limit and use of every group of this process, in bytes; the file cache counts as free."""
    found = []
    for folder, second in _folders(root, "memory"):
        names = ("memory.max", "memory.current") if second else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        cache = "inactive_file" if second else "total_inactive_file"
        with suppress(OSError, ValueError):  # "max", not a number, means no limit
            limit, used = (int((folder / name).read_text()) for name in names)
            kept = re.search(rf"^{cache} (\d+)", (folder / "memory.stat").read_text(), re.MULTILINE)
            if limit < _NO_LIMIT:
                found.append((limit, used - int(kept[1]) if kept else used))
    return found


def processor_quota(root: Path = Path("/")) -> float:
    """Number of processors whose time this process may use; 0 without a limit."""
    found = list[float]()
    for folder, second in _folders(root, "cpu"):
        with suppress(OSError, ValueError, ZeroDivisionError):  # "max" or -1 means no limit
            if second:
                quota, period = (folder / "cpu.max").read_text().split()
            else:
                quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
            found.append(int(quota) / int(period))
    return min((quota for quota in found if quota > 0), default=0.0)


def _folders(root: Path, controller: str) -> Iterator[tuple[Path, bool]]:
    """The folders of a controller's groups, from the process's own upwards; and whether they are of version 2."""
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            top = root / "sys/fs/cgroup" / (controller if controllers else "")
            folder = top / path.lstrip("/")
            while folder.is_relative_to(top):
                yield folder, not controllers
                folder = folder.parent
