"""The report of ``slipstream doctor``: devices, libraries, folders, bundled and installed models."""

import base64
import hashlib
import importlib.metadata
import json
import platform
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slipstream.app.devices.hints import Gpu, Hint, Look, faster, foreign_letters, gpus, reinstall
from slipstream.app.library.load_request import BUNDLED_DRAFT, BUNDLED_TARGET
from slipstream.app.library.manager import ModelManager
from slipstream.app.platform.paths import HOME_VARIABLE, Paths
from slipstream.app.settings.file import SettingsFile
from slipstream.drafters.autopilot import AUTO
from slipstream.drafters.memory import DrafterMemory
from slipstream.models.errors import SlipstreamError, reason_of
from slipstream.models.gguf.reader import read_header
from slipstream.models.gguf.vocabulary import check_vocabulary
from slipstream.models.library.records import InstalledModel
from slipstream.models.llama.devices import Device, Survey, processor_flags, survey
from slipstream.models.llama.install import RPC, from_source, needed_version
from slipstream.models.llama.remote import Lender, ask_all
from slipstream.models.memory.fit import Fit, estimate, fit
from slipstream.models.outside import shown_path

_LIBRARIES: Final = ("slipstream", "llama-cpp-python", "textual", "huggingface-hub", "numpy", "gguf")


@dataclass(frozen=True, slots=True)
class Place:
    """A folder or file that Slipstream writes."""

    name: str
    path: Path
    exists: bool  # otherwise it is created when needed
    free_bytes: int
    problem: str = ""  # why it cannot be written; empty if it can


def places(paths: Paths) -> list[Place]:
    """Tries to write to every folder that Slipstream uses; leaves nothing behind."""
    return [_place(name, path) for name, path in paths.rows() if name != "bundled"]


def _place(name: str, path: Path) -> Place:
    folder = path if path.is_dir() else path.parent
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        free = shutil.disk_usage(folder).free
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = reason_of(error)
        hint = f"Fix its rights, or set {HOME_VARIABLE} to a folder that you can write to."
        return Place(name, path, path.exists(), 0, f"cannot write to {shown_path(folder)}: {reason}. {hint}")
    return Place(name, path, path.exists(), free)


def bundled_problems(folder: Path) -> list[str]:
    problems = []
    for name in (BUNDLED_TARGET, BUNDLED_DRAFT):
        if not (folder / name).is_file():
            problems.append(f"the bundled model is incomplete: {shown_path(folder / name)} is missing.")
    recorded = _recorded()
    for path in sorted(folder.glob("*.gguf")):
        try:
            header = read_header(path)
            if path.name in (BUNDLED_TARGET, BUNDLED_DRAFT):
                check_vocabulary(header)
        except SlipstreamError as error:
            problems.append(f"the bundled model is damaged: {error.title}")
            continue
        digest = recorded.get(path.resolve())
        if digest and digest != _digest(path):
            problems.append(f"the bundled model is damaged: {shown_path(path)} is not what was installed.")
    return problems


def _recorded() -> dict[Path, str]:
    """Digests of the package's files from the installer's record; empty when run from source."""
    try:
        files = importlib.metadata.files("slipstream") or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    return {
        Path(str(file.locate())).resolve(): file.hash.value
        for file in files
        if file.suffix == ".gguf" and file.hash and file.hash.mode == "sha256"
    }


def _digest(path: Path) -> str:
    """SHA-256 as installers record it: URL-safe base64 without padding."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


@dataclass(frozen=True, slots=True)
class Fitting:
    """A model and how it would run here, an estimate for other programs' models; no fit for a broken model."""

    model: InstalledModel
    fit: Fit | None
    replayed: float = 0.0  # share of its passes that the device replayed when `auto` wrote its latest replies


@dataclass(frozen=True, slots=True)
class Report:
    """What ``slipstream doctor`` shows."""

    system: str
    python: str
    versions: dict[str, str]
    survey: Survey
    gpus: tuple[Gpu, ...]
    lenders: tuple[Lender, ...]
    places: tuple[Place, ...]
    models: tuple[Fitting, ...]
    faster: tuple[Hint, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()  # what may go wrong, but works so far


def examine(paths: Paths, look: Look, asked: Survey | None = None, rpc: str = "") -> Report:
    """Makes the report: loads no model, and asks only the machines of ``rpc``, or of the settings, over the network."""
    asked, settings = asked or survey(), SettingsFile(paths.settings)
    versions = {name: _version(name) for name in _LIBRARIES}
    needed = needed_version() or _version("llama-cpp-python")
    kept = places(paths)
    problems = [place.problem for place in kept if place.problem] + bundled_problems(paths.bundled)
    problems += settings.problems
    lenders = ask_all(rpc or settings.settings.devices.rpc)
    if lenders and "RPC" not in asked.backends:
        problems.append(f"llama.cpp cannot use other machines: it is built without RPC. {from_source(RPC, needed)}")
    if asked.problem:
        problems.append(f"{asked.problem}. {asked.cure or f'Install it again: {reinstall(look, needed)}'}")
    elif versions["llama-cpp-python"] != needed:
        found = versions["llama-cpp-python"] or "missing"
        command = reinstall(look, needed)
        problems.append(f"llama-cpp-python is {found}, and Slipstream works with {needed} only: {command}")
    known = gpus(look)
    hints = faster(known, asked, look, needed, processor_flags(look.root))
    return Report(
        system=f"{look.system} {look.machine}",
        python=platform.python_version(),
        versions=versions,
        survey=asked,
        gpus=tuple(known),
        lenders=tuple(lenders),
        places=tuple(kept),
        models=_models(paths, (*asked.devices, *(device for lender in lenders for device in lender.devices))),
        faster=tuple(hints),
        problems=tuple(problems),
        notes=tuple(filter(None, [foreign_letters(look, [place.path for place in kept])])),
    )


def _models(paths: Paths, devices: Sequence[Device]) -> tuple[Fitting, ...]:
    found = []
    for model in ModelManager(paths).installed():
        if model.role != "chat":
            continue
        try:
            fits = None if model.problem else _fit(model, devices)
            found.append(Fitting(model, fits, 0.0 if model.problem or model.foreign else _replayed(paths, model)))
        except SlipstreamError:
            found.append(Fitting(model, None))
    return tuple(found)


def _fit(model: InstalledModel, devices: Sequence[Device]) -> Fit:
    """Estimates other programs' models by size alone, without reading their headers: there may be hundreds."""
    if model.foreign:
        return estimate(model.size, model.params, devices, model.context or None)
    return fit(read_header(model.path), devices)


def _replayed(paths: Paths, model: InstalledModel) -> float:
    memory = DrafterMemory(paths.derived, read_header(model.path).fingerprint)
    with suppress(ValueError, KeyError, TypeError):
        return float(json.loads(memory.read(AUTO) or b"{}")["replayed"])
    return 0.0


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
