"""Measures the compute buffer of a model's graph with llama.cpp, without loading the model.

With ``no_alloc``, llama.cpp reads only the file's header and plans the graph without allocating it: 4 to 12 ms. Opening
the file takes longer, mostly for its vocabulary: 0.1 s of CPU time for 49,000 tokens, 0.5 s for 262,000. The buffer's
size appears only in the log. Source: ``sched_reserve`` of ``src/llama-context.cpp``.
"""

import os
import re
from pathlib import Path
from typing import Any, Final

from llama_cpp import llama_cpp as C

from slipstream.models.llama.library import model_params, process_log
from slipstream.models.llama.placement import Placement
from slipstream.models.llama.target import ContextOptions

_BUFFER: Final = re.compile(r"compute buffer size = +([\d.]+) MiB")


class DryRun:
    """Plans contexts of a model file without allocating them."""

    def __init__(self, path: Path) -> None:
        """Lets C code read the file's header; the caller has checked it."""
        params = model_params()
        Placement().fill(params)  # only own devices: a lender that is gone would end this process
        params.no_alloc, params.load_mode, params.load_mtp = True, C.LLAMA_LOAD_MODE_NONE, False
        C.llama_backend_init()
        with process_log().listening():
            self._model: Any = C.llama_model_load_from_file(os.fsencode(path), params)
        self._known: dict[ContextOptions, int | None] = {}

    def graph_bytes(self, options: ContextOptions) -> int | None:
        """Bytes of the compute buffer; None if llama.cpp refuses the model or the context."""
        if options not in self._known:
            self._known[options] = self._ask(options) if self._model else None
        return self._known[options]

    def close(self) -> None:
        if self._model:
            C.llama_model_free(self._model)
            self._model = None

    def _ask(self, options: ContextOptions) -> int | None:
        recurrent = bool(C.llama_model_is_recurrent(self._model) or C.llama_model_is_hybrid(self._model))
        with process_log().listening() as lines:
            context = C.llama_init_from_model(self._model, options.params(options.n_ctx, recurrent))
        if not context:
            return None
        C.llama_free(context)
        sizes = [float(size) for size in _BUFFER.findall("".join(lines))]
        return round(max(sizes) * (1 << 20)) if sizes else None
