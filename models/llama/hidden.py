"""The hidden points of a llama.cpp context: which ones it offers, which ones are requested, and their rows."""

from __future__ import annotations

from typing import Any, Final

from llama_cpp import llama_cpp as C

from slipstream.models.gguf.architectures import LAYER_INPUTS
from slipstream.models.gguf.mtp import HAS_FEATURES
from slipstream.models.llama.library import rows_at
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.symbols import SYMBOLS
from slipstream.models.types import LAST_HIDDEN, MTP_HIDDEN, Floats


class HiddenPoints:
    """The hidden points that a context provides with each pass.

    Attributes:
        offered: Points that may be requested; for any other point, llama.cpp aborts the process.
        last: Whether the last hidden state is requested: every row of a pass is then an output.
    """

    def __init__(self, context: Any, model: LlamaModel) -> None:
        self._context, self._width = context, model.n_embd
        self._points: frozenset[int] = frozenset()
        exported = not SYMBOLS.lacking("set_layer_input", "get_layer_input")
        layers = exported and model.header.architecture in LAYER_INPUTS
        offered = {LAST_HIDDEN, *(range(model.n_layer) if layers else ())}
        features = model.header.architecture in HAS_FEATURES and not SYMBOLS.lacking("set_features", "get_features")
        self.offered: Final = frozenset(offered | {MTP_HIDDEN} if features else offered)
        self.last = False

    @property
    def requested(self) -> frozenset[int]:
        """The points of every pass."""
        return self._points

    def request(self, points: frozenset[int]) -> None:
        """Chooses the points of every pass from now on.

        Raises:
            ValueError: If one of them is not offered.
        """
        if points == self._points:
            return
        if not points <= self.offered:
            raise ValueError(f"hidden points {sorted(points - self.offered)} are not offered")
        for point in self._points ^ points:
            if point == MTP_HIDDEN:
                SYMBOLS.set_features(self._context, point in points, False)
            elif point != LAST_HIDDEN:
                SYMBOLS.set_layer_input(self._context, point, point in points)
        self._points, self.last = points, LAST_HIDDEN in points
        C.llama_set_embeddings(self._context, self.last)

    def read(self, rows: int, part: slice = slice(None)) -> dict[int, Floats]:
        """Views the rows ``part`` of the last pass, which had ``rows`` rows: [len(part), n_embd] for each point."""
        found: dict[int, Floats] = {}
        for point in self._points:
            if point == LAST_HIDDEN:
                pointer = C.llama_get_embeddings(self._context)
            elif point == MTP_HIDDEN:
                pointer = SYMBOLS.get_features(self._context)
            else:
                pointer = SYMBOLS.get_layer_input(self._context, point)
            found[point] = rows_at(pointer, rows, self._width)[part]
        return found
