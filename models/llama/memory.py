"""The memory of a llama.cpp context; the kind of model limits how far back it can be cut."""

from __future__ import annotations

import ctypes
from typing import Any, Final

from llama_cpp import llama_cpp as C

from slipstream.models.errors import SlipstreamError
from slipstream.models.llama.library import process_log
from slipstream.models.llama.model import LlamaModel
from slipstream.models.outside import LONGEST_REASON, quoted

_STATE_ONLY: Final = 1  # LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY: without the attention cells


def made_context(model: Any, params: Any, what: str, hint: str) -> Any:
    """A context on a model's pointer; the error without one gives llama.cpp's reason."""
    process_log().lines.clear()
    context = C.llama_init_from_model(model, params)
    if not context:
        reason = process_log().reason()
        memory = not reason or "alloc" in reason or "memory" in reason
        title = f"there is not enough memory for {what}" if memory else f"llama.cpp cannot open {what}"
        raise SlipstreamError(f"{title}{reason and f': {quoted(reason, LONGEST_REASON)}'}.", hint)
    return context


def open_context(model: LlamaModel, params: Any) -> Any:
    what = f"a context of {params.n_ctx:,} tokens"
    context = made_context(model.pointer, params, what, "Set a smaller one with --context.")
    if not C.llama_get_memory(context) or C.llama_model_has_encoder(model.pointer):
        C.llama_free(context)
        raise SlipstreamError("this model does not write text token by token.", "Choose a chat model.")
    model.adapt(context)
    return context


def rollback_of(model: LlamaModel, rows: int) -> int | None:
    """How many of ``rows`` rows a context could roll back; None for any number.

    Opens a small context to see whether a recurrent or hybrid model can keep copies of its state.
    """
    if not model.recurrent:
        return None
    params = C.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch, params.n_rs_seq = 256, 16, 16, min(rows, 1)
    context = C.llama_init_from_model(model.pointer, params)
    copies = bool(context and C.llama_n_rs_seq(context))
    if context:
        C.llama_free(context)
    return rows if copies else 0


class Memory:
    """Cuts rejected rows off a context's memory.

    Attention keeps a cell for each token and can be cut at any position. So can a sliding window: its cache has the
    full size (``swa_full``), because a smaller one never reuses cells that several sequences share. But a restored
    state has only the cells in the window of its last token. A recurrent or hybrid model has one state per sequence,
    with copies of the states before its last few rows (``n_rs_seq``). llama.cpp does not check that the window is
    complete, or that the last batch wrote the copy; ``cut`` does. To cut further back, it restores the state that
    ``mark`` saved.
    """

    def __init__(self, context: Any, model: LlamaModel) -> None:
        self._context = context
        self.pointer = C.llama_get_memory(context)
        # maximum rows to roll back; None for any number
        self.rollback: int | None = C.llama_n_rs_seq(context) if model.recurrent else None
        self._window: int = C.llama_model_n_swa(model.pointer)  # 0 for none
        self._copies = 0  # rows that the last batch kept states for
        self._state, self._size, self._marked = (ctypes.c_uint8 * 0)(), 0, 0  # state, its bytes, its length in tokens

    def wrote(self, rows: int) -> None:
        if self.rollback is not None:
            self._copies = min(rows - 1, self.rollback)

    def failed(self) -> None:
        """Rejects a recurrent state after a failed batch: llama.cpp may have restored a copy that was never written."""
        self._copies = -1

    def cut(self, length: int) -> int:
        """Drops every position from ``length`` on; one call cuts all sequences, since each call scans all cells.

        Returns:
            Number of positions left: ``length`` if it can be cut there, else those up to the mark, or 0 without a mark.
        """
        if self.rollback is None:
            whole = not self._window or C.llama_memory_seq_pos_min(self.pointer, 0) <= max(0, length + 1 - self._window)
            possible = whole and C.llama_memory_seq_rm(self.pointer, -1, length, -1)
        else:
            back = C.llama_memory_seq_pos_max(self.pointer, 0) + 1 - length
            possible = back <= self._copies and C.llama_memory_seq_rm(self.pointer, 0, length, -1)
            self._copies = 0 if back else self._copies  # a copy can be used once
        if length < self._marked:
            self._marked = 0
        if possible:
            return length
        if self._marked and C.llama_state_seq_set_data_ext(self._context, self._state, self._size, 0, _STATE_ONLY):
            C.llama_memory_seq_rm(self.pointer, 0, self._marked, -1)  # the attention cells
            self._copies = 0
            return self._marked
        self.clear()
        return 0

    def clear(self) -> None:
        """Drops everything, and zeroes it."""
        C.llama_memory_clear(self.pointer, True)
        self._copies = self._marked = 0

    def mark(self, length: int) -> None:
        """Saves the state of a recurrent or hybrid model after ``length`` tokens, in place of an earlier one."""
        if self.rollback is None or length == self._marked:
            return
        self._size = C.llama_state_seq_get_size_ext(self._context, 0, _STATE_ONLY)
        if self._size > len(self._state):
            self._state = (ctypes.c_uint8 * self._size)()
        written = C.llama_state_seq_get_data_ext(self._context, self._state, self._size, 0, _STATE_ONLY)
        self._marked = length if written else 0

    def take_mark(self, other: Memory) -> None:
        """Takes over the mark of a replaced memory with the same tokens."""
        self._state, self._size, self._marked = other._state, other._size, other._marked

    def save(self) -> bytearray:
        """Returns the state of sequence 0, copied only once: it may take gigabytes."""
        state = bytearray(C.llama_state_seq_get_size(self._context, 0))
        written = C.llama_state_seq_get_data(self._context, _bytes_of(state), len(state), 0)
        del state[written:]
        return state

    def restore(self, state: bytearray, length: int) -> bool:
        """Fills an empty memory with a saved state of ``length`` positions; it stays empty on failure."""
        taken = C.llama_state_seq_set_data(self._context, _bytes_of(state), len(state), 0)
        if taken and C.llama_memory_seq_pos_max(self.pointer, 0) == length - 1:
            return True
        self.cut(0)
        return False


def _bytes_of(state: bytearray) -> ctypes.Array[ctypes.c_uint8]:
    return (ctypes.c_uint8 * len(state)).from_buffer(state)
