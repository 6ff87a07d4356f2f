"""Copies of GGUF files with some of their keys and tensors changed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
from numpy.typing import NDArray

from slipstream.models.gguf.parse import Value
from slipstream.models.gguf.reader import read_header
from slipstream.models.gguf.tensors import PLAIN, NewTensor, read_tensor, write_gguf


def changed(
    source: Path, copy: Path, keys: Mapping[str, Value] = {}, tensors: Mapping[str, NDArray[Any] | None] = {}
) -> Path:
    """Writes a copy whose weights are F32. New keys are texts or F32, others keep their types; None leaves a tensor
    out."""
    header = read_header(source)
    metadata = {
        key: (header.types[key], keys.get(key, value))
        for key, value in header.metadata.items()
        if not key.startswith(("general.architecture", "general.alignment"))
    }
    kinds = {str: gguf.GGUFValueType.STRING, float: gguf.GGUFValueType.FLOAT32}
    more = {key: (kinds[type(value)], value) for key, value in keys.items() if type(value) in kinds}
    metadata = {**more, **metadata}
    arrays = {**{tensor.name: read_tensor(header, tensor) for tensor in header.tensors}, **tensors}
    written = [_tensor(name, values) for name, values in arrays.items() if values is not None]
    write_gguf(copy, header.architecture, metadata, written)
    return copy


def _tensor(name: str, values: NDArray[Any]) -> NewTensor:
    plain = next((kind for kind, dtype in PLAIN.items() if values.dtype == dtype), gguf.GGMLQuantizationType.F32)
    return NewTensor(name, values.shape, gguf.GGMLQuantizationType(plain), lambda: values)
