"""A model's projector (its mmproj file), run by llama.cpp's mtmd library: it encodes images into rows for the model."""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from llama_cpp import llama_cpp as C
from llama_cpp import mtmd_cpp as M

from slipstream.models.errors import EvaluationError, ModelFileError, SlipstreamError, UsageError
from slipstream.models.gguf.reader import Header, read_header
from slipstream.models.library.places import ARCHITECTURE
from slipstream.models.llama.image_layout import image_tokens
from slipstream.models.llama.library import pointer_to, process_log, rows_at
from slipstream.models.llama.model import LlamaModel
from slipstream.models.outside import shown_path
from slipstream.models.types import Floats, Token
from slipstream.models.vision.image_file import ImageFacts, facts_of, pixels_of, read_image

_SECTIONS: Final = "rope.dimension_sections"
_MROPE_ONLY: Final = frozenset({"glm4", "glm4moe"})  # without RoPE sections, an image crashes llama.cpp
_IMAGE: Final = 1  # MTMD_INPUT_CHUNK_TYPE_IMAGE
_TEST_SIDE: Final = 64  # width and height of the test image in pixels
_END_BYTES: Final = 1 << 20  # bytes at the end of a file that its fingerprint covers
_CACHE_BYTES: Final = 256 << 20  # maximum size of the cached rows; encoding is slow


@dataclass(frozen=True, slots=True)
class _Chunk:
    projector: Projector
    pointer: Any  # its ``mtmd_input_chunk``, which has no pixels
    path: Path
    sha256: str
    number: int  # its index among the chunks of its image
    tokens: list[Token]  # the negative numbers that stand for its rows
    positions: int  # number of positions it takes; with M-RoPE, fewer than its rows

    def decode(self, context: Any, position: int) -> int:
        return self.projector.decode(self, context, position)


