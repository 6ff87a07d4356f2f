"""The weights and vocabulary of a loaded GGUF, shared by its contexts."""

from __future__ import annotations

import ctypes
import os
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from llama_cpp import llama_cpp as C

from slipstream.models.chat_template import THINKING
from slipstream.models.errors import ModelChangedError, ModelFileError, SlipstreamError
from slipstream.models.gguf.architectures import without_mtp
from slipstream.models.gguf.lora import Adapter
from slipstream.models.gguf.reader import REAL_TOKENS, Header, read_header
from slipstream.models.llama.library import process_log
from slipstream.models.llama.placement import Placement
from slipstream.models.llama.repack import weight_params
from slipstream.models.outside import shown_path
from slipstream.models.types import Token

_NORMAL: Final = 1  # token types of a file
_CONTROL: Final = 3
_USER_DEFINED: Final = 4
_BYTE: Final = 6
_SPACE_MARK: Final = "\u2581"
_PRINTED: Final = (*range(33, 127), *range(161, 173), *range(174, 256))
_BYTES: Final = frozenset(map(chr, (*_PRINTED, *range(256, 256 + 256 - len(_PRINTED)))))
"""GPT-2's characters for the 256 bytes: printable bytes keep their own, the others get those from 256 on."""
_WRITTEN_SPACES: Final = re.compile("[ \\t\\n\\r\\v\\f\u2581]")
_BYTE_SPACES: Final = re.compile("[\u0120\u0109\u010a\u010d\u010b\u010c]")
"""Whitespace in token names: as plain text, and in GPT-2's characters for bytes."""


@dataclass(frozen=True, slots=True)
class _ControlNames:
    """The names of control tokens, prepared for a search at every place of a text."""

    names: frozenset[str]
    first: re.Pattern[str]  # their first characters
    sizes: tuple[int, ...]  # their lengths, longest first

    @classmethod
    def of(cls, names: AbstractSet[str]) -> _ControlNames:
        first = "".join(sorted({name[0] for name in names}))
        sizes = tuple(sorted({len(name) for name in names}, reverse=True))
        return cls(frozenset(names), re.compile(f"[{re.escape(first)}]" if first else "(?!)"), sizes)


