"""Input vectors for batches with learned masks: the masks, and the embeddings of the batch's tokens."""

import ctypes
from collections.abc import Sequence
from io import FileIO
from typing import Final

import numpy as np

from slipstream.models.errors import ModelFileError, reason_of
from slipstream.models.llama.ggml import F32, calls
from slipstream.models.llama.model import LlamaModel
from slipstream.models.outside import shown_path
from slipstream.models.types import Floats, Token

MASK_ARCHITECTURES: Final = frozenset(
    ["llama", "mistral3", "qwen2", "qwen3", "qwen3moe", "smollm3", "internlm2", "deci"]
)
"""Architectures that use an input vector unchanged, as they do a token's embedding, without scaling or additions."""
_TABLE: Final = "token_embd.weight"
_KEPT: Final = 4096  # maximum cached rows; a text has fewer different tokens


class _TypeTraits(ctypes.Structure):
    """``struct ggml_type_traits`` of ggml.h."""

    _fields_ = (
        ("type_name", ctypes.c_char_p),
        ("blck_size", ctypes.c_int64),
        ("blck_size_interleave", ctypes.c_int64),
        ("type_size", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)),
        ("from_float_ref", ctypes.c_void_p),
    )


class MaskRows:
    """The embeddings of tokens, and of masks, whose ids follow the vocabulary.

    A batch holds tokens or vectors, never both, so a batch with a mask needs the vectors of all its tokens. They are
    dequantized by the ggml function that the graph uses (``ggml_get_rows`` on a CPU, where llama.cpp keeps this
    tensor), so they are bit-equal to the graph's. The table stays on disk: a large model's would take gigabytes, and a
    text has few different tokens.
    """

    def __init__(self, model: LlamaModel) -> None:
        header = model.header
        self.width, self._n_vocab = model.n_embd, model.n_vocab
        table = next((t for t in header.tensors if t.name == _TABLE and t.shape[0] == model.n_embd), None)
        adapted = any(adapter.changes_embedding for adapter in model.adapters)  # an adapter does not change vectors
        # whether the model takes masks
        self.offered: Final = header.architecture in MASK_ARCHITECTURES and table is not None and not adapted
        if table:
            self._path, self._type = header.parts[table.part], table.type
            self._start, self._size = header.data_offsets[table.part] + table.offset, table.nbytes // table.shape[1]
        self._masks: Floats = np.empty((0, model.n_embd), np.float32)
        self._known: dict[Token, Floats] = {}
        self._file: FileIO | None = None

    def use(self, masks: Floats) -> None:
        """Sets the masks [k, n_embd], and opens the table."""
        if not self.offered:
            raise ValueError("masks are not offered")
        if masks.ndim != 2 or masks.shape[1] != self.width:
            raise ValueError(f"masks of shape {masks.shape} for a model of width {self.width}")
        self._masks = np.array(masks, np.float32)
        if self._type != F32:
            self._unpack = _TypeTraits.from_address(calls().get_type_traits(self._type)).to_float
        try:
            self._file = self._file or FileIO(self._path)
        except OSError as error:
            raise self._unreadable(reason_of(error)) from error

    def fill(self, tokens: Sequence[Token], rows: Floats) -> None:
        """Writes the vectors of tokens and masks into the first rows of [n, n_embd]."""
        highest = max(tokens) - self._n_vocab
        if highest >= len(self._masks):
            raise ValueError(f"there is no mask {highest}: there are {len(self._masks)}")
        for at, token in enumerate(tokens):
            if token >= self._n_vocab:
                rows[at] = self._masks[token - self._n_vocab]
            else:
                row = self._known.get(token)
                rows[at] = self._read(token) if row is None else row

    def close(self) -> None:
        if self._file:
            self._file.close()
            self._file = None

    def _read(self, token: Token) -> Floats:
        assert self._file is not None  # there are masks
        try:
            self._file.seek(self._start + token * self._size)
            stored = self._file.read(self._size)
        except OSError as error:
            raise self._unreadable(reason_of(error)) from error
        if len(stored) != self._size:
            raise self._unreadable("it became shorter while it was used")
        row = np.empty(self.width, np.float32)
        if self._type == F32:
            row[:] = np.frombuffer(stored, "<f4")
        else:
            self._unpack(stored, row.ctypes.data, self.width)
        if len(self._known) == _KEPT:
            self._known.clear()
        self._known[token] = row
        return row

    def _unreadable(self, reason: str) -> ModelFileError:
        return ModelFileError(f"{shown_path(self._path)} cannot be read: {reason}.", "Load the model again.")
