"""The engines that slipstream is measured against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Final

from tests.bench.peers import bare_loop, llama_cpp_python, llama_server
from tests.bench.peers.sweep import Variant


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine."""

    name: str
    file: Path  # what its process runs, see ``serving``
    groups: Mapping[str, Sequence[Variant]]  # variants by kind; of each kind the fastest counts
    install: str = ""  # how to get it; empty where it came with slipstream

    @staticmethod
    def named(name: str) -> Engine:
        """The engine of a name; one with a colon and a kind of drafting is measured with that kind and plainly."""
        engine, _, kind = name.partition(":")
        found = ENGINES[engine]
        if not kind:
            return found
        return replace(found, groups={each: found.groups[each] for each in ("plain", kind)})


def _engine(file: ModuleType, install: str = "") -> Engine:
    groups = {
        kind: [Variant(file.NAME, drafter, tuple(settings.items())) for drafter, settings in variants]
        for kind, variants in file.GROUPS.items()
    }
    return Engine(file.NAME, Path(str(file.__file__)), groups, install)


# all engines by name
ENGINES: Final[Mapping[str, Engine]] = MappingProxyType(
    {
        engine.name: engine
        for engine in (
            _engine(bare_loop),
            _engine(
                llama_server,
                f"Install {llama_server.PACKAGE} into an environment of its own (python -m venv peers;"
                f" peers/bin/pip install {llama_server.PACKAGE}) and give --peer-python peers/bin/python.",
            ),
            _engine(llama_cpp_python),
        )
    }
)