class Projector:
    """Encodes images for one model."""

    def __init__(self, path: Path, model: LlamaModel, most_rows: int, gpu: bool, threads: int) -> None:
        """Loads the file for a model, which reads ``most_rows`` rows in a pass; close the model after this."""
        header = read_header(path)
        if header.architecture != ARCHITECTURE or not header.metadata.get("clip.has_vision_encoder"):
            raise ModelFileError(
                f"{shown_path(path)} is not an mmproj file for images.", "Name the mmproj file of this model."
            )
        if model.header.architecture in _MROPE_ONLY and not _has_sections(model.header):
            raise ModelFileError(
                f"the file of {model.header.title} was made for text alone: it lacks {_SECTIONS}.",
                "Get a newer conversion of this model.",
            )
        self.fingerprint = _fingerprint(header)
        self._path, self._most_rows = path, most_rows
        self._width: int = C.llama_model_n_embd_inp(model.pointer)
        self._chunks: dict[Token, _Chunk] = {}  # by their first token
        self._images: dict[str, list[Token]] = {}  # by hash
        self._lists: list[Any] = []  # mtmd's lists, which own the chunks
        self._rows: OrderedDict[tuple[str, int], Floats] = OrderedDict()  # by hash and number of the chunk
        params = M.mtmd_context_params_default()
        params.use_gpu, params.n_threads, params.print_timings, params.warmup = gpu, threads, False, False
        log = process_log()
        M.mtmd_helper_log_set(log.callback, None)
        log.lines.clear()
        self._pointer = M.mtmd_init_from_file(os.fsencode(path), model.pointer, params)
        if not self._pointer or not M.mtmd_support_vision(self._pointer):
            reason = " ".join(log.reason().split()) or "it gave no reason"
            self.close()
            raise ModelFileError(
                f"{shown_path(path)}: llama.cpp cannot use this mmproj file with {model.header.title}: {reason}.",
                "Get the mmproj file that belongs to this model.",
            )
        self._non_causal = bool(M.mtmd_decode_use_non_causal(self._pointer, None))

    def tokens(self, path: Path, sha256: str) -> list[Token]:
        """The tokens of an image in a prompt, with the text that the projector puts around it; decodes no pixels."""
        if sha256 not in self._images:
            raw = _read(path, sha256)
            self._images[sha256] = self._lay_out(path, facts_of(raw, path.name))
        return self._images[sha256]

    def chunk_at(self, tokens: Sequence[Token], start: int) -> _Chunk:
        chunk = self._chunks.get(tokens[start])
        if chunk is None or chunk.tokens != list(tokens[start : start + len(chunk.tokens)]):
            raise SlipstreamError("an image of this chat is not there any more.", "Send the message and image again.")
        return chunk

    def decode(self, chunk: _Chunk, context: Any, position: int) -> int:
        rows, after = self._rows_of(chunk), C.llama_pos(0)
        code: int = M.mtmd_helper_decode_image_chunk(
            self._pointer,
            context,
            chunk.pointer,
            pointer_to(rows),
            position,
            0,
            self._most_rows,
            ctypes.byref(after),
            M.mtmd_helper_post_decode_callback(),
            None,
        )
        return code

    def try_out(self) -> None:
        """Encodes a grey image as a test; a bad file may crash the process."""
        pixels = (ctypes.c_uint8 * (3 * _TEST_SIDE * _TEST_SIDE))(*[127] * (3 * _TEST_SIDE * _TEST_SIDE))
        try:
            chunks = self._cut(_TEST_SIDE, _TEST_SIDE, pixels)
            for pointer in _members(chunks):
                if M.mtmd_input_chunk_get_type(pointer) == _IMAGE:
                    self._encode(pointer)
        except EvaluationError as error:
            hint = "Get the mmproj file that belongs to this model."
            raise ModelFileError(f"{shown_path(self._path)} cannot encode images: {error.title}", hint) from error
        M.mtmd_input_chunks_free(chunks)

    def close(self) -> None:
        for chunks in self._lists:
            M.mtmd_input_chunks_free(chunks)
        self._lists.clear()
        if self._pointer:
            M.mtmd_free(self._pointer)
            self._pointer = None

    def _lay_out(self, path: Path, facts: ImageFacts) -> list[Token]:
        chunks = self._cut(facts.width, facts.height, None)
        found: list[Token] = []
        made: list[_Chunk] = []
        for number, pointer in enumerate(_members(chunks)):
            count: int = M.mtmd_input_chunk_get_n_tokens(pointer)
            if M.mtmd_input_chunk_get_type(pointer) != _IMAGE:
                found += _text_tokens(pointer)
                continue
            if self._non_causal and count > self._most_rows:
                M.mtmd_input_chunks_free(chunks)
                raise UsageError(
                    f"the image {shown_path(path.name)} takes {count:,} tokens, but this model reads an image in "
                    f"one pass of at most {self._most_rows:,}.",
                    "Make the image smaller.",
                )
            own = image_tokens(f"{facts.sha256} {self.fingerprint} {number}", count)
            positions: int = M.mtmd_input_chunk_get_n_pos(pointer)
            made.append(_Chunk(self, pointer, path, facts.sha256, number=number, tokens=own, positions=positions))
            found += own
        self._lists.append(chunks)
        self._chunks.update((chunk.tokens[0], chunk) for chunk in made)
        return found

    def _rows_of(self, chunk: _Chunk) -> Floats:
        """The rows of a chunk [tokens, width]; decodes and encodes its image if they are not cached."""
        key = chunk.sha256, chunk.number
        if key not in self._rows:
            pixels = pixels_of(_read(chunk.path, chunk.sha256), chunk.path.name)
            height, width, _ = pixels.shape
            chunks = self._cut(width, height, pixels.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8)))
            try:
                for number, pointer in enumerate(_members(chunks)):
                    if M.mtmd_input_chunk_get_type(pointer) == _IMAGE:
                        self._keep((chunk.sha256, number), self._encode(pointer))
            finally:
                M.mtmd_input_chunks_free(chunks)
        self._rows.move_to_end(key)
        rows = self._rows[key]
        if len(rows) != len(chunk.tokens):
            raise EvaluationError(
                f"the image {shown_path(chunk.path.name)} encodes to {len(rows):,} rows, not {len(chunk.tokens):,}."
            )
        return rows

    def _encode(self, pointer: Any) -> Floats:
        code = M.mtmd_encode_chunk(self._pointer, pointer)
        if code:
            raise EvaluationError(f"the image could not be encoded: mtmd_encode_chunk returned {code}.")
        count = M.mtmd_input_chunk_get_n_tokens(pointer)
        return rows_at(M.mtmd_get_output_embd(self._pointer), count, self._width).copy()

    def _keep(self, key: tuple[str, int], rows: Floats) -> None:
        self._rows[key] = rows
        self._rows.move_to_end(key)
        size = sum(kept.nbytes for kept in self._rows.values())
        for other in list(self._rows):
            if size <= _CACHE_BYTES:
                break
            if other[0] != key[0]:
                size -= self._rows.pop(other).nbytes

    def _cut(self, width: int, height: int, pixels: Any) -> Any:
        """Splits an image into chunks, some of them text; without pixels they cannot be encoded, only counted."""
        bitmap = M.mtmd_bitmap_init(width, height, pixels)
        part = M.mtmd_input_part(None, bitmap)
        chunks = M.mtmd_input_chunks_init()
        try:
            parts = (ctypes.POINTER(M.mtmd_input_part) * 1)(ctypes.pointer(part))
            code = M.mtmd_tokenize_from_parts(self._pointer, chunks, parts, 1, False)
        finally:
            M.mtmd_bitmap_free(bitmap)
        if code:
            M.mtmd_input_chunks_free(chunks)
            raise EvaluationError(
                f"an image of {width:,} × {height:,} pixels cannot be prepared: mtmd returned {code}.",
                "Save it in another size.",
            )
        return chunks


def _read(path: Path, sha256: str) -> bytes:
    """Reads an image and checks that it has not changed since its message was written."""
    raw = read_image(path)
    if hashlib.sha256(raw).hexdigest() != sha256:
        raise UsageError(f"the image {shown_path(path.name)} has changed.", "Send the message and image again.")
    return raw


def _has_sections(header: Header) -> bool:
    """Whether llama.cpp uses M-RoPE for the model: the first two sections are set."""
    sections = header.metadata.get(f"{header.architecture}.{_SECTIONS}")
    return isinstance(sections, Sequence) and len(sections) > 1 and all(sections[:2])


def _fingerprint(header: Header) -> str:
    """Hashes the header and the end of the weights: projectors of one kind have the same header."""
    with header.path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _END_BYTES))
        return hashlib.sha256(header.fingerprint.encode() + file.read(_END_BYTES)).hexdigest()


def _members(chunks: Any) -> list[Any]:
    return [M.mtmd_input_chunks_get(chunks, at) for at in range(M.mtmd_input_chunks_size(chunks))]


def _text_tokens(pointer: Any) -> list[Token]:
    count = ctypes.c_size_t(0)
    tokens: Any = M.mtmd_input_chunk_get_tokens_text(pointer, ctypes.byref(count))
    return [int(tokens[at]) for at in range(count.value)]
