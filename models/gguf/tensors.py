"""Reads tensors, and writes GGUF files atomically, with one tensor in memory at a time."""

import errno
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import accumulate
from numbers import Integral, Real
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import gguf
import numpy as np
from numpy.typing import NDArray

from slipstream.models.errors import ModelFileError, SlipstreamError, reason_of
from slipstream.models.gguf.check import DEFAULT_ALIGNMENT
from slipstream.models.gguf.parse import ARRAY, BOOL, F64, I64, STRING, TensorInfo, Value
from slipstream.models.gguf.reader import Header
from slipstream.models.outside import quoted, shown_path

PLAIN: Final = MappingProxyType({24: "<i1", 25: "<i2", 26: "<i4", 27: "<i8", 28: "<f8"})
"""Type ids of integers and float64, which are not converted, and numpy's names for them."""
_SAMPLED_TENSORS: Final = 64
_SAMPLE_BYTES: Final = 4096
Metadata = Mapping[str, tuple[int, Value]]
"""Key to type id and value; an array's type id is -1 minus the type id of its elements, as in ``Header.types``."""
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def read_tensor(header: Header, tensor: TensorInfo) -> NDArray[Any]:
    """Reads a tensor in numpy's order of dimensions, weights as float32; integers and float64 keep their type."""
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
    """Reads a tensor's bytes as stored; reading a mapped file would end the process on a disk error, this raises."""
    path = header.parts[tensor.part]
    try:
        start = header.data_offsets[tensor.part] + tensor.offset
        raw = np.fromfile(path, np.uint8, tensor.nbytes, offset=start)
    except OSError as error:
        raise unreadable(path, error) from error
    if raw.size != tensor.nbytes:
        raise ModelFileError(
            f"{shown_path(path)} became shorter while it was read.", "Wait until nothing writes to it, then try again."
        )
    return raw


def samples(header: Header) -> Iterator[bytes]:
    """Reads some kilobytes from the start, middle and end of up to 64 tensors, spread evenly over the model."""
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
            raise unreadable(path, error) from error


def unreadable(path: Path, error: OSError) -> ModelFileError:
    return ModelFileError(f"{shown_path(path)} cannot be read: {reason_of(error)}.", "Check the path and the disk.")


@dataclass(frozen=True, slots=True)
class NewTensor:
    name: str
    shape: tuple[int, ...]  # in numpy's order
    kind: gguf.GGMLQuantizationType  # how it is stored
    values: Callable[[], NDArray[Any]]  # returns its values; called when they are written

    def pieces(self) -> Iterator[NDArray[Any]]:
        yield self.stored()

    def stored(self) -> NDArray[Any]:
        values = self.values()
        if self.kind in PLAIN:
            return np.ascontiguousarray(values, PLAIN[self.kind])
        return np.ascontiguousarray(gguf.quants.quantize(values.astype(np.float32, copy=False), self.kind))


def typed(value: Value) -> tuple[int, Value]:
    """Returns a value with a type id that stores it without loss; numpy's numbers are allowed."""
    for python, kind in ((bool, BOOL), (Integral, I64), (Real, F64), (str, STRING)):
        if isinstance(value, python):
            return kind, value
        if isinstance(value, list) and all(isinstance(item, python) for item in value):
            return -1 - kind, value
    raise TypeError(f"no GGUF value: {value!r}")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary path; the file written there replaces ``path`` if the body succeeds."""
    part = path.with_name(path.name + ".part")
    try:
        yield part
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        title = f"cannot write {shown_path(path)}: {reason_of(error)}."
        hint = "Free some room there" if error.errno in _FULL else "Check the folder and its permissions"
        raise SlipstreamError(title, f"{hint}, or choose another folder.") from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def write_gguf(
    path: Path, architecture: str, metadata: Metadata, tensors: Sequence[NewTensor], threads: int = 1
) -> None:
    """Writes a GGUF file aside, some tensors at a time, and moves it into place; empty lists are left out."""
    sizes: list[int] = []
    with replacing(path) as part:
        writer = gguf.GGUFWriter(part, architecture)
        try:
            for key, (kind, value) in metadata.items():
                if kind >= 0:
                    writer.add_key_value(key, value, gguf.GGUFValueType(kind))
                elif value:
                    writer.add_key_value(key, value, gguf.GGUFValueType(ARRAY), gguf.GGUFValueType(-1 - kind))
            for tensor in tensors:
                size, count = gguf.GGML_QUANT_SIZES[tensor.kind], int(np.prod(tensor.shape))
                # with any type but uint8, the writer takes the shape in elements
                sizes.append(count // size[0] * size[1])
                writer.add_tensor_info(tensor.name, tensor.shape, np.dtype(np.float32), sizes[-1], tensor.kind)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
        finally:
            writer.close()
        start = part.stat().st_size
        start += -start % DEFAULT_ALIGNMENT
        places = accumulate((size + -size % DEFAULT_ALIGNMENT for size in sizes[:-1]), initial=start)

        def fill(tensor: NewTensor, place: int) -> None:
            with part.open("rb+") as file:  # the package uses ``tofile``, whose errors have no reason
                file.seek(place)
                for piece in tensor.pieces():
                    file.write(piece.data)

        with ThreadPoolExecutor(threads) as pool:
            for _ in pool.map(fill, tensors, places):
                pass
