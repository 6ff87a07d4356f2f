"""Cuts a self-drafter out of a model: its first layers, a trained adapter, and its own vocabulary matrix, in one file.

Kangaroo's draft network (Liu et al., arXiv 2404.18911) is the target's first layers, an adapter of attention without a
feed-forward part, a norm, and the target's vocabulary matrix. The cut makes the adapter one more layer, so that
llama.cpp runs it like any model:

- ``llama`` needs the same feed-forward width in all layers, so the cut is a ``deci``: the same graph, but each layer
  has its own width. The adapter's layer gets 32 units of zeros; without any, deci would also leave out the residual
  connection of the attention (src/models/deci.cpp).
- ``qwen3`` has no such twin. The adapter's layer gets a feed-forward part of the usual width, zeros stored as Q4_0:
  3 % (Qwen3 0.6B, Q8_0) to 11 % (8B, Q4_K_M) of the bytes that a drafted token reads.

The norm before this feed-forward part is zero, so the part adds exactly zero.
"""

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import time
from types import MappingProxyType
from typing import Any, Final

import gguf
import numpy as np
from numpy.typing import NDArray

from slipstream.models.errors import ModelFileError, SlipstreamError, reason_of
from slipstream.models.files import make_folder
from slipstream.models.gguf.lora import ALPHA, ENDINGS, Adapter
from slipstream.models.gguf.parse import STRING, U32, TensorInfo
from slipstream.models.gguf.reader import REAL_TOKENS, Header, read_header
from slipstream.models.gguf.tensors import Metadata, NewTensor, read_stored, samples, unreadable, write_gguf
from slipstream.models.heads.file import identity, read_heads, read_info
from slipstream.models.outside import quoted, shown_path

TWINS: Final = MappingProxyType({"llama": "deci", "qwen3": "qwen3"})
"""Architectures that can be cut, to the architecture of the cut."""
_UNITS: Final = 32
_LEFT_BEHIND: Final = 3600  # seconds after which an unfinished file is treated as abandoned
_ATTENTION: Final = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output")
_FEED_FORWARD: Final = ("ffn_gate", "ffn_up", "ffn_down")
_HEAD_NORMS: Final = ("attn_q_norm", "attn_k_norm")
_OUTSIDE: Final = frozenset(
    f"{name}.weight"
    for name in ("token_embd", "output", "output_norm", "rope_freqs", "rope_factors_long", "rope_factors_short")
)
_BLOCK: Final = re.compile(r"blk\.(\d{1,3})\.(\w+)\.(?:weight|bias)")
_NOT_COPIED: Final = ("general.architecture", "general.alignment", "general.name", "split.", "slipstream.")
_F32: Final = gguf.GGMLQuantizationType.F32
_Q4_0: Final = gguf.GGMLQuantizationType.Q4_0


@dataclass(frozen=True, slots=True)
class _Piece(NewTensor):
    """A tensor whose stored bytes are copied: ``values`` returns the bytes, ``source`` is where they come from."""

    source: tuple[Header, TensorInfo] | None = None

    def stored(self) -> NDArray[Any]:
        return self.values()

    def samples(self) -> Iterator[bytes]:
        """Yields some kilobytes of it; nothing for a tensor of zeros."""
        if self.source:
            yield from samples(replace(self.source[0], tensors=(self.source[1],)))


@dataclass(frozen=True, slots=True)
class _Plan:
    target: str
    adapter: str
    architecture: str
    metadata: Metadata
    pieces: tuple[_Piece, ...]


