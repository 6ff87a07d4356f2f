"""What ``slipstream doctor`` finds out."""

from __future__ import annotations

import importlib.metadata
import platform
import re
from dataclasses import dataclass
from typing import Final

from slipstream.app.doctor.files import Place, bundled_problems, places
from slipstream.app.doctor.gpus import Gpu, Look, gpus
from slipstream.app.doctor.hints import Hint, faster, reinstall
from slipstream.app.models.manager import ModelManager
from slipstream.app.paths import Paths
from slipstream.app.settings.file import SettingsFile
from slipstream.models.errors import SlipstreamError
from slipstream.models.fit import Fit, estimate, fit
from slipstream.models.gguf import read_header
from slipstream.models.runtime.devices import Survey, survey
from slipstream.models.runtime.machine import processor_flags
from slipstream.models.store_types import Installed

_LIBRARIES: Final = ("slipstream", "llama-cpp-python", "textual", "huggingface-hub", "numpy", "gguf")


@dataclass(frozen=True, slots=True)
class Fitting:
    """A model and how it would run here.

    Attributes:
        model: The model.
        fit: How it is best opened, for other programs' models about; None for one that is broken.
    """

    model: Installed
    fit: Fit | None


@dataclass(frozen=True, slots=True)
class Report:
    """Everything about this machine that matters.

    Attributes:
        system: Name of the system and kind of machine.
        python: Version of Python.
        versions: Versions of the libraries.
        survey: llama.cpp's devices, backends and version.
        gpus: GPUs that the system knows of.
        places: Where things are kept.
        models: Models to chat with.
        faster: What would be faster.
        problems: What is broken, and what to do; empty if nothing is.
    """

    system: str
    python: str
    versions: dict[str, str]
    survey: Survey
    gpus: tuple[Gpu, ...]
    places: tuple[Place, ...]
    models: tuple[Fitting, ...]
    faster: tuple[Hint, ...]
    problems: tuple[str, ...]


def examine(paths: Paths, look: Look, asked: Survey | None = None) -> Report:
    """Looks at everything; no model is loaded, and no network is asked.

    Args:
        paths: Where things are kept.
        look: Where to look for GPUs.
        asked: llama.cpp's answer; None to ask it.
    """
    asked = asked or survey()
    versions = {name: _version(name) for name in _LIBRARIES}
    needed = _needed()
    kept = places(paths)
    problems = [place.problem for place in kept if place.problem] + bundled_problems(paths.bundled)
    problems += SettingsFile(paths.settings).problems
    if asked.problem:
        problems.append(f"{asked.problem}. Install it again: {reinstall(look, needed, asked.problem)}")
    elif versions["llama-cpp-python"] != needed:
        found = versions["llama-cpp-python"] or "missing"
        command = reinstall(look, needed, "")
        problems.append(f"llama-cpp-python is {found}, and Slipstream works with {needed} only: {command}")
    known = gpus(look)
    hints = faster(known, asked, look, needed, processor_flags(look.root))
    return Report(
        system=f"{look.system} {look.machine}",
        python=platform.python_version(),
        versions=versions,
        survey=asked,
        gpus=tuple(known),
        places=tuple(kept),
        models=_models(paths, asked),
        faster=tuple(hints),
        problems=tuple(problems),
    )


def _models(paths: Paths, asked: Survey) -> tuple[Fitting, ...]:
    found = []
    for model in ModelManager(paths).installed():
        if model.role != "chat":
            continue
        try:
            found.append(Fitting(model, None if model.problem else _fit(model, asked)))
        except SlipstreamError:
            found.append(Fitting(model, None))
    return tuple(found)


def _fit(model: Installed, asked: Survey) -> Fit:
    """Other programs may keep hundreds of models, so that their headers are not read for it."""
    if model.foreign:
        return estimate(model.size, model.params, asked.devices, model.context or None)
    return fit(read_header(model.path), asked.devices)


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _needed() -> str:
    """The version of llama-cpp-python that the package asks for."""
    wanted = " ".join(importlib.metadata.requires("slipstream") or [])
    found = re.search(r"llama-cpp-python==([\w.]+)", wanted)
    return found[1] if found else _version("llama-cpp-python")
