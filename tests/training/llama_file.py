"""Reads a GGUF with llama.cpp itself, so that tests compare against the engine's own arithmetic."""

import ctypes
from pathlib import Path
from types import TracebackType

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from slipstream.models.llama.library import model_params


@llama_cpp.llama_log_callback
def _QUIET(level: int, text: bytes, data: ctypes.c_void_p) -> None:
    pass


class LlamaFile:
    """One model and one context in F32 arithmetic: ids of a text, logits of ids."""

    def __init__(self, path: Path, context: int = 1024) -> None:
        llama_cpp.llama_log_set(_QUIET, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), model_params())
        assert self.model, f"llama.cpp cannot load {path}"
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.size: int = llama_cpp.llama_vocab_n_tokens(self.vocab)
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx = settings.n_batch = settings.n_ubatch = context
        settings.n_threads = settings.n_threads_batch = 1
        settings.type_k = settings.type_v = llama_cpp.GGML_TYPE_F32
        settings.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.context = llama_cpp.llama_init_from_model(self.model, settings)
        assert self.context

    def __enter__(self) -> "LlamaFile":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        llama_cpp.llama_free(self.context)
        llama_cpp.llama_model_free(self.model)

    def ids(self, text: str, special: bool = False) -> list[int]:
        raw = text.encode()
        room = (llama_cpp.llama_token * (len(raw) + 8))()
        count = llama_cpp.llama_tokenize(self.vocab, raw, len(raw), room, len(room), False, special)
        assert count >= 0
        return list(room[:count])

    def logits(self, ids: list[int], start: int = 0) -> NDArray[np.float32]:
        """Logits after every id, (len(ids), size); the cache is cut to ``start`` first."""
        llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(self.context), 0, start, -1)
        batch = llama_cpp.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, start + i, 1, 1
            batch.seq_id[i][0] = 0
        assert llama_cpp.llama_decode(self.context, batch) == 0
        rows = [
            np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(self.context, i), (self.size,)).copy()
            for i in range(len(ids))
        ]
        llama_cpp.llama_batch_free(batch)
        return np.stack(rows)
