"""Reads queued tokens into a KV cache, in chunks that take about equally long, or of one size."""

import time
from collections.abc import Callable
from typing import Any, Final

from llama_cpp import llama_cpp as C

from slipstream.models.errors import SlipstreamError
from slipstream.models.llama.batch import Batch
from slipstream.models.llama.hidden import HiddenPoints
from slipstream.models.llama.image_layout import first_image
from slipstream.models.llama.kv_cache import KvCache
from slipstream.models.llama.library import run_pass
from slipstream.models.llama.target import PrefillChunk

_FIRST_CHUNK: Final = 64
_LEAST_CHUNK: Final = 32  # tokens; in a smaller chunk, each token takes much longer
_CHUNK_SECONDS: Final = 0.25  # target time of a chunk, for smooth progress; only a CPU can abort within a chunk


class ChunkReader:
    """Reads the queued tokens of a context; each image has its own pass."""

    def __init__(
        self, context: Any, cache: KvCache, hidden: HiddenPoints, batch: Batch, most_rows: int, most_outputs: int
    ) -> None:
        """Takes the most rows and outputs of a pass; with the last hidden state, every row is an output."""
        self._context, self._cache, self._hidden, self._batch = context, cache, hidden, batch
        self._most_rows, self._most_outputs = most_rows, most_outputs
        # tokens of every chunk but the last, where the chunks' sizes change the logits; 0 to choose them by time
        self.size = 0
        self._cancelled: Callable[[], bool] | None = None
        self._abort = C.ggml_abort_callback(lambda _: bool(self._cancelled and self._cancelled()))
        self._no_abort = C.ggml_abort_callback(0)

    def read(
        self, on_chunk: Callable[[PrefillChunk], None] | None = None, cancelled: Callable[[], bool] | None = None
    ) -> bool:
        """Decodes the queued tokens in chunks; if cancelled, drops the rest and returns False."""
        cache = self._cache
        total, size = len(cache.tokens), self.size or _FIRST_CHUNK
        limit = min(self._most_rows, self._most_outputs) if self._hidden.last else self._most_rows
        self._cancelled = cancelled
        if cancelled:
            C.llama_set_abort_callback(self._context, self._abort, None)
        try:
            while cache.cached < total:
                if cancelled and cancelled():
                    break
                end = first_image(cache.tokens, cache.cached, min(total, cache.cached + min(size, limit)))
                if end == cache.cached:
                    if not self._read_image(on_chunk):
                        break
                    continue
                chunk = cache.tokens[cache.cached : end]
                self._batch.prompt(chunk, cache.layout.position(cache.cached), output_all=self._hidden.last)
                began = time.perf_counter()
                if not cache.passed(run_pass(C.llama_decode, self._context, self._batch.batch), len(chunk)):
                    break
                took = time.perf_counter() - began
                cache.cached += len(chunk)
                if on_chunk:
                    on_chunk(PrefillChunk(chunk, cache.cached, total, self._hidden.read(len(chunk))))
                if not self.size:
                    size = max(_LEAST_CHUNK, min(2 * size, int(len(chunk) * _CHUNK_SECONDS / max(took, 1e-6))))
        finally:
            if cancelled:
                C.llama_set_abort_callback(self._context, self._no_abort, None)
                self._cancelled = None
        if cache.cached < total:
            cache.rewind(cache.cached)
            return False
        return True

    def _read_image(self, on_chunk: Callable[[PrefillChunk], None] | None) -> bool:
        """Reads the image at the front of the queue; returns False if the caller aborted it."""
        cache = self._cache
        try:
            image = cache.images.chunk_at(cache.tokens, cache.cached)
            C.llama_set_embeddings(self._context, False)  # otherwise every row would be an output: too many
            code = image.decode(self._context, cache.layout.position(cache.cached))
        except SlipstreamError:
            cache.rewind(cache.cached)
            raise
        finally:
            C.llama_set_embeddings(self._context, self._hidden.last)
        if not cache.passed(code, 1):
            return False
        cache.layout.add(cache.cached, len(image.tokens), image.positions)
        cache.cached += len(image.tokens)
        if on_chunk:
            on_chunk(PrefillChunk(image.tokens, cache.cached, len(cache.tokens)))
        return True
