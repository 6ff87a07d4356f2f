"""Checks a LoRA adapter's file against the model that it changes, before C code reads it.

An adapter has two low-rank matrices for each weight that it changes: W becomes W + scale * alpha / rank * B A (Hu et
al., arXiv 2106.09685). llama.cpp checks most shapes itself. It does not check the types of metadata, the rank of an
embedding's pair, and the use of a tied embedding; an error in any of these ends the process.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from slipstream.models.errors import ModelFileError
from slipstream.models.gguf.parse import F32, STRING
from slipstream.models.gguf.reader import Header, read_header
from slipstream.models.gguf.tensors import read_stored, read_tensor
from slipstream.models.outside import quoted, shown_path

EMBEDDING: Final = "token_embd.weight"
_OUTPUT: Final = "output.weight"
ENDINGS: Final = (".lora_a", ".lora_b")
_STORED: Final = frozenset({"F32", "F16", "BF16", "Q8_0"})  # the types that llama.cpp's converter writes
_WHOLE: Final = "Q8_0"  # its products use integer arithmetic
_NAMED: Final = (("general.type", "adapter"), ("adapter.type", "lora"))
ALPHA: Final = "adapter.lora.alpha"
_INVOKED: Final = "adapter.alora.invocation_tokens"
_HINT: Final = "Choose an adapter that was made for this model, converted by llama.cpp's convert_lora_to_gguf.py."


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter that fits a model."""

    header: Header
    scale: float  # factor on its alpha / rank
    digest: str  # SHA-256 in hex of its metadata and weights

    @property
    def key(self) -> str:
        """Identifies the adapter and its scale; texts and KV caches are valid for one key only."""
        return f"{self.digest}:{self.scale!r}"

    @property
    def same_text(self) -> bool:
        """Whether a pass over several rows is bit-equal to passes over one row; floats are summed in another order.

        Measured on the bundled model: at most one pass in ten differs, by up to 0.2 in its logits.
        """
        return all(tensor.type_name == _WHOLE for tensor in self.header.tensors)

    @property
    def changes_embedding(self) -> bool:
        return f"{EMBEDDING}{ENDINGS[0]}" in self.header.by_name


def read_adapter(path: Path, scale: float, model: Header) -> Adapter:
    header = read_header(path)
    found = next((key for key, value in _NAMED if header.metadata.get(key) != value), None)
    if found or any(header.types[key] != STRING for key, _ in _NAMED):
        raise ModelFileError(f"{shown_path(path)} is no LoRA adapter: its {found} says otherwise.", _HINT)
    alpha = header.metadata.get(ALPHA, 0.0)
    if header.types.get(ALPHA, F32) != F32 or not isinstance(alpha, float) or not np.isfinite(alpha):
        raise ModelFileError(f"{shown_path(path)} is damaged: its {ALPHA} is not a number.", "Fetch it again.")
    if _INVOKED in header.metadata:
        raise ModelFileError(
            f"{shown_path(path)} is an activated LoRA, which works from certain words on; that is not offered.",
            "Choose a usual LoRA adapter.",
        )
    if header.architecture != model.architecture:
        raise ModelFileError(
            f"{shown_path(path)} is an adapter for {quoted(header.architecture)} models, and {quoted(model.name)} is "
            f"of the architecture {quoted(model.architecture)}.",
            _HINT,
        )
    _check_pairs(header, model)
    return Adapter(header, scale, _digest(header))


def _check_pairs(header: Header, model: Header) -> None:
    own = {tensor.name: tensor for tensor in header.tensors if not tensor.name.endswith("_norm.weight")}
    if not own:
        raise ModelFileError(f"{shown_path(header.path)} is damaged: it changes no weight.", "Fetch it again.")
    for name, tensor in own.items():
        weight, ending = name[: -len(ENDINGS[0])], name[-len(ENDINGS[0]) :]
        other = own.get(weight + ENDINGS[ending == ENDINGS[0]])
        if ending not in ENDINGS or other is None or any(part in weight for part in ENDINGS):
            raise ModelFileError(
                f"{shown_path(header.path)} is damaged: its tensor {quoted(name, 64)} is not one of a pair.",
                "Fetch it again.",
            )
        if tensor.type_name not in _STORED:
            raise ModelFileError(
                f"{shown_path(header.path)}: {quoted(name, 64)} is stored as {tensor.type_name}.",
                f"An adapter's weights may be {', '.join(sorted(_STORED))}.",
            )
        a, b = (tensor, other) if ending == ENDINGS[0] else (other, tensor)
        if weight not in model.by_name or not _fits(a.shape, b.shape, model.by_name[weight].shape, weight == EMBEDDING):
            raise ModelFileError(
                f"{shown_path(header.path)} does not fit {quoted(model.name)}: its {quoted(weight, 64)} changes a "
                "weight of another shape.",
                _HINT,
            )
        if weight == EMBEDDING and _OUTPUT not in model.by_name:  # llama.cpp would multiply by its pair there
            raise ModelFileError(
                f"{shown_path(header.path)} changes the embedding of {quoted(model.name)}, which is its output matrix "
                "too; llama.cpp cannot do that.",
                "Choose an adapter that leaves the embedding as it is.",
            )


def _fits(a: tuple[int, ...], b: tuple[int, ...], weight: tuple[int, ...], embedding: bool) -> bool:
    """Whether the shapes of a pair fit a weight, all in ggml's order; an embedding's A is stored transposed."""
    if not len(a) == len(b) == len(weight) or len(a) not in (2, 3) or a[2:] != weight[2:] or b[2:] != weight[2:]:
        return False
    if embedding:
        return a[0] == b[0] and (b[1], a[1]) == weight
    return a[1] == b[0] and (a[0], b[1]) == weight[:2]


def _digest(header: Header) -> str:
    """The digest of an adapter over all its weights, since adapters of the same kind have equal headers."""
    digest = hashlib.sha256(header.fingerprint.encode())
    for tensor in header.tensors:
        digest.update(read_stored(header, tensor).data)
        if not np.isfinite(read_tensor(header, tensor)).all():
            raise ModelFileError(
                f"{shown_path(header.path)} is damaged: not all weights of {quoted(tensor.name, 64)} are numbers.",
                "Fetch or train it again.",
            )
    return digest.hexdigest()
