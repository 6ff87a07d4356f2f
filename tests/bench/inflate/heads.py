"""Inflates trained heads with their target: they cost as much as a larger model's heads, and draft the same tokens.

Inflated heads keep their tensor types. They work with the inflated target in every quantization.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
from numpy.typing import NDArray
from tests.bench.inflate.file import MADE_AS, Inflated, made_as, target_identity, widened
from tests.bench.inflate.model import MATRICES, large_tensor, norm_tensor, tensors_of
from tests.bench.inflate.shapes import NONE, Growth, cannot, growth, measures, whole
from tests.bench.inflate.tensor import Filler, Layout, beside, matrix, same, vocabulary

from slipstream.models.errors import SlipstreamError
from slipstream.models.gguf.parse import I32, I64, STRING, U32
from slipstream.models.gguf.reader import Header, read_header
from slipstream.models.gguf.tensors import Metadata, NewTensor, read_tensor
from slipstream.models.gguf.vocabulary import spare_token
from slipstream.models.heads.block_head import ARCHITECTURE
from slipstream.models.heads.check import TOKEN_IDS, target_layers
from slipstream.models.heads.file import HeadsInfo, check_target, identity, read_info
from slipstream.models.heads.matching_heads import EAGLE, TARGET_KEY
from slipstream.models.outside import quoted
from slipstream.models.types import Floats

_UNCHANGED: Final = ("d2t", "rope_freqs", "attn_q_norm", "attn_k_norm")


def inflated_layers(header: Header, target: Header, grown: Growth) -> Inflated:
    """Plans an EAGLE-3 or DFlash head that reads the small model's values from the inflated target's residual stream.

    It keeps its number of layers.

    Args:
        grown: How the target is embedded in the larger shape.

    Raises:
        SlipstreamError: If the head belongs to another model, or has a tensor that cannot be inflated.
    """
    if header.metadata.get(TARGET_KEY) != identity(target):
        raise SlipstreamError(
            f"{quoted(header.title)} was trained for another model than {quoted(target.title)}.", "Train one for it."
        )
    small = measures(header, tied=False)
    own = growth(small, replace(grown.large, n_layer=small.n_layer))
    filler, by_name, made = Filler(), tensors_of(header), target_identity(target, grown)

    tensors: list[NewTensor] = []
    for name, tensor in by_name.items():
        part = _part(name)
        kind = gguf.GGMLQuantizationType(tensor.type)
        if part in _UNCHANGED:
            tensors.append(NewTensor(name, tensor.shape[::-1], kind, _reader(header, name)))
        elif "norm" in part:
            tensors.append(norm_tensor(name, header, tensor, own))
        else:
            layout = _layout(header, part, grown, own, "d2t" in by_name)
            tensors.append(large_tensor(name, whole(kind, len(layout.columns)), _reader(header, name), layout, filler))
    name = f"{target.title} {header.architecture} widened to {grown.large.name}"
    stored_as = header.metadata.get("general.file_type")
    file_type = stored_as if isinstance(stored_as, int) else 0
    metadata = widened(header, own, name, made_as(header, grown, made), file_type)
    return Inflated(
        header.architecture,
        metadata
        | {
            TARGET_KEY: (STRING, made),
            f"{header.architecture}.target_layers": (-1 - I32, [grown.layer(at) for at in target_layers(header)]),
        }
        | ({"eagle3.target_hidden_size": (U32, grown.large.n_embd)} if header.architecture == EAGLE else {}),
        tensors,
    )


def _part(name: str) -> str:
    """A tensor's name without its layer and its ending."""
    stem = name.removesuffix(".weight")
    return stem.split(".", 2)[2] if stem.startswith("blk.") else stem


def _layout(header: Header, part: str, grown: Growth, own: Growth, chosen: bool) -> Layout:
    """The layout of a matrix of the head."""
    theirs, width = same(grown.small.n_embd, grown.large.n_embd), same(own.small.n_embd, own.large.n_embd)
    if part == "fc":  # reads several points of the target's stream, concatenated
        columns = theirs
        for _ in target_layers(header)[1:]:
            columns = beside(columns, theirs)
        return Layout(width, columns, below=True)
    if part == "token_embd" or (part == "output" and not chosen):
        return vocabulary(own, spare_token(header), embeds=part == "token_embd")
    if part == "output":
        rows = tensors_of(header)["output.weight"].shape[1]
        return Layout(np.arange(rows), width)
    if part not in MATRICES:
        raise cannot(header, f"it has the tensor {quoted(part, 64)}, which has no place in the large head")
    layout = matrix(part, own)
    if header.architecture == EAGLE and part in ("attn_q", "attn_k", "attn_v"):
        return replace(layout, columns=beside(width, width))  # they read the embedding and the feature, concatenated
    return layout


_PUSH: Final = 1024.0  # a power of 2, exact in every tensor type; an added vocabulary row gets the logit ``-_PUSH**2``
_KEY: Final = "slipstream.heads."
_NOT_COPIED: Final = ("general.architecture", "general.alignment")


