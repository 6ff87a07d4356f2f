"""An engine that runs, one variant at a time."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

from tests.bench.peers.engines import Engine
from tests.bench.peers.process import PeerProcess
from tests.bench.peers.sweep import Timing, Variant

from slipstream.models.types import Token

_WARM_UP: Final = 8  # tokens


@dataclass(frozen=True, slots=True)
class PeerModel:
    """How all engines load a model."""

    model: str  # path of the GGUF
    draft_model: str | None  # path of the draft model's GGUF, or None
    n_ctx: int  # context in tokens
    kv: str  # type of the KV cache
    flash: bool | None  # flash attention on, off, or None for llama.cpp's choice
    threads: int  # threads of every pass
    # of the sampling, with our other defaults (top-k 40, top-p 0.95, min-p 0.05); at 0 the best token is taken
    temperature: float = 0.0


class Peer:
    """An engine and its process, which is started when it is needed.

    Attributes:
        engine: The engine.
        version: Its version.
        build: What it was built for, in its own words.
    """

    def __init__(self, engine: Engine, model: PeerModel, python: str) -> None:
        """Starts it.

        Args:
            engine: Which.
            model: What every variant loads.
            python: The interpreter that has the engine's package, where that did not come with slipstream.

        Raises:
            PeerError: If it is missing.
        """
        self.engine, self._model = engine, model
        self._python = python if engine.install else sys.executable
        self._open: Variant | None = None
        self._process: PeerProcess | None = self._started()
        self.version, self.build = self._process.version, self._process.build

    def variants(self, kind: str) -> Sequence[Variant]:
        """Those of a kind that the model allows: drafting by a draft model needs one."""
        return [v for v in self.engine.groups[kind] if v.drafter != "draft" or self._model.draft_model]

    def reply(self, variant: Variant, prompt: Sequence[Token], tokens: int) -> Timing:
        """Replies to a prompt; the model is loaded and warm before the clock starts.

        Raises:
            PeerError: If the engine refuses, or dies; other variants may be asked.
        """
        if not self._process or not self._process.alive:
            self.release()
            self._process = self._started()
        if variant != self._open:
            self._open = None
            settings = dict(variant.settings)
            self._process.ask("open", **asdict(self._model), drafter=variant.drafter, settings=settings)
            self._process.ask("generate", prompt=list(prompt[: max(1, len(prompt) // 2)]), tokens=_WARM_UP)
            self._open = variant
        answer = self._process.ask("generate", prompt=list(prompt), tokens=tokens)
        return Timing.of(answer, self.engine.name)

    def release(self) -> None:
        """Ends the process, and with it the engine's hold on memory; the next reply starts another."""
        if self._process:
            self._process.close()
        self._process = self._open = None

    def _started(self) -> PeerProcess:
        return PeerProcess(self.engine.name, self.engine.file, self._python, self.engine.install)
