"""The hidden points of a llama.cpp context: which can be asked for, which are, and their rows."""

from __future__ import annotations

from typing import Any, Final

from llama_cpp import llama_cpp as C
from llama_cpp import llama_cpp_ext

from slipstream.models.llama.library import LAYER_INPUT_ARCHITECTURES, layer_input_calls, rows_at
from slipstream.models.llama.model import LlamaModel
from slipstream.models.types import LAST_HIDDEN, MTP_HIDDEN, Floats


class HiddenPoints:
    """The hidden points that a context hands out with each pass.

    Attributes:
        offered: Points that may be asked for; asking llama.cpp for another one would abort the process.
        last: Whether the last hidden state is asked for: every row of a pass is then an output.
    """

    def __init__(self, context: Any, model: LlamaModel) -> None:
        """Requests none."""
        self._context, self._width = context, model.n_embd
        self._points: frozenset[int] = frozenset()
        layers = layer_input_calls() and model.header.architecture in LAYER_INPUT_ARCHITECTURES
        offered = {LAST_HIDDEN, *(range(model.n_layer) if layers else ())}
        self.offered: Final = frozenset(offered | {MTP_HIDDEN} if model.mtp else offered)
        self.last = False

    def request(self, points: frozenset[int]) -> None:
        """Chooses the points of every pass from now on.

        Raises:
            ValueError: If one of them is not offered.
        """
        if points == self._points:
            return
        if not points <= self.offered:
            raise ValueError(f"hidden points {sorted(points - self.offered)} are not offered")
        calls = layer_input_calls()
        for point in self._points ^ points:
            if point == MTP_HIDDEN:
                llama_cpp_ext.llama_set_embeddings_nextn(self._context, point in points, False)
            elif point != LAST_HIDDEN and calls:
                calls[0](self._context, point, point in points)
        self._points, self.last = points, LAST_HIDDEN in points
        C.llama_set_embeddings(self._context, self.last)

    def read(self, rows: int, skip: int) -> dict[int, Floats]:
        """Views the points of the last pass, which had ``rows`` rows: [rows - skip, n_embd] each."""
        found: dict[int, Floats] = {}
        calls: Any = layer_input_calls()
        for point in self._points:
            if point == LAST_HIDDEN:
                pointer = C.llama_get_embeddings(self._context)
            elif point == MTP_HIDDEN:
                pointer = llama_cpp_ext.llama_get_embeddings_nextn(self._context)
            else:
                pointer = calls[1](self._context, point)
            found[point] = rows_at(pointer, rows, self._width)[skip:]
        return found
