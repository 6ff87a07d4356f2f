"""``slipstream lend``: lends this machine's devices to slipstream on another machine."""

from __future__ import annotations

import argparse
import platform

from slipstream.app.cli.streams import notice_if_slow
from slipstream.app.devices.lend import LOOPBACK, Lending, check, lend
from slipstream.app.platform.paths import Paths
from slipstream.app.platform.safe_text import one_line
from slipstream.models.errors import UsageError
from slipstream.models.llama.library import physical_cores
from slipstream.models.memory.room import gigabytes


def run_lend(options: argparse.Namespace) -> int:
    """Lends the devices until Ctrl-C raises ``KeyboardInterrupt``."""
    if not 0 < options.port < 1 << 16:
        raise UsageError(f"port is {options.port}; it must be from 1 to 65535.")
    if options.cache_gb < 0 or options.threads < 0:
        raise UsageError("cache-gb and threads must be 0 or more.")
    cache = Paths.default().derived / "lent" if options.cache_gb else None
    lending = Lending(
        options.listen or LOOPBACK,
        options.port,
        options.threads or physical_cores(),
        cache,
        round(options.cache_gb * 1e9),
    )
    with notice_if_slow("waiting for llama.cpp's devices; Ctrl-C stops.", after=5.0):
        devices = check(lending)
    for device in devices:
        _say(f"{device.name}: {one_line(device.description)}, {gigabytes(device.free_bytes)} of memory free")
    _say(_reach(lending))
    lend(lending, _say)
    return 0


def _reach(lending: Lending) -> str:
    """Explains how another machine connects; warns of the risk if the address is not local."""
    name, port = one_line(platform.node() or "THIS-MACHINE"), lending.port
    tunnel = f"ssh -N -L {port}:localhost:{port} {name}"
    if lending.local:
        return f"On the other machine: {tunnel}\n  and then: slipstream --rpc localhost:{port}"
    return (
        f"WARNING: whatever reaches {lending.endpoint} can use these devices, read what is computed on them, and may\n"
        "  take over this account: llama.cpp's RPC server has no password, no encryption and known faults.\n"
        f"  Use it in networks that you trust alone. Without --listen, a tunnel is safer: {tunnel}"
    )


def _say(line: str) -> None:
    print(line, flush=True)
