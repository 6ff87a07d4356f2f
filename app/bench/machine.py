"""The machine that the figures were measured on."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib.metadata import version

from slipstream.models.llama.devices import processor, survey_here
from slipstream.models.llama.library import physical_cores


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine, and versions of its programs."""

    processor: str  # the CPU's model
    device: str  # the devices that run models, and the number of threads
    cores: int  # usable physical cores
    system: str  # operating system and architecture
    python: str
    llama_cpp_python: str  # the binding, whose version determines llama.cpp's
    slipstream: str
    load: float | None  # load average of the last minute when the benchmark began; None if unknown

    @staticmethod
    def here() -> Machine:
        return Machine(
            processor=processor(),
            device=_runs_on(),
            cores=physical_cores(),
            system=f"{platform.system()} {platform.machine()}",
            python=platform.python_version(),
            llama_cpp_python=version("llama-cpp-python"),
            slipstream=version("slipstream"),
            load=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        )

    def lines(self) -> list[str]:
        busy = self.load is not None and self.load > 0.5
        return [
            f"{self.processor}; {self.cores} cores; models run on: {self.device}; {self.system}",
            f"slipstream {self.slipstream}, llama-cpp-python {self.llama_cpp_python}, Python {self.python}",
            *([f"The machine was busy (load {self.load:.1f}): figures are noisy."] if busy else []),
            "Figures: median (lowest..highest) over the rounds, ratios within a round; [..] is a 95 % interval.",
        ]


def _runs_on() -> str:
    cores, gpus = physical_cores(), [each.name for each in survey_here().devices if each.kind in ("gpu", "igpu")]
    return ", ".join(gpus) or f"CPU, {cores} thread{'s' if cores > 1 else ''}"