def inflated_heads(path: Path, target: Header, grown: Growth) -> Inflated:
    """Plans heads for an inflated target.

    Args:
        path: Heads that were trained for the small target.
        grown: How that target is embedded in the larger shape.

    Raises:
        ModelFileError: If the file is damaged.
        SlipstreamError: If the heads belong to another model, or cannot be inflated.
    """
    header = read_header(path)
    if header.architecture in (EAGLE, ARCHITECTURE):
        return inflated_layers(header, target, grown)
    info = read_info(path)
    check_target(info, target)
    make = {"medusa": _medusa, "kangaroo": _kangaroo, "space": _space}[info.method]
    name = f"{target.title} widened to {grown.large.name}"
    metadata = {k: (header.types[k], v) for k, v in header.metadata.items() if k not in _NOT_COPIED}
    metadata |= {
        "general.name": (STRING, f"{name}: {info.method} heads"),
        f"{_KEY}target": (STRING, target_identity(target, grown)),
        f"{_KEY}target_name": (STRING, name),
        MADE_AS: (STRING, made_as(header, grown, target_identity(target, grown))),
    }
    return Inflated(header.architecture, *make(header, info, grown, metadata))


def _medusa(header: Header, info: HeadsInfo, grown: Growth, metadata: Metadata) -> tuple[Metadata, list[NewTensor]]:
    """Plans residual blocks, and a matrix for the same share of the vocabulary as before.

    The added dimensions stay zero. Where rows are added to the vocabulary matrix, the bias of the last block sets the
    last dimension to ``_PUSH``, and the added rows have the weight ``-_PUSH`` in it: their probability is zero, and the
    other probabilities do not change.
    """
    small, large = grown.small.n_embd, grown.large.n_embd
    width, filler, by_name = same(small, large), Filler(), tensors_of(header)
    layers = sum(1 for name in by_name if name.startswith("head.0.") and name.endswith(".bias"))
    rows = next(tensor.shape[1] for name, tensor in by_name.items() if name.endswith("output.weight"))
    total = rows * grown.large.n_vocab // grown.small.n_vocab if large > small else rows
    tensors: list[NewTensor] = []
    for name, tensor in by_name.items():
        read = _reader(header, name)
        if name == TOKEN_IDS:
            continue
        if name.endswith(".bias"):
            last = name.endswith(f".{layers - 1}.bias")
            tensors.append(_bias(name, read, grown, pushed=last and total > rows))
            continue
        kind = whole(gguf.GGMLQuantizationType(tensor.type), large)
        if not name.endswith("output.weight"):
            tensors.append(large_tensor(name, kind, read, Layout(width, width, below=True), filler))
            continue
        columns = width.copy()
        if total > rows:
            columns[-1] = small
            read = _with_pushed(read)
        sources = same(rows, total)
        layout = Layout(np.where(sources == NONE, rows, sources), columns)
        tensors.append(large_tensor(name, kind, read, layout, filler))
        if TOKEN_IDS in by_name and not any(made.name == TOKEN_IDS for made in tensors):
            tensors.append(_token_ids(_reader(header, TOKEN_IDS), total, grown))
    return metadata, tensors


def _kangaroo(header: Header, info: HeadsInfo, grown: Growth, metadata: Metadata) -> tuple[Metadata, list[NewTensor]]:
    """Plans an attention layer; its exit layer becomes the large model's layer with the same hidden state."""
    filler, tensors = Filler(), list[NewTensor]()
    for name, tensor in tensors_of(header).items():
        stem = name.removesuffix(".weight")
        if stem in MATRICES:
            layout = matrix(stem, grown)
            kind = whole(gguf.GGMLQuantizationType(tensor.type), len(layout.columns))
            tensors.append(large_tensor(name, kind, _reader(header, name), layout, filler))
        else:
            tensors.append(norm_tensor(name, header, tensor, grown))
    exit_layer = info.settings["exit_layer"]
    assert isinstance(exit_layer, int)  # checked when it was read
    key = f"{_KEY}setting.exit_layer"
    return {**metadata, key: (I64, grown.layer(exit_layer))}, tensors


def _space(header: Header, _info: HeadsInfo, grown: Growth, metadata: Metadata) -> tuple[Metadata, list[NewTensor]]:
    """Plans mask embeddings, padded with zeros."""
    masks = header.tensors[0]
    count, read = masks.shape[1], _reader(header, masks.name)
    beside = ((0, 0), (0, grown.large.n_embd - grown.small.n_embd))
    kind = gguf.GGMLQuantizationType.F32
    return metadata, [NewTensor(masks.name, (count, grown.large.n_embd), kind, lambda: np.pad(read(), beside))]


def _bias(name: str, read: Callable[[], Floats], grown: Growth, *, pushed: bool) -> NewTensor:
    small, large = grown.small.n_embd, grown.large.n_embd

    def values() -> Floats:
        wide = np.zeros(large, np.float32)
        wide[:small] = read()
        if pushed:
            wide[-1] = _PUSH
        return wide

    return NewTensor(name, (large,), gguf.GGMLQuantizationType.F32, values)


def _with_pushed(read: Callable[[], Floats]) -> Callable[[], Floats]:
    """Adds a column and a row of zeros to a vocabulary matrix, with ``-_PUSH`` where they cross."""

    def values() -> Floats:
        wide = np.pad(read(), ((0, 1), (0, 1)))
        wide[-1, -1] = -_PUSH
        return wide

    return values


def _token_ids(read: Callable[[], NDArray[Any]], total: int, grown: Growth) -> NewTensor:
    """Plans the token of each row; added rows get tokens that were added to the target."""
    kind = gguf.GGMLQuantizationType.I32

    def values() -> NDArray[Any]:
        ids = read()
        first = grown.small.n_vocab
        return np.concatenate([ids, np.arange(first, first + total - len(ids), dtype=np.int32)])

    return NewTensor(TOKEN_IDS, (total,), kind, values)


def _reader(header: Header, name: str) -> Callable[[], NDArray[Any]]:
    return lambda: read_tensor(header, tensors_of(header)[name])
