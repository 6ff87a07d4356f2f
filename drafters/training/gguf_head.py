"""Writes the heads that llama.cpp runs itself (EAGLE-3, DFlash), and reads all kinds, so that training goes on."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import torch
from numpy.typing import NDArray
from torch import nn

from slipstream.drafters.training.acceptance import Acceptance
from slipstream.drafters.training.decoder import DecoderShape
from slipstream.models.errors import UsageError
from slipstream.models.gguf.parse import F32, F64, I32, STRING, U32, Value
from slipstream.models.gguf.reader import Header, read_header
from slipstream.models.gguf.tensors import NewTensor, read_tensor, write_gguf
from slipstream.models.heads.file import Text, identity
from slipstream.models.heads.matching_heads import ACCEPTANCE_KEY, TARGET_KEY, TEXT_KEY, TrainedMethod, matching_heads
from slipstream.models.outside import quoted, shown_path

_IDS = gguf.GGMLQuantizationType.I64
_EXIT = "slipstream.heads.setting.exit_layer"


def write_gguf_head(
    path: Path,
    architecture: str,
    shape: DecoderShape,
    weights: Mapping[str, NDArray[Any]],
    *,
    target: Header,
    layers: Sequence[int],
    more: Mapping[str, tuple[int, Value]],
    text: Text,
    found: Acceptance,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.Q8_0,
) -> None:
    """Writes a head with the target's tokenizer.

    Args:
        shape: Of the head, not of the target.
        weights: By llama.cpp's names; integers are stored as they are, vectors in float32.
        layers: The target's layers whose inputs it reads.
    """
    numbers = {
        "context_length": shape.context,
        "embedding_length": shape.width,
        "block_count": shape.layers,
        "feed_forward_length": shape.ffn,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "attention.key_length": shape.head_size,
        "attention.value_length": shape.head_size,
        "rope.dimension_count": shape.head_size,
        "vocab_size": shape.vocabulary,
    }
    reals = {"attention.layer_norm_rms_epsilon": shape.eps, "rope.freq_base": shape.rope_base}
    metadata: dict[str, tuple[int, Value]] = {
        key: (target.types[key], value) for key, value in target.metadata.items() if key.startswith("tokenizer.ggml.")
    }
    metadata |= {f"{architecture}.{key}": (U32, value) for key, value in numbers.items()}
    metadata |= {f"{architecture}.{key}": (F32, value) for key, value in reals.items()}
    metadata |= {
        f"{architecture}.target_layers": (-1 - I32, list(layers)),
        "general.name": (STRING, f"{target.title} {architecture}"),
        "general.quantization_version": (U32, gguf.GGML_QUANT_VERSION),
        TARGET_KEY: (STRING, identity(target)),
        TEXT_KEY: (STRING, text),
        ACCEPTANCE_KEY: (-1 - F64, [round(share, 4) for share in found.shares]),
        **more,
    }

    def reader(values: NDArray[Any]) -> Callable[[], NDArray[Any]]:
        return lambda: values

    def stored(values: NDArray[Any]) -> gguf.GGMLQuantizationType:
        if values.dtype.kind == "i":
            return _IDS
        return kind if values.ndim == 2 else gguf.GGMLQuantizationType.F32

    tensors = [NewTensor(name, values.shape, stored(values), reader(values)) for name, values in weights.items()]
    write_gguf(path, architecture, metadata, tensors)


@dataclass(frozen=True)
class StoredHeads:
    """Weights that a training begins with."""

    tensors: Mapping[str, NDArray[Any]]  # by the file's names
    layers: tuple[int, ...]  # of the target, whose inputs they read

    @staticmethod
    def read(path: Path, methods: Iterable[TrainedMethod], target: Header) -> "dict[TrainedMethod, StoredHeads]":
        """The heads of each method for a model, from a file or from the files of a folder."""
        files = matching_heads(target, sorted(path.glob("*.gguf")) if path.is_dir() else [path])
        found: dict[TrainedMethod, StoredHeads] = {}
        for method in methods:
            if method not in files:
                raise UsageError(
                    f"{shown_path(path)} holds no {method} heads for {quoted(target.title)}.",
                    "Give heads of the method that is trained, or a folder with them.",
                )
            header = read_header(files[method])
            layers = header.metadata.get(f"{header.architecture}.target_layers", header.metadata.get(_EXIT))
            tensors = {info.name: read_tensor(header, info) for info in header.tensors}
            listed = layers if isinstance(layers, list) else [layers]
            found[method] = StoredHeads(tensors, tuple(layer for layer in listed if isinstance(layer, int)))
        return found

    def put_into(self, model: nn.Module) -> None:
        """Replaces a module's weights."""
        names = {"d2t": "ids", "output.ids": "ids", "output.weight": "output"}
        given = {names.get(name, name): torch.from_numpy(values) for name, values in self.tensors.items()}
        try:
            model.load_state_dict(model.state_dict() | given)
        except RuntimeError:
            raise UsageError(
                "these heads have another shape than the ones that are trained here.", "Leave out --from."
            ) from None
