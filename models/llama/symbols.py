"""Functions that libllama exports under C++ names only; looked up once, when this module is imported.

Compilers mangle such names, and a release may drop a function. A missing function is None here: the drafters that need
it report that, and everything else runs without it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Final

from llama_cpp import llama_cpp as C

_FLOATS: Final = ctypes.POINTER(ctypes.c_float)
_CONTEXT: Final = ctypes.c_void_p


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


# field: plain name, suffix of GCC and Clang, suffix of MSVC, types of the arguments, type of the result
_NAMES: Final[dict[str, tuple[str, str, str, list[Any], Any]]] = {
    "set_layer_input": (
        "llama_set_embeddings_layer_inp",
        "P13llama_contextjb",
        "YAXPEAUllama_context@@I_N@Z",
        [_CONTEXT, ctypes.c_uint32, ctypes.c_bool],
        None,
    ),
    "get_layer_input": (
        "llama_get_embeddings_layer_inp",
        "P13llama_contextj",
        "YAPEAMPEAUllama_context@@I@Z",
        [_CONTEXT, ctypes.c_uint32],
        _FLOATS,
    ),
    "set_features": (
        "llama_set_embeddings_nextn",
        "P13llama_contextbb",
        "YAXPEAUllama_context@@_N1@Z",
        [_CONTEXT, ctypes.c_bool, ctypes.c_bool],
        None,
    ),
    "get_features": (
        "llama_get_embeddings_nextn",
        "P13llama_context",
        "YAPEAMPEAUllama_context@@@Z",
        [_CONTEXT],
        _FLOATS,
    ),
}


def find_symbols(library: Any) -> Symbols:
    """Looks up the functions.

    Args:
        library: A ``ctypes.CDLL`` of libllama.
    """
    found: dict[str, Any] = {}
    for field in fields(Symbols):
        plain, gcc, msvc, arguments, result = _NAMES[field.name]
        call = _first(library, (plain, f"_Z{len(plain)}{plain}{gcc}", f"?{plain}@@{msvc}"))
        if call is not None:
            call.argtypes, call.restype = arguments, result
        found[field.name] = call
    return Symbols(**found)


def _first(library: Any, names: Iterable[str]) -> Any:
    return next((call for name in names if (call := getattr(library, name, None)) is not None), None)


SYMBOLS: Final = find_symbols(C._lib)
