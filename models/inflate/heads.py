"""Inflates trained heads with their target: they cost what heads of the large model's width cost, and guess the same.

They keep the types that they are stored in. They name the inflated target, whatever its quantization.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
from numpy.typing import NDArray

from slipstream.models.companions import HEAD_ARCHITECTURES
from slipstream.models.gguf import Header, read_header
from slipstream.models.gguf_tensors import read_tensor
from slipstream.models.gguf_types import I64, STRING
from slipstream.models.gguf_write import Metadata, NewTensor
from slipstream.models.heads import HeadsInfo, check_target, read_info
from slipstream.models.heads_check import TOKEN_IDS
from slipstream.models.inflate.eagle import inflated_eagle
from slipstream.models.inflate.file import MADE_AS, Inflated, made_as, target_identity
from slipstream.models.inflate.layout import Layout, matrix, same
from slipstream.models.inflate.mixes import whole
from slipstream.models.inflate.model import MATRICES, large_tensor, norm_tensor, tensors_of
from slipstream.models.inflate.shapes import NONE, Growth
from slipstream.models.inflate.tensor import Filler
from slipstream.models.types import Floats

_PUSH: Final = 1024.0
"""A power of 2, which every type holds; minus its square is the logit of an added row."""
_KEY: Final = "slipstream.heads."
_NOT_COPIED: Final = ("general.architecture", "general.alignment")


def inflated_heads(path: Path, target: Header, placed: Growth) -> Inflated:
    """Plans heads for an inflated target.

    Args:
        path: Heads that were trained for the small target.
        target: Header of the small target.
        placed: How it stands in the large one.

    Raises:
        ModelFileError: If the file is damaged.
        SlipstreamError: If they are another model's heads, or of a kind that cannot be inflated.
    """
    header = read_header(path)
    if header.architecture in HEAD_ARCHITECTURES:
        return inflated_eagle(header, target, placed)
    info = read_info(path)
    check_target(info, target)
    make = {"medusa": _medusa, "kangaroo": _kangaroo, "space": _space}[info.method]
    name = f"{info.target_name} inflated to {placed.large.name}"
    metadata = {k: (header.types[k], v) for k, v in header.metadata.items() if k not in _NOT_COPIED}
    metadata |= {
        "general.name": (STRING, f"{name}: {info.method} heads"),
        f"{_KEY}target": (STRING, target_identity(target, placed)),
        f"{_KEY}target_name": (STRING, name),
        MADE_AS: (STRING, made_as(header, placed, target_identity(target, placed))),
    }
    return Inflated(header.architecture, *make(header, info, placed, metadata))


def _medusa(header: Header, info: HeadsInfo, placed: Growth, metadata: Metadata) -> tuple[Metadata, list[NewTensor]]:
    """Residual blocks, and as large a share of the vocabulary as before.

    Residual blocks leave added places zero, but for the last place after the last block, where its bias puts a number.
    There the added rows of a vocabulary matrix have a large negative weight: their probability is zero, and the others'
    are what they were.
    """
    small, large = placed.small.n_embd, placed.large.n_embd
    width, filler, by_name = same(small, large), Filler(), tensors_of(header)
    layers = sum(1 for name in by_name if name.startswith("head.0.") and name.endswith(".bias"))
    tensors: list[NewTensor] = []
    for name, tensor in by_name.items():
        read = _reader(header, name)
        if name == TOKEN_IDS:
            continue
        if name.endswith(".bias"):
            tensors.append(_bias(name, read, placed, last=name.endswith(f".{layers - 1}.bias")))
            continue
        kind = whole(gguf.GGMLQuantizationType(tensor.type), large)
        if not name.endswith("output.weight"):
            tensors.append(large_tensor(name, kind, read, Layout(width, width, below=True), filler))
            continue
        rows = tensor.shape[1]
        total = rows * placed.large.n_vocab // placed.small.n_vocab if large > small else rows
        columns = width.copy()
        if total > rows:
            columns[-1] = small
            read = _with_pushed(read)
        sources = same(rows, total)
        layout = Layout(np.where(sources == NONE, rows, sources), columns)
        tensors.append(large_tensor(name, kind, read, layout, filler))
        if TOKEN_IDS in by_name and not any(made.name == TOKEN_IDS for made in tensors):
            tensors.append(_token_ids(_reader(header, TOKEN_IDS), total, placed))
    return metadata, tensors


def _kangaroo(header: Header, info: HeadsInfo, placed: Growth, metadata: Metadata) -> tuple[Metadata, list[NewTensor]]:
    """An attention layer; it starts where the stream is what it was after the small model's layers."""
    filler, tensors = Filler(), list[NewTensor]()
    for name, tensor in tensors_of(header).items():
        stem = name.removesuffix(".weight")
        if stem in MATRICES:
            layout = matrix(stem, placed)
            kind = whole(gguf.GGMLQuantizationType(tensor.type), len(layout.columns))
            tensors.append(large_tensor(name, kind, _reader(header, name), layout, filler))
        else:
            tensors.append(norm_tensor(name, header, tensor, placed))
    exit_layer = info.settings["exit_layer"]
    assert isinstance(exit_layer, int)  # checked when it was read
    key = f"{_KEY}setting.exit_layer"
    return {**metadata, key: (I64, placed.layer(exit_layer))}, tensors


def _space(header: Header, _info: HeadsInfo, placed: Growth, metadata: Metadata) -> tuple[Metadata, list[NewTensor]]:
    """Vectors of the stream."""
    masks = header.tensors[0]
    count, read = masks.shape[1], _reader(header, masks.name)
    beside = ((0, 0), (0, placed.large.n_embd - placed.small.n_embd))
    kind = gguf.GGMLQuantizationType.F32
    return metadata, [NewTensor(masks.name, (count, placed.large.n_embd), kind, lambda: np.pad(read(), beside))]


def _bias(name: str, read: Callable[[], Floats], placed: Growth, *, last: bool) -> NewTensor:
    """The bias of a residual block."""
    small, large = placed.small.n_embd, placed.large.n_embd

    def values() -> Floats:
        wide = np.zeros(large, np.float32)
        wide[:small] = read()
        if last and large > small:
            wide[-1] = _PUSH
        return wide

    return NewTensor(name, (large,), gguf.GGMLQuantizationType.F32, values)


def _with_pushed(read: Callable[[], Floats]) -> Callable[[], Floats]:
    """A vocabulary matrix with one more column, of zeros, and one more row, which is zero but for that column."""

    def values() -> Floats:
        wide = np.pad(read(), ((0, 1), (0, 1)))
        wide[-1, -1] = -_PUSH
        return wide

    return values


def _token_ids(read: Callable[[], NDArray[Any]], total: int, placed: Growth) -> NewTensor:
    """The tokens of the rows; those of added rows are among the added ones of the target."""
    kind = gguf.GGMLQuantizationType.I32

    def values() -> NDArray[Any]:
        ids = read()
        first = placed.small.n_vocab
        return np.concatenate([ids, np.arange(first, first + total - len(ids), dtype=np.int32)])

    return NewTensor(TOKEN_IDS, (total,), kind, values)


def _reader(header: Header, name: str) -> Callable[[], NDArray[Any]]:
    return lambda: read_tensor(header, tensors_of(header)[name])