def why_not_cut(header: Header) -> str:
    """Why a model cannot be cut, to follow "does not work with this model:"; empty if it can."""
    own = header.architecture
    if own not in TWINS:
        return (
            f"only models of the architectures {' and '.join(TWINS)} can be cut, and this one is {quoted(own)}; "
            "medusa heads serve every architecture"
        )
    if header.number("expert_count"):
        return "a model of experts cannot be cut; medusa heads serve it"
    if any(value for key, value in header.metadata.items() if key.startswith(f"{own}.") and isinstance(value, list)):
        return "its layers differ from one another, so it cannot be cut; medusa heads serve it"
    parts = {*_ATTENTION, "ffn_norm", *_FEED_FORWARD, *(_HEAD_NORMS if own == "qwen3" else ())}
    for tensor in header.tensors:
        block = _BLOCK.fullmatch(tensor.name)
        if not (block and block[2] in parts) and tensor.name not in _OUTSIDE:
            return f"it has the tensor {quoted(tensor.name, 64)}, which a cut cannot have; medusa heads serve it"
    return ""


def cut(target: Path, adapter: Path, out: Path) -> None:
    """Writes the first layers of a model, its trained adapter and its vocabulary matrix as one model.

    All weights are copied as they are stored, so the first layers compute the same as in the target. The cut of a split
    model is one file.
    """
    header = _sound_target(target)
    read_heads(adapter, header)  # checks every value
    plan = _plan(header, adapter)
    write_gguf(out, plan.architecture, plan.metadata, plan.pieces)


def kept_cut(target: Path, adapter: Path, folder: Path) -> Path:
    """Finds the cut of a model in a folder of derived files; writes it if it is missing or damaged.

    Its name contains the model's identity, the fingerprint of its file (copies in other quantizations have the same
    identity) and the adapter's hash. Deletes cuts of the same file with older adapters, and unfinished files of killed
    processes.
    """
    header = _sound_target(target)
    plan = _plan(header, adapter)
    stem = f"{plan.target[:16]}-{header.fingerprint[:8]}-kangaroo-"
    path = folder / f"{stem}{plan.adapter[:16]}.gguf"
    if path.exists() and _is_whole(path, plan):
        return path
    own = folder / f"{path.stem}.{os.getpid()}"  # another process may be writing the same cut
    try:
        make_folder(folder)
        cut(target, adapter, own)
        os.replace(own, path)
    except OSError as error:
        title = f"cannot write {shown_path(path)}: {reason_of(error)}."
        raise SlipstreamError(title, "Check the folder and its permissions.") from error
    finally:
        with suppress(OSError):
            own.unlink(missing_ok=True)
    for other in folder.glob(f"{stem}*"):
        with suppress(OSError):  # in use, on Windows
            if other != path and (other.suffix == ".gguf" or other.stat().st_mtime < time() - _LEFT_BEHIND):
                other.unlink()
    return path


def cut_adapter(adapter: Adapter, cut: Header, out: Path) -> Adapter | None:
    """Writes the part of a LoRA adapter that applies to a cut of its model; the cut's last layer is not the model's."""
    source, layers = adapter.header, (cut.n_layer or 1) - 1
    shared = [
        tensor
        for tensor in source.tensors
        if tensor.name.endswith(ENDINGS) and not ((block := _BLOCK.match(tensor.name)) and int(block[1]) >= layers)
    ]
    if not shared:
        return None
    kept = ("general.type", "adapter.type", ALPHA)
    metadata = {key: (source.types[key], source.metadata[key]) for key in kept if key in source.metadata}
    write_gguf(out, cut.architecture, metadata, [_copy(tensor.name, source, tensor) for tensor in shared])
    return replace(adapter, header=read_header(out))


def _sound_target(path: Path) -> Header:
    header = read_header(path)
    reason = why_not_cut(header)
    if reason:
        raise SlipstreamError(f"kangaroo cannot serve {quoted(header.title)}: {reason}.", "Choose another drafter.")
    return header


