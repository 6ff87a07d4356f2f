"""llama.cpp in the loop of its simplest example: decode a token, take the best one, and so on; see ``serving``.

It is the library that slipstream itself runs on, so it says what plain decoding can cost at best.
"""

from __future__ import annotations

import ctypes
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

from slipstream.models.gguf.reader import read_header
from slipstream.models.llama.repack import weight_params

NAME = "llama.cpp"
PACKAGE = "llama_cpp"
GROUPS: dict[str, list[tuple[str, dict[str, float]]]] = {"plain": [("none", {})]}
_KV = {"f32": 0, "f16": 1, "q8_0": 8}  # ggml_type
_BATCH = 512


class BareLoop:
    """A model and a context on it.

    Attributes:
        version: The version of the package that ships the library.
        build: What it was built for.
    """

    def __init__(self) -> None:
        """Imports the package.

        Raises:
            ImportError: If it is not installed.
        """
        self._low = import_module(f"{PACKAGE}.llama_cpp")
        self._low.llama_backend_init()
        self._model: Any = None
        self._context: Any = None
        self._temperature = 0.0
        self.version = str(import_module(PACKAGE).__version__)
        self.build = self._low.llama_print_system_info().decode().strip()

    def open(
        self,
        model: str,
        draft_model: str | None,
        n_ctx: int,
        kv: str,
        flash: bool | None,
        threads: int,
        temperature: float,
        drafter: str,
        settings: dict[str, float],
    ) -> dict[str, Any]:
        """Loads the model, its weights laid out as slipstream's are; there is but one way to run it."""
        low, self._temperature = self._low, temperature
        self._model = low.llama_model_load_from_file(model.encode(), weight_params(read_header(Path(model))))
        if not self._model:
            raise RuntimeError("the model cannot be loaded")
        params = low.llama_context_default_params()
        params.n_ctx, params.n_batch = n_ctx, _BATCH
        params.type_k = params.type_v = _KV[kv]
        params.flash_attn_type = -1 if flash is None else int(flash)
        params.n_threads = params.n_threads_batch = threads
        self._context = low.llama_init_from_model(self._model, params)
        if not self._context:
            raise RuntimeError("there is no memory for a context")
        return {}

    def generate(self, prompt: list[int], tokens: int) -> dict[str, Any]:
        """Replies to a prompt, each token drawn at the temperature of ``open``, timed from the first to the last."""
        low, vocabulary = self._low, self._low.llama_model_get_vocab(self._model)
        low.llama_memory_clear(low.llama_get_memory(self._context), True)
        best = self._sampler()
        began = perf_counter()
        for start in range(0, len(prompt), _BATCH):
            self._decode(prompt[start : start + _BATCH])
        token = low.llama_sampler_sample(best, self._context, -1)
        first, written = perf_counter(), [token]
        while len(written) < tokens and not low.llama_vocab_is_eog(vocabulary, token):
            self._decode([token])
            token = low.llama_sampler_sample(best, self._context, -1)
            written.append(token)
        end = perf_counter()
        low.llama_sampler_free(best)
        return {
            "tokens": len(written) - 1,
            "seconds": end - first,
            "wall": end - began,
            "text": b"".join(map(self._piece, written)).decode("utf-8", "replace"),
            "drafted": 0,
            "accepted": 0,
        }

    def _sampler(self) -> Any:
        """llama.cpp's own chain, in slipstream's order and with its defaults."""
        low = self._low
        if not self._temperature:
            return low.llama_sampler_init_greedy()
        chain = low.llama_sampler_chain_init(low.llama_sampler_chain_default_params())
        for part in (
            low.llama_sampler_init_top_k(40),
            low.llama_sampler_init_top_p(0.95, 1),
            low.llama_sampler_init_min_p(0.05, 1),
            low.llama_sampler_init_temp(self._temperature),
            low.llama_sampler_init_dist(1),
        ):
            low.llama_sampler_chain_add(chain, part)
        return chain

    def _decode(self, tokens: list[int]) -> None:
        ids = (ctypes.c_int32 * len(tokens))(*tokens)
        if self._low.llama_decode(self._context, self._low.llama_batch_get_one(ids, len(tokens))):
            raise RuntimeError("llama_decode failed")

    def _piece(self, token: int) -> bytes:
        room = ctypes.create_string_buffer(256)
        size = self._low.llama_token_to_piece(
            self._low.llama_model_get_vocab(self._model), token, room, len(room), 0, False
        )
        return bytes(room.raw[: max(0, size)])


engine = BareLoop
