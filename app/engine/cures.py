"""What is done differently when an engine that ended is started again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from slipstream.app.engine.ends import Cause
from slipstream.app.engine.protocol import Loaded
from slipstream.app.engine.requests import Load
from slipstream.models.errors import SlipstreamError
from slipstream.models.quoting import shown_path

MOST: Final = 3
"""Ends in a row, without a whole reply between them, after which it is not simply started again."""


class Cures:
    """Remembers how a model's process ended, and what cures it; another model begins afresh.

    The context is halved each time that memory ran out; a GPU that failed is not used again.
    """

    def __init__(self) -> None:
        """Begins with nothing to cure."""
        self._model: tuple[str, str | None] | None = None
        self._begin()

    def _begin(self) -> None:
        self._halved, self._processor, self._in_a_row = 0, False, 0
        self._untold: set[Cause] = set()

    def apply(self, load: Load, log: Path) -> Load:
        """Changes a request so that the model does not end as it did before.

        Args:
            load: What is asked.
            log: Where to look for more.

        Raises:
            SlipstreamError: If it ended too often in a row; who asks once more gets one more try.
        """
        model = (load.model, load.draft_model)
        if model != self._model:
            self._model = model
            self._begin()
        if self._in_a_row >= MOST:
            self._in_a_row = MOST - 1
            raise SlipstreamError(
                f"the engine ended {MOST} times in a row with this model, so it was not started again.",
                f"Choose a smaller model or context, or see {shown_path(log)}. Asked again, it tries once more.",
            )
        load = replace(load, halved=load.halved + self._halved)
        return replace(load, gpu_layers=0, draft_gpu_layers=0) if self._processor else load

    def ended(self, cause: Cause) -> None:
        """Takes note of an end that nobody asked for."""
        self._in_a_row += 1
        self._halved += cause == "memory"
        self._processor |= cause == "gpu"
        self._untold |= {cause} - {"other"}

    def replied(self) -> None:
        """Takes note of a whole reply."""
        self._in_a_row = 0

    def told(self, loaded: Loaded) -> Loaded:
        """Adds what was changed since the last load, for people."""
        said = []
        if "memory" in self._untold:
            said.append(f"with a context of {loaded.n_ctx:,} tokens, since memory probably ran out")
        if "gpu" in self._untold:
            said.append("on the processor, since the GPU failed")
        self._untold = set()
        return replace(loaded, remark=f"the engine was started again {' and '.join(said)}.") if said else loaded
