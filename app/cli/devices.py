"""``slipstream doctor`` and ``slipstream lend``: what this machine has, and what it lends to another one."""

from __future__ import annotations

import argparse
import platform
from collections.abc import Iterator
from textwrap import fill
from typing import TYPE_CHECKING, Final

from slipstream.app.cli.models_tables import print_json, table
from slipstream.app.cli.streams import notice_if_slow
from slipstream.app.devices.hints import Look
from slipstream.app.devices.report import Fitting, Report, examine
from slipstream.app.platform.paths import Paths
from slipstream.app.platform.safe_text import one_line
from slipstream.models.errors import UsageError
from slipstream.models.llama.devices import Device
from slipstream.models.memory.fit import Fit
from slipstream.models.memory.room import gigabytes
from slipstream.models.outside import shown_path

if TYPE_CHECKING:
    from slipstream.app.devices.lend import Lending

_KINDS: Final = {"gpu": "GPU", "igpu": "GPU", "cpu": "Processor", "accel": "Helper"}


def doctor(options: argparse.Namespace) -> int:
    """Reports on this machine: devices, problems, and hints for more speed; returns 1 if something is broken."""
    with notice_if_slow("waiting for llama.cpp's devices; Ctrl-C stops.", after=5.0):
        report = examine(Paths.default(), Look.here(), rpc=options.rpc or "")
    if options.json:
        print_json(report)
    else:
        print("\n".join(lines(report)))
    return 1 if report.problems else 0


def lines(report: Report) -> Iterator[str]:
    yield from _machine(report)
    states = ["not writable" if each.problem else f"{gigabytes(each.free_bytes)} free" for each in report.places]
    same = states[0] if len(set(states)) == 1 else ""  # usually all are on one disk
    yield f"\nKept here ({same})" if same else "\nKept here"
    places = zip(report.places, states, strict=True)
    rows = [(place.name, shown_path(place.path), "" if same else state) for place, state in places]
    yield _indented(table(("", "", ""), rows).split("\n")[1:])
    yield "\nModels"
    yield _indented(table(("", "", ""), [_model(each) for each in report.models]).split("\n")[1:])
    if report.faster:
        yield "\nWould be faster"
        for hint in report.faster:
            yield f"  - {one_line(hint.what)}"
            if hint.command:
                yield f"    {one_line(hint.command)}"
    if report.notes:
        yield "\nTo know"
        yield from (f"  - {one_line(note)}" for note in report.notes)
    if report.problems:
        yield "\nBroken"
        for problem in report.problems:
            yield f"  - {one_line(problem)}"
    else:
        yield "\nNothing is broken."


def _machine(report: Report) -> Iterator[str]:
    versions, survey = report.versions, report.survey
    yield f"slipstream {versions['slipstream']}, Python {report.python}, {report.system}"
    others = ", ".join(f"{name} {version}" for name, version in versions.items() if name != "slipstream")
    yield f"with {others}"
    backends = ", ".join(survey.backends) or "unknown"
    yield f"\nllama.cpp  {survey.version or 'does not answer'}; backends built in: {backends}"
    for device in survey.devices:
        yield f"{_KINDS[device.kind]:<9}  {_device(device)}"
        if device.kind == "cpu":
            cores = f"{survey.cores} core{'s' * (survey.cores != 1)}" if survey.cores else "cores unknown"
            if survey.quota:
                cores += f" (the quota of this container, cpu.max, is {survey.quota:g} processors)"
            used = f"{cores}; in use: {', '.join(survey.features) or '-'}"
            yield fill(used, 100, initial_indent=" " * 11, subsequent_indent=" " * 11)
    if not any(device.kind in ("gpu", "igpu") for device in survey.devices):
        known = ", ".join(one_line(gpu.name) for gpu in report.gpus)
        yield f"{'GPU':<9}  {f'{known}: not in use' if known else 'none'}"
    for lender in report.lenders:
        for device in lender.devices:
            yield f"{'Lent by':<9}  {_device(device)}"
        if lender.problem:
            yield f"{'Lent by':<9}  {one_line(lender.endpoint)}: nothing, {one_line(lender.problem)}"


def _device(device: Device) -> str:
    free = f"{gigabytes(device.free_bytes)} of {gigabytes(device.total_bytes)} memory free"
    shared = " (the machine's own)" if device.kind == "igpu" else ""
    name = f"{device.name}: " if device.kind in ("gpu", "igpu") and not device.machine else ""
    return f"{name}{one_line(device.description or device.name)}, {free}{shared}"


def _model(fitting: Fitting) -> tuple[str, str, str]:
    model, chosen = fitting.model, fitting.fit
    name, size = one_line(model.name), gigabytes(model.size)
    if chosen is None:
        return name, size, f"broken: {one_line(model.problem)}"
    if chosen.verdict == "too big":
        return name, size, f"too big. {chosen.why}"
    about = "about " if model.foreign else ""
    where = {
        "gpu": f"whole on {_gpus(chosen)}",
        "split": f"{chosen.gpu_layers} layers on {_gpus(chosen)}, the rest in memory"
        if not chosen.cpu_experts
        else f"on {_gpus(chosen)}, the experts of {chosen.cpu_experts} layers in memory",
        "memory": "in memory",
    }[chosen.verdict]
    replayed = f"; {fitting.replayed:.0%} of passes replayed" if fitting.replayed else ""
    context = f"with a context of {chosen.n_ctx:,} tokens"
    return name, size, f"fits {where}: {about}{gigabytes(chosen.need.total)} {context}{replayed}"


def _gpus(chosen: Fit) -> str:
    if len(chosen.shares) == 1:
        return chosen.machines[0] if chosen.machines else "the GPU"
    return " and ".join(f"{name} ({count} layers)" for name, count in chosen.shares.items())


def _indented(rows: list[str]) -> str:
    return "\n".join(f"  {row}" for row in rows)


def run_lend(options: argparse.Namespace) -> int:
    from slipstream.app.devices.lend import LOOPBACK, Lending, check, lend  # doctor works where these cannot be loaded
    from slipstream.models.llama.library import physical_cores

    if not 0 < options.port < 1 << 16:
        raise UsageError(f"port is {options.port}; it must be from 1 to 65535.")
    if options.cache_gb < 0 or options.threads < 0:
        raise UsageError("cache-gb and threads must be 0 or more.")
    cache = Paths.default().derived / "lent" if options.cache_gb else None
    threads = options.threads or physical_cores()
    lending = Lending(options.listen or LOOPBACK, options.port, threads, cache, round(options.cache_gb * 1e9))
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
