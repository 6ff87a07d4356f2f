"""A GGUF's weights and vocabulary in memory; contexts are opened on it."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from llama_cpp import llama_cpp as C

from slipstream.models.errors import ModelFileError, SlipstreamError
from slipstream.models.gguf import REAL_TOKENS, Header, read_header
from slipstream.models.mtp_check import without_mtp
from slipstream.models.runtime.library import process_log
from slipstream.models.runtime.repack import weight_params
from slipstream.models.template import THINKING
from slipstream.models.types import Token

_CONTROL: Final = 3  # kinds of tokens in a file
_USER_DEFINED: Final = 4


class LlamaModel:
    """Weights and vocabulary of one GGUF file.

    Attributes:
        header: The file's header, checked before C code read it.
        n_vocab: Size of the vocabulary.
        n_rows: Logits of a row; more than ``n_vocab`` in an inflated model, whose last ones stand for no token.
        n_ctx_train: Context that it was trained on.
        n_embd: Width of a hidden state.
        n_layer: Number of layers.
        mtp: Whether it has an MTP layer that llama.cpp can draft with; only then is the layer loaded.
        recurrent: Whether its memory cannot simply be cut (recurrent and hybrid models).
        ends: The tokens that end a reply.
    """

    def __init__(
        self,
        path: Path,
        on_progress: Callable[[float], None] | None = None,
        gpu_layers: int = -1,
        vocabulary_only: bool = False,
        repack: bool = True,
    ) -> None:
        """Loads the file.

        Args:
            path: The GGUF.
            on_progress: Called with 0 to 1 while loading.
            gpu_layers: Layers to keep on the GPU; -1 for all that there are.
            vocabulary_only: Leave the weights on the disk: it can tokenize, and nothing else.
            repack: Let the processor keep a copy of some weights in an order that it likes better.

        Raises:
            ModelFileError: If the file is not a model that llama.cpp can load.
        """
        self.header: Header = read_header(path)
        C.llama_backend_init()
        params = weight_params(self.header, repack and not vocabulary_only)
        params.n_gpu_layers = gpu_layers
        self.mtp = params.load_mtp = not without_mtp(self.header)
        params.vocab_only = vocabulary_only

        def progress(share: float, _data: Any) -> bool:
            if on_progress:
                on_progress(share)
            return True

        callback = C.llama_progress_callback(progress)
        params.progress_callback = callback
        log = process_log()
        log.lines.clear()
        self.pointer = C.llama_model_load_from_file(str(path).encode(), params)
        reason = log.reason() or "it gave no reason"
        if not self.pointer and ("alloc" in reason or "out of memory" in reason):
            raise SlipstreamError(
                f"{path}: there is not enough memory to load this model: {reason}.",
                "Close other programs, or choose a smaller model or quantization.",
            )
        if not self.pointer:
            raise ModelFileError(
                f"{path}: llama.cpp cannot load this model: {reason}.",
                "Get a GGUF of an architecture that llama.cpp supports, or fetch the file again.",
            )
        self._vocab = C.llama_model_get_vocab(self.pointer)
        self.n_rows: int = C.llama_vocab_n_tokens(self._vocab)
        self.n_vocab = self.header.n_vocab if REAL_TOKENS in self.header.metadata else self.n_rows
        self.n_ctx_train: int = C.llama_model_n_ctx_train(self.pointer)
        self.n_embd: int = C.llama_model_n_embd(self.pointer)
        self.n_layer: int = C.llama_model_n_layer(self.pointer)
        self.recurrent = bool(C.llama_model_is_recurrent(self.pointer) or C.llama_model_is_hybrid(self.pointer))
        self._forgeable = self._forgeable_names()
        self.ends = frozenset(t for t in range(self.n_vocab) if C.llama_vocab_is_eog(self._vocab, t))
        controls = (t for t, kind in enumerate(self.header.token_types) if kind == _CONTROL and t not in self.ends)
        self._marks = {t: name.encode() for t in controls if (name := self.text_of(t)) in THINKING}

    def tokenize(self, text: str, special: bool) -> list[Token]:
        """Turns text into tokens.

        Args:
            text: Any text.
            special: Whether the names of control tokens become those tokens; False for everything a person wrote.
        """
        if not special and self._forgeable and self._forgeable.search(text):
            cuts = [0, *(name.start() + 1 for name in self._forgeable.finditer(text)), len(text)]
            parts = (text[start:end] for start, end in pairwise(cuts))
            return [token for part in parts for token in self.tokenize(part, special)]
        raw = text.encode("utf-8", "replace")
        room = len(raw) + 16
        buffer = (ctypes.c_int32 * room)()
        count = C.llama_tokenize(self._vocab, raw, len(raw), buffer, room, False, special)
        if count < 0:
            buffer = (ctypes.c_int32 * -count)()
            count = C.llama_tokenize(self._vocab, raw, len(raw), buffer, -count, False, special)
        return list(buffer[:count])

    def _forgeable_names(self) -> re.Pattern[str] | None:
        """Names of control tokens that llama.cpp finds in any text, ``special`` or not; None if there are none.

        It takes what a file calls user-defined for such, and so it does gpt-oss's ``<|start|>`` whatever the file says:
        what a person wrote is cut inside these names, or it could forge another speaker's turn.
        """
        names = []
        for token, kind in enumerate(self.header.token_types):
            if kind not in (_CONTROL, _USER_DEFINED):
                continue
            name = self.text_of(token)
            control = kind == _CONTROL or (name.startswith("<|") and name.endswith("|>"))
            found_anywhere = C.llama_vocab_get_attr(self._vocab, token) & C.LLAMA_TOKEN_ATTR_USER_DEFINED
            if len(name) > 1 and control and found_anywhere:
                names.append(name)
        return re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True)))) if names else None

    def opening(self) -> list[Token]:
        """The tokens that every text of this model starts with."""
        return [C.llama_vocab_bos(self._vocab)] if C.llama_vocab_get_add_bos(self._vocab) else []

    def text_of(self, token: Token) -> str:
        """The name of a token in the vocabulary, such as ``<|im_end|>``; empty for ids outside it."""
        if not 0 <= token < self.n_vocab:
            return ""
        raw: bytes = C.llama_vocab_get_text(self._vocab, token)
        return raw.decode("utf-8", "replace")

    def special_names(self) -> tuple[str, str]:
        """Names of the tokens that begin and end a text, as chat templates want them."""
        return self.text_of(C.llama_vocab_bos(self._vocab)), self.text_of(C.llama_vocab_eos(self._vocab))

    def piece(self, token: Token) -> bytes:
        """The bytes that a token stands for; nothing for control tokens, but those that mark thinking are text."""
        if token in self._marks:
            return self._marks[token]
        room = 64
        buffer = ctypes.create_string_buffer(room)
        count = C.llama_token_to_piece(self._vocab, token, buffer, room, 0, False)
        if count < 0:
            buffer = ctypes.create_string_buffer(-count)
            count = C.llama_token_to_piece(self._vocab, token, buffer, -count, 0, False)
        return buffer.raw[:count]

    def pieces(self, tokens: Sequence[Token]) -> bytes:
        """The bytes of a run of tokens."""
        return b"".join(map(self.piece, tokens))

    def close(self) -> None:
        """Frees the weights; contexts on them must be closed before."""
        if self.pointer:
            C.llama_model_free(self.pointer)
            self.pointer = None
