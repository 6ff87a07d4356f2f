"""Reads safetensors files without ever trusting them.

Eight bytes with the length of a JSON header, the header, the numbers. Format:
https://huggingface.co/docs/safetensors/index#format
"""

from __future__ import annotations

import json
import os
import stat
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, Final, TypeGuard

import numpy as np
from numpy.typing import NDArray

from slipstream.models.errors import ModelFileError, reason_of
from slipstream.models.gguf_parse import MAX_TENSORS, DamagedError
from slipstream.models.quoting import quoted, shown_path

MAX_HEADER: Final = 4 << 20
"""Bytes; JSON takes up to twenty times as much in memory, and heads have a few hundred tensors."""
_DTYPES: Final = MappingProxyType({"F32": "<f4", "F16": "<f2", "BF16": "<u2"})
_Entry = tuple[int, int, str, tuple[int, ...]]  # first byte, behind the last byte, type, sizes


def read_safetensors(path: Path) -> dict[str, NDArray[Any]]:
    """Reads every tensor of a file; every number in the header is checked before one of them is used.

    Returns:
        Name to a float16 array for F16, float32 for F32 and BF16, in the file's order.

    Raises:
        ModelFileError: If the file is missing, damaged, or holds other numbers than F32, F16 and BF16.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # before opening: to open a named pipe would wait for its writer
            raise DamagedError("is a folder, a device or a pipe, not a safetensors file", "Give the file itself.")
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            start, header = _header(file, size)
            return {name: _values(file, start, name, entry) for name, entry in _entries(header, size - start).items()}
    except DamagedError as error:
        raise ModelFileError(f"{shown_path(path)} {error}.", error.hint or "Fetch the file again.") from None
    except OSError as error:
        reason = reason_of(error)
        raise ModelFileError(f"{shown_path(path)} cannot be read: {reason}.", "Check the path and the disk.") from None


def _header(file: BinaryIO, size: int) -> tuple[int, dict[str, object]]:
    length = int.from_bytes(file.read(8), "little")
    if size < 10 or not 2 <= length <= min(size - 8, MAX_HEADER):
        raise DamagedError("is no safetensors file: its first bytes are not the length of a header")
    try:
        header = json.loads(file.read(length).decode(), object_pairs_hook=_once)
    except (ValueError, RecursionError):
        raise DamagedError("is no safetensors file: its header is not JSON with different names") from None
    if not isinstance(header, dict) or len(header) > MAX_TENSORS:
        raise DamagedError("is no safetensors file: its header is not a list of tensors")
    header.pop("__metadata__", None)
    return 8 + length, header


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands there twice")
    return found


def _entries(header: dict[str, object], size: int) -> dict[str, _Entry]:
    found = {name: _entry(name, value) for name, value in header.items()}
    expected = 0
    for name, (start, end, _, _) in sorted(found.items(), key=lambda item: item[1][:2]):
        if start != expected or end > size:
            raise DamagedError(f"is damaged or cut short: tensor {quoted(name)} is not where it should be")
        expected = end
    return found


def _entry(name: str, value: object) -> _Entry:
    if not isinstance(value, dict):
        raise DamagedError(f"is damaged: it does not describe tensor {quoted(name)}")
    dtype, shape, offsets = value.get("dtype"), value.get("shape"), value.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise DamagedError(
            f"holds tensor {quoted(name)} of type {quoted(str(dtype))}", "Slipstream reads F32, F16 and BF16."
        )
    if not _whole(shape) or not _whole(offsets) or len(shape) > 4 or len(offsets) != 2:
        raise DamagedError(f"is damaged: it does not describe tensor {quoted(name)}")
    if offsets[1] - offsets[0] != prod(shape) * np.dtype(_DTYPES[dtype]).itemsize:
        raise DamagedError(f"is damaged: tensor {quoted(name)} has not the size it claims")
    return offsets[0], offsets[1], dtype, tuple(shape)


def _whole(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _values(file: BinaryIO, start: int, name: str, entry: _Entry) -> NDArray[Any]:
    first, end, dtype, shape = entry
    file.seek(start + first)
    raw = file.read(end - first)
    if len(raw) != end - first:
        raise DamagedError("became shorter while it was read", "Wait until nothing writes to it, then try again.")
    values = np.frombuffer(raw, _DTYPES[dtype]).reshape(shape)
    if dtype == "BF16":  # the upper half of a float32
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values
