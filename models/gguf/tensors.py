"""Reads the weights of one tensor at a time as numpy arrays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import gguf
import numpy as np
from numpy.typing import NDArray

from slipstream.models.errors import ModelFileError, reason_of
from slipstream.models.gguf.parse import TensorInfo
from slipstream.models.gguf.reader import Header
from slipstream.models.outside import quoted, shown_path

PLAIN: Final = MappingProxyType({24: "<i1", 25: "<i2", 26: "<i4", 27: "<i8", 28: "<f8"})
"""Type ids of integers and float64, which are not converted, and numpy's names for them."""

_SAMPLED_TENSORS: Final = 64
_SAMPLE_BYTES: Final = 4096


def read_tensor(header: Header, tensor: TensorInfo) -> NDArray[Any]:
    """Reads a tensor and converts its weights to float32; integers and float64 keep their type.

    Args:
        header: The checked header of the file.
        tensor: One of ``header.tensors``.

    Returns:
        An array in numpy's order of dimensions: ``tensor.shape`` reversed.

    Raises:
        ModelFileError: If the bytes cannot be read, or their quantization is not supported.
    """
    raw = read_stored(header, tensor)
    shape = tensor.shape[::-1]
    if tensor.type in PLAIN:
        return raw.view(PLAIN[tensor.type]).reshape(shape)
    try:
        return np.asarray(
            gguf.quants.dequantize(raw.reshape(*shape[:-1], -1), gguf.GGMLQuantizationType(tensor.type)), np.float32
        )
    except (NotImplementedError, ValueError):  # ValueError: an unknown type
        raise ModelFileError(
            f"{shown_path(header.parts[tensor.part])}: tensor {quoted(tensor.name)} has the type {tensor.type_name}, "
            "whose weights cannot be unpacked here.",
            "Choose another quantization of the model, for example Q8_0, Q4_K_M or F16.",
        ) from None


def read_stored(header: Header, tensor: TensorInfo) -> NDArray[np.uint8]:
    """Reads a tensor's bytes as stored in the file.

    Reading a mapped file would end the process on a disk error; this raises instead.

    Raises:
        ModelFileError: If the bytes cannot be read.
    """
    path = header.parts[tensor.part]
    try:
        start = header.data_offsets[tensor.part] + tensor.offset
        raw = np.fromfile(path, np.uint8, tensor.nbytes, offset=start)
    except OSError as error:
        raise _unreadable(path, error) from error
    if raw.size != tensor.nbytes:
        raise ModelFileError(
            f"{shown_path(path)} became shorter while it was read.",
            "Wait until nothing writes to it, then try again.",
        )
    return raw


def samples(header: Header) -> Iterator[bytes]:
    """Reads some kilobytes from the start, middle and end of up to 64 tensors, spread evenly over the model.

    Raises:
        ModelFileError: If the bytes cannot be read.
    """
    tensors = header.tensors
    if len(tensors) > _SAMPLED_TENSORS:
        last = len(tensors) - 1
        tensors = tuple(tensors[n * last // (_SAMPLED_TENSORS - 1)] for n in range(_SAMPLED_TENSORS))
    for number, path in enumerate(header.parts):
        try:
            with path.open("rb") as file:
                for tensor in tensors:
                    if tensor.part != number:
                        continue
                    start, size = header.data_offsets[number] + tensor.offset, min(_SAMPLE_BYTES, tensor.nbytes)
                    for place in (0, (tensor.nbytes - size) // 2, tensor.nbytes - size):
                        file.seek(start + place)
                        yield file.read(size)
        except OSError as error:
            raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> ModelFileError:
    reason = reason_of(error)
    return ModelFileError(f"{shown_path(path)} cannot be read: {reason}.", "Check the path and the disk.")
