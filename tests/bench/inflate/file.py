"""The plan of an inflated model's file: its content, its size, and whether the file already exists."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import gguf
import numpy as np
from tests.bench.inflate.shapes import Growth, cannot
from tests.bench.inflate.tensor import block

from slipstream.models.errors import SlipstreamError
from slipstream.models.gguf.parse import STRING, U32, TensorInfo, Value
from slipstream.models.gguf.reader import REAL_TOKENS, Header, read_header
from slipstream.models.gguf.tensors import Metadata, NewTensor, write_gguf
from slipstream.models.heads.file import DERIVED_FROM, identity

MADE_AS: Final = "slipstream.inflate.made_as"
"""Metadata key of inflated files; the value identifies the small file, the shape, and the method (``_WAY``)."""

_WAY: Final = 1  # version of the method; with a new number, existing files are made again
_NOT_COPIED: Final = ("general.architecture", "general.alignment", "general.size_label", "split.", "slipstream.derived")
_UNUSED: Final = 5  # llama_token_type


@dataclass(frozen=True, slots=True)
class Inflated:
    """A planned file."""

    architecture: str
    metadata: Metadata  # the rest of its header, with ``MADE_AS`` and ``general.name``
    tensors: Sequence[NewTensor]

    @property
    def name(self) -> str:
        return str(self.metadata["general.name"][1])

    @property
    def nbytes(self) -> int:
        return sum(map(_nbytes, self.tensors))

    def header(self, path: Path) -> Header:
        """The header that the file will have, for estimates before it is written."""
        infos = [
            TensorInfo(tensor.name, tensor.shape[::-1], int(tensor.kind), 0, _nbytes(tensor)) for tensor in self.tensors
        ]
        values = {key: value for key, (_, value) in self.metadata.items()}
        types = {key: kind for key, (kind, _) in self.metadata.items()}
        return Header(path, self.architecture, self.name, values, types, tuple(infos), (0,), "", (path,))

    def stands_at(self, path: Path) -> bool:
        """Whether this file already exists; an existing file is complete, since files are written atomically."""
        try:
            return read_header(path).metadata.get(MADE_AS) == self.metadata[MADE_AS][1]
        except SlipstreamError:
            return False

    def write(self, path: Path) -> None:
        """Writes it, several tensors at once and of each a few megabytes: one thread fills 1 GB of memory a second.

        Raises:
            SlipstreamError: If the disk is full or the folder cannot be written to; nothing is left behind.
        """
        write_gguf(path, self.architecture, self.metadata, self.tensors, threads=os.cpu_count() or 1)


def made_as(source: Header, growth: Growth, *also: str) -> str:
    """Identifies the result of inflating a file to this shape: SHA-256 in hex."""
    text = repr((_WAY, identity(source), source.fingerprint, growth.large, *also))
    return hashlib.sha256(text.encode()).hexdigest()


def target_identity(target: Header, growth: Growth) -> str:
    """The identity of an inflated target in every quantization; its inflated heads refer to it."""
    return hashlib.sha256(repr((_WAY, identity(target), growth.large)).encode()).hexdigest()


def widened(header: Header, growth: Growth, name: str, made: str, file_type: int) -> dict[str, tuple[int, Value]]:
    """The metadata of an inflated model or EAGLE-3 head.

    Args:
        growth: How it is embedded in the larger shape.

    Raises:
        SlipstreamError: If its norms have no epsilon.
    """
    own, large = header.architecture, growth.large
    found = {k: (header.types[k], v) for k, v in header.metadata.items() if not k.startswith(_NOT_COPIED)}
    epsilon = f"{own}.attention.layer_norm_rms_epsilon"
    small_epsilon = header.metadata.get(epsilon)
    if not isinstance(small_epsilon, float):
        raise cannot(header, "its file does not give the epsilon of its norms")
    found |= {
        f"{own}.{key}": (U32, value)
        for key, value in (
            ("embedding_length", large.n_embd),
            ("block_count", large.n_layer),
            ("feed_forward_length", large.n_ff),
            ("attention.head_count", large.n_head),
            ("attention.head_count_kv", large.n_head_kv),
            ("attention.key_length", large.head),
            ("attention.value_length", large.head),
            ("vocab_size", large.n_vocab),
        )
    }
    found[epsilon] = (header.types[epsilon], small_epsilon * growth.small.n_embd / large.n_embd)
    found |= _vocabulary(header, large.n_vocab)
    found["general.name"] = (STRING, name)
    found["general.file_type"] = (U32, file_type)
    found["general.quantization_version"] = (U32, gguf.GGML_QUANT_VERSION)
    found[MADE_AS] = (STRING, made)
    return found


def derived_from(identity_of_it: str) -> dict[str, tuple[int, Value]]:
    """The metadata that gives a file its identity."""
    return {DERIVED_FROM: (STRING, identity_of_it)}


def _nbytes(tensor: NewTensor) -> int:
    weights, nbytes = block(tensor.kind)
    return int(np.prod(tensor.shape)) // weights * nbytes


def _vocabulary(header: Header, rows: int) -> dict[str, tuple[int, Value]]:
    """The tokenizer's lists with names for the added rows; no text is tokenized to them."""
    found: dict[str, tuple[int, Value]] = {}
    if rows > header.n_vocab:
        found[REAL_TOKENS] = (U32, header.n_vocab)
    scores = header.metadata.get("tokenizer.ggml.scores")
    lowest = min(map(float, scores), default=0.0) if isinstance(scores, list) else 0.0
    lists: dict[str, list[str] | list[float] | list[int]] = {
        "tokens": [f"<|inflated_{row}|>" for row in range(header.n_vocab, rows)],
        "scores": [lowest - 1] * (rows - header.n_vocab),
        "token_type": [_UNUSED] * (rows - header.n_vocab),
    }
    for name, added in lists.items():
        key = f"tokenizer.ggml.{name}"
        own = header.metadata.get(key)
        if isinstance(own, list):
            found[key] = (header.types[key], [*own[: header.n_vocab], *added])
    return found