def _plan(header: Header, adapter: Path) -> _Plan:
    heads, layers = read_header(adapter), read_info(adapter).settings.get("exit_layer")
    if not isinstance(layers, int):
        raise ModelFileError(f"{shown_path(adapter)} is no Kangaroo adapter.", "Train or import one for this model.")
    theirs, trained_as = identity(header), _hash(adapter)
    own, twin = header.architecture, TWINS[header.architecture]
    width, usual = header.n_embd or 0, header.number("feed_forward_length") or 0
    units = _UNITS if twin == "deci" else usual
    metadata = {
        key.replace(f"{own}.", f"{twin}.", 1) if key.startswith(f"{own}.") else key: (header.types[key], value)
        for key, value in header.metadata.items()
        if (not key.startswith(_NOT_COPIED) or key == REAL_TOKENS) and value != []
    }
    metadata |= {
        "general.name": (STRING, f"{header.title}, first {layers} layers"),
        f"{twin}.block_count": (U32, layers + 1),
        f"{twin}.feed_forward_length": (U32, usual) if units == usual else (-1 - U32, [usual] * layers + [units]),
        "slipstream.cut.target": (STRING, theirs),
        "slipstream.cut.adapter": (STRING, trained_as),
    }
    pieces = [
        _copy(tensor.name, header, tensor)
        for tensor in header.tensors
        if tensor.name != "output_norm.weight"
        and not ((block := _BLOCK.fullmatch(tensor.name)) and int(block[1]) >= layers)
    ]
    for name in (*_ATTENTION, *(_HEAD_NORMS if own == "qwen3" else ()), "output_norm"):
        if f"{name}.weight" not in heads.by_name:
            raise ModelFileError(
                f"{shown_path(adapter)} has no {quoted(name)}, which a {own} model needs.", "Train it again."
            )
        where = "output_norm.weight" if name == "output_norm" else f"blk.{layers}.{name}.weight"
        pieces.append(_copy(where, heads, heads.by_name[f"{name}.weight"]))
    pieces.append(_zeros(f"blk.{layers}.ffn_norm.weight", (width,)))
    for name in _FEED_FORWARD:
        shape = (width, units) if name == "ffn_down" else (units, width)
        pieces.append(_zeros(f"blk.{layers}.{name}.weight", shape))
    return _Plan(theirs, trained_as, twin, metadata, tuple(pieces))


def _copy(name: str, header: Header, tensor: TensorInfo) -> _Piece:
    try:
        kind = gguf.GGMLQuantizationType(tensor.type)
    except ValueError:  # an unknown type
        raise ModelFileError(
            f"{shown_path(header.path)}: tensor {quoted(tensor.name)} has the type {tensor.type_name}, which cannot be "
            "copied here.",
            "Choose another quantization of the model, for example Q8_0 or Q4_K_M.",
        ) from None
    return _Piece(name, tensor.shape[::-1], kind, lambda: read_stored(header, tensor), (header, tensor))


def _zeros(name: str, shape: tuple[int, ...]) -> _Piece:
    kind = _Q4_0 if len(shape) > 1 and shape[-1] % 32 == 0 else _F32  # a zero of every type is bytes of zeros
    size, nbytes = gguf.GGML_QUANT_SIZES[kind]
    return _Piece(name, shape, kind, lambda: np.zeros(int(np.prod(shape)) // size * nbytes, np.uint8))


def _is_whole(path: Path, plan: _Plan) -> bool:
    try:
        made = read_header(path)
        wanted = {"general.architecture": plan.architecture} | {key: value for key, (_, value) in plan.metadata.items()}
        if made.metadata != wanted or len(made.tensors) != len(plan.pieces):
            return False
        for tensor, piece in zip(made.tensors, plan.pieces, strict=True):
            if (tensor.name, tensor.shape[::-1], tensor.type) != (piece.name, piece.shape, int(piece.kind)):
                return False
            found = b"".join(samples(replace(made, tensors=(tensor,))))
            if found != (b"".join(piece.samples()) if piece.source else bytes(len(found))):
                return False
    except ModelFileError:
        return False
    return True


def _hash(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise unreadable(path, error) from error
