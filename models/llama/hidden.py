"""The hidden points of a llama.cpp context: which ones it offers, which ones are requested, and their rows.

libllama exports the functions for them under C++ names only. Compilers mangle such names, and a release may drop a
function. A missing function is None here: the drafters that need it report that, and everything else runs without it.
"""

import ctypes
from dataclasses import dataclass
from typing import Any, Final

from llama_cpp import llama_cpp as C

from slipstream.models.gguf.architectures import HAS_FEATURES, LAYER_INPUTS
from slipstream.models.llama.library import rows_at
from slipstream.models.llama.model import LlamaModel
from slipstream.models.types import LAST_HIDDEN, MTP_HIDDEN, Floats

_TYPES: Final = {"j": ctypes.c_uint32, "b": ctypes.c_bool}  # as GCC and Clang name them
_NAMES: Final = {
    # field: plain name; types of the arguments behind the context, as GCC and Clang and as MSVC name them
    "set_layer_input": ("llama_set_embeddings_layer_inp", "jb", "I_N"),
    "get_layer_input": ("llama_get_embeddings_layer_inp", "j", "I"),
    "set_features": ("llama_set_embeddings_nextn", "bb", "_N1"),
    "get_features": ("llama_get_embeddings_nextn", "", ""),
}


@dataclass(frozen=True, slots=True)
class Symbols:
    """Functions of the library; None for one that it does not export."""

    set_layer_input: Any  # (context, layer, on): output the input of a layer with each pass
    get_layer_input: Any  # (context, layer) -> [rows, n_embd]
    set_features: Any  # (context, on, masked): output the nextn rows; masked: only for rows with outputs
    get_features: Any  # (context) -> [rows, n_embd]

    def lacking(self, *names: str) -> str:
        """The reason why a feature cannot run, as the end of a sentence; empty if the library has these functions."""
        missing = [_NAMES[name][0] for name in names if getattr(self, name) is None]
        return f"this build of llama.cpp does not export {', '.join(missing)}" if missing else ""


def find_symbols(library: Any) -> Symbols:
    found: dict[str, Any] = {}
    for field, (plain, arguments, windows) in _NAMES.items():
        sets = field.startswith("set")
        named = f"?{plain}@@YA{'X' if sets else 'PEAM'}PEAUllama_context@@{windows}@Z"
        names = (plain, f"_Z{len(plain)}{plain}P13llama_context{arguments}", named)
        call = next((call for name in names if (call := getattr(library, name, None)) is not None), None)
        if call is not None:
            call.argtypes = [ctypes.c_void_p, *(_TYPES[kind] for kind in arguments)]
            call.restype = None if sets else ctypes.POINTER(ctypes.c_float)
        found[field] = call
    return Symbols(**found)


SYMBOLS: Final = find_symbols(C._lib)


class HiddenPoints:
    """The hidden points that a context provides with each pass."""

    def __init__(self, context: Any, model: LlamaModel) -> None:
        self._context, self._width = context, model.n_embd
        self.requested: frozenset[int] = frozenset()  # the points of every pass
        exported = not SYMBOLS.lacking("set_layer_input", "get_layer_input")
        layers = exported and model.header.architecture in LAYER_INPUTS
        offered = {LAST_HIDDEN, *(range(model.n_layer) if layers else ())}
        features = model.header.architecture in HAS_FEATURES and not SYMBOLS.lacking("set_features", "get_features")
        # points that may be requested; for any other point, llama.cpp aborts the process
        self.offered: Final = frozenset(offered | {MTP_HIDDEN} if features else offered)
        self.last = False  # whether the last hidden state is requested: every row of a pass is then an output

    def request(self, points: frozenset[int]) -> None:
        if points == self.requested:
            return
        if not points <= self.offered:
            raise ValueError(f"hidden points {sorted(points - self.offered)} are not offered")
        for point in self.requested ^ points:
            if point == MTP_HIDDEN:
                SYMBOLS.set_features(self._context, point in points, False)
            elif point != LAST_HIDDEN:
                SYMBOLS.set_layer_input(self._context, point, point in points)
        self.requested, self.last = points, LAST_HIDDEN in points
        C.llama_set_embeddings(self._context, self.last)

    def read(self, rows: int, part: slice = slice(None)) -> dict[int, Floats]:
        """Views the rows ``part`` of the last pass, which had ``rows`` rows: [len(part), n_embd] for each point."""
        found: dict[int, Floats] = {}
        for point in self.requested:
            if point == LAST_HIDDEN:
                pointer = C.llama_get_embeddings(self._context)
            elif point == MTP_HIDDEN:
                pointer = SYMBOLS.get_features(self._context)
            else:
                pointer = SYMBOLS.get_layer_input(self._context, point)
            found[point] = rows_at(pointer, rows, self._width)[part]
        return found