class LlamaModel:
    """Weights and vocabulary of one GGUF file."""

    def __init__(
        self,
        path: Path,
        on_progress: Callable[[float], None] | None = None,
        placement: Placement = Placement(),  # noqa: B008 (frozen)
        vocabulary_only: bool = False,
        repack: bool = True,
        adapters: Sequence[Adapter] = (),
    ) -> None:
        """Loads the file, or only its vocabulary; ``repack`` lets the processor copy weights to a faster layout."""
        self.header: Header = read_header(path)
        self.placement = placement
        C.llama_backend_init()
        params = weight_params(self.header, repack and not vocabulary_only, placement)
        placement.fill(params)
        # whether it has an MTP layer that llama.cpp can draft with; otherwise the layer is not loaded
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
        self.pointer = C.llama_model_load_from_file(os.fsencode(path), params)
        reason = log.reason() or "it gave no reason"
        if not self.pointer and ("alloc" in reason or "out of memory" in reason):
            raise SlipstreamError(
                f"{shown_path(path)}: there is not enough memory to load this model: {reason}.",
                "Close other programs, or choose a smaller model or quantization.",
            )
        if not self.pointer:
            raise ModelFileError(f"{shown_path(path)}: llama.cpp cannot load this model: {reason}.", _instead(reason))
        self._facts = [_facts(part) for part in self.header.parts]
        self._remarks: dict[str, str] = {}
        self._remarked = False
        self._vocab = C.llama_model_get_vocab(self.pointer)
        # length of a row of logits; a padded vocabulary matrix makes it longer than ``n_vocab``
        self.n_rows: int = C.llama_vocab_n_tokens(self._vocab)
        self.n_vocab = self.header.n_vocab if REAL_TOKENS in self.header.metadata else self.n_rows
        self.n_ctx_train: int = C.llama_model_n_ctx_train(self.pointer)
        self.n_embd: int = C.llama_model_n_embd(self.pointer)
        self.n_layer: int = C.llama_model_n_layer(self.pointer)
        # whether it is recurrent or hybrid; its memory can then be cut at few positions only
        self.recurrent = bool(C.llama_model_is_recurrent(self.pointer) or C.llama_model_is_hybrid(self.pointer))
        self._kept = self._cut_names()
        longest_first = sorted(self._kept, key=len, reverse=True)
        self._cuts = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        self.ends = frozenset(t for t in range(self.n_vocab) if C.llama_vocab_is_eog(self._vocab, t))
        # maximum bytes of text in one token, whitespace not counted; 0 if there is no limit
        self.token_bytes = _token_bytes(self.header)
        controls = (t for t, kind in enumerate(self.header.token_types) if kind == _CONTROL and t not in self.ends)
        self._marks = {t: name.encode() for t in controls if (name := self.text_of(t)) in THINKING}
        self.adapters: Sequence[Adapter] = adapters  # the LoRA adapters that change its weights in every context
        self._loras: list[Any] = []  # loaded before any context, which reserves room for them in its graph
        for adapter in adapters:
            log.lines.clear()
            self._loras.append(C.llama_adapter_lora_init(self.pointer, os.fsencode(adapter.header.path)))
            if not self._loras[-1]:
                reason = log.reason() or "it gave no reason"
                self.close()
                raise ModelFileError(
                    f"{shown_path(adapter.header.path)}: llama.cpp cannot load this adapter: {reason}.",
                    "Choose another adapter, or none.",
                )

    def adapt(self, context: Any) -> None:
        """Applies the adapters to a new context on this model."""
        if self._loras:
            pointers = (C.llama_adapter_lora_p_ctypes * len(self._loras))(
                *(ctypes.cast(lora, C.llama_adapter_lora_p_ctypes) for lora in self._loras)
            )
            scales = (ctypes.c_float * len(self._loras))(*(adapter.scale for adapter in self.adapters))
            C.llama_set_adapters_lora(context, pointers, len(self._loras), scales)

    def tokenize(
        self, text: str, special: bool, written: Sequence[tuple[int, int]] = (), *, joins: bool = False
    ) -> list[Token]:
        """Turns text into tokens, the same ones as llama.cpp for the whole text unless the text names control tokens.

        Args:
            special: Whether the names of control tokens become those tokens; False for everything a person wrote.
            written: With ``special``, the parts of the text, as pairs of offsets, in which names stay text.
            joins: Whether other tokens stand before the text, so that the tokenizer must not put a space there.
        """
        if not special:
            return self._written(text, joins)
        tokens, start = list[Token](), 0
        for begin, end in self._forged(text, written) if written else ():
            tokens += self._part(text[start:begin], True, joins and not start) if begin > start else []
            tokens += self._written(text[begin:end], joins and not begin)
            start = end
        return tokens + (self._part(text[start:], True, joins and not start) if start < len(text) else [])

    def _forged(self, text: str, written: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """The parts of a text, between control tokens of the template, in which a person names a control token."""
        own, forged, after = [0], list[int](), 0
        for first in self._names.first.finditer(text):
            at = first.start()
            size = next((size for size in self._names.sizes if text[at : at + size] in self._names.names), 0)
            if not size:
                continue
            span = bisect_left(written, at, key=lambda part: part[1] - 1)  # the first that ends behind it
            if span < len(written) and written[span][0] < at + size:
                forged.append(at)
            elif at >= after and size > 1:
                own += (at, at + size)
                after = at + size
        own.append(len(text))
        runs = {bisect_right(own, at) // 2 * 2 for at in forged}  # a run's end has an odd index
        return [(own[n], own[n + 1]) for n in sorted(runs)]

    @cached_property
    def _names(self) -> _ControlNames:
        kinds = enumerate(self.header.token_types)
        controls = C.LLAMA_TOKEN_ATTR_CONTROL | C.LLAMA_TOKEN_ATTR_UNKNOWN
        tokens = self.ends.union(token for token, kind in kinds if kind not in (_NORMAL, _BYTE))
        names = {self.text_of(token) for token in tokens if C.llama_vocab_get_attr(self._vocab, token) & controls}
        return _ControlNames.of((names | self._kept.keys()) - {""})

    def _written(self, text: str, joins: bool) -> list[Token]:
        tokens, start = list[Token](), 0
        found = self._cuts.search(text) if self._cuts else None
        while found and self._cuts:
            mark = found[0] == _SPACE_MARK and self._bytes
            end = found.start() if mark else found.start() + self._kept[found[0]]
            tokens += self._part(text[start:end], False, bool(start) or joins)
            tokens += [self._bytes[byte] for byte in _SPACE_MARK.encode()] if mark else []
            start = end + bool(mark)
            found = self._cuts.search(text, start)
        return tokens + self._part(text[start:], False, bool(start) or joins)

    def _part(self, text: str, special: bool, joins: bool) -> list[Token]:
        """Tokenizes a part of a text; a tokenizer that puts a space before a text must not do so if it ``joins``."""
        if not (text and joins and self._bytes):
            return self._tokens(text, special)
        barrier = next(iter(self._bytes))
        tokens = self._tokens(chr(barrier) + text, special)
        return tokens[tokens.index(self._bytes[barrier]) + 1 :]

    @cached_property
    def _bytes(self) -> dict[int, Token]:
        """The token of each byte in a SentencePiece vocabulary; empty for others, and if a byte has none.

        The first byte is a character that no token contains, so that it is never joined with the text after it.
        """
        if self.header.tokenizer_model != "llama":
            return {}
        kinds = zip(self.header.tokens, self.header.token_types, strict=True)
        found = {name: token for token, (name, kind) in enumerate(kinds) if kind == _BYTE}
        tokens = {byte: found.get(f"<0x{byte:02X}>", -1) for byte in range(256)}
        known = frozenset().union(*self.header.tokens)
        barrier = next((byte for byte in range(1, 32) if chr(byte) not in known), None)
        return {} if barrier is None or min(tokens.values()) < 0 else {barrier: tokens[barrier]} | tokens

    def _tokens(self, text: str, special: bool) -> list[Token]:
        raw = text.encode("utf-8", "replace")
        room = len(raw) + 16
        buffer = (ctypes.c_int32 * room)()
        count = C.llama_tokenize(self._vocab, raw, len(raw), buffer, room, False, special)
        if count < 0:
            buffer = (ctypes.c_int32 * -count)()
            count = C.llama_tokenize(self._vocab, raw, len(raw), buffer, -count, False, special)
        return list(buffer[:count])

    def _cut_names(self) -> dict[str, int]:
        """What ``tokenize`` cuts a person's text at, with the characters of it that stay before the cut.

        llama.cpp finds control tokens that a file calls user-defined even without ``special``, and gpt-oss's
        ``<|start|>`` whatever its type. Cut inside these names, a text cannot forge another speaker's turn.
        SentencePiece writes a space as ``▁``, so a ``▁`` of the text is spelled in bytes; and it may put a space after
        any other user-defined token, so the text is cut there.
        """
        spaced = self.header.tokenizer_model == "llama"
        names = {_SPACE_MARK: 1} if spaced else {}
        spaced &= bool(self.header.metadata.get("tokenizer.ggml.add_space_prefix", True))
        for token, kind in enumerate(self.header.token_types):
            if kind not in (_CONTROL, _USER_DEFINED):
                continue
            name = self.text_of(token)
            control = kind == _CONTROL or (name.startswith("<|") and name.endswith("|>"))
            attributes = C.llama_vocab_get_attr(self._vocab, token)
            found_anywhere = attributes & C.LLAMA_TOKEN_ATTR_USER_DEFINED
            if len(name) > 1 and control and found_anywhere:
                names[name] = 1
            elif name and spaced and found_anywhere and not attributes & C.LLAMA_TOKEN_ATTR_CONTROL:
                names[name] = len(name)
        return names

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
        """Names of the tokens that begin and end a text, as chat templates need them."""
        return self.text_of(C.llama_vocab_bos(self._vocab)), self.text_of(C.llama_vocab_eos(self._vocab))

    def piece(self, token: Token) -> bytes:
        """The bytes of a token; empty for control tokens, except those that mark reasoning."""
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
        return b"".join(map(self.piece, tokens))

    def check_unchanged(self) -> None:
        """Raises an error if a file was written to; a deleted or replaced file only adds to ``new_remarks``."""
        for path, facts in zip(self.header.parts, self._facts, strict=True):
            now = _facts(path)
            if now == facts:
                continue
            if now[0] == facts[0]:
                raise ModelChangedError(
                    f"{shown_path(path)} was written to while it was in use.", "It is loaded again."
                )
            if not self._remarked:  # a file that was deleted or replaced stays mapped
                self._remarked = True
                self._remarks = _remark(path, replaced=now[0] > 0)

    def new_remarks(self) -> dict[str, str]:
        """The findings of ``check_unchanged`` since the last call, each with a hint; each is returned once."""
        remarks, self._remarks = self._remarks, {}
        return remarks

    def close(self) -> None:
        """Frees the weights; close their contexts first."""
        if self.pointer:
            C.llama_model_free(self.pointer)
            self.pointer = None


def _instead(reason: str) -> str:
    if "unknown" in reason:
        return "A newer llama.cpp may know it: update slipstream, or get another conversion of the model."
    if "key not found" in reason:
        return "The file lacks this; get a conversion that was made for llama.cpp."
    return "Fetch the file again, or get another conversion of the model."


def _remark(path: Path, replaced: bool) -> dict[str, str]:
    happened, then = "deleted or moved", ". Put the file back or choose another model before the next start."
    if replaced:
        happened, then = "replaced", "; the next start loads the new file."
    words = f"{shown_path(path)} was {happened} while it was in use."
    return {words: f"Replies go on with the model as it was loaded{then}"}


def _facts(path: Path) -> tuple[int, int, int]:
    try:
        facts = path.stat()
    except OSError:
        return 0, 0, 0
    return facts.st_ino, facts.st_size, facts.st_mtime_ns


def _token_bytes(header: Header) -> int:
    """Computes ``LlamaModel.token_bytes``: 0 for tokenizers that change text, or drop text that has no token."""

    def written(name: str) -> int:
        return len(_WRITTEN_SPACES.sub("", name).encode("utf-8", "replace"))

    if header.tokenizer_model == "llama":
        return max(map(written, header.tokens), default=0)
    if header.tokenizer_model != "gpt2" or not frozenset(header.tokens) >= _BYTES:
        return 0
    own = (name for name, kind in zip(header.tokens, header.token_types, strict=False) if kind != _NORMAL)
    return max(*(len(_BYTE_SPACES.sub("", name)) for name in header.tokens), *map(written, own))
