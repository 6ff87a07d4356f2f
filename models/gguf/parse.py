"""Parses the key/value list and the tensor list of a GGUF file; every read is bounded by the file's size."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from sys import getsizeof
from types import MappingProxyType
from typing import BinaryIO, Final

import gguf

from slipstream.models.outside import quoted

STRING: Final = 8
ARRAY: Final = 9
U32: Final = 4
I32: Final = 5
F32: Final = 6
BOOL: Final = 7
I64: Final = 11
F64: Final = 12
# metadata type id to its ``struct`` code; strings (8) and arrays (9) have other formats
SCALARS: Final = MappingProxyType(
    {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
)
TENSOR_TYPES: Final[Mapping[int, tuple[str, int, int]]] = MappingProxyType(
    {int(kind): (kind.name, *size) for kind, size in gguf.GGML_QUANT_SIZES.items()}
    | {9: ("Q8_1", 32, 36), 42: ("Q2_0", 64, 18)}  # which the package gives another size, or lacks
)
"""Tensor type id to (name, elements per block, bytes per block); a test compares it with ggml."""
Scalar = bool | int | float | str
Value = Scalar | list[bool] | list[int] | list[float] | list[str]  # the value of a metadata key
Lists = dict[int, tuple[bytes, list[str], int]]
"""Number of strings to bytes, texts and memory of such a list: heads repeat the vocabulary of their model."""
MAX_HEADER: Final = 48 << 20  # bytes; the largest vocabularies, of 262,144 tokens with their merges, take a third of it
MAX_MEMORY: Final = 160 << 20
"""Maximum bytes of memory for the values of one header; with the header itself, below 256 MB."""
MAX_TENSORS: Final = 65_536
MAX_KEYS: Final = 4_096
MAX_KEY: Final = 256
MAX_STRING: Final = 4 << 20
MAX_ELEMENT: Final = 64 << 10
MAX_ARRAY: Final = 2_000_000
MAX_TENSOR_NAME: Final = 63
MAX_TENSOR_ELEMENTS: Final = 1 << 44
CHUNK: Final = 1 << 19
_PER_NUMBER: Final = 40  # bytes of memory for a number in a list
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")


class DamagedError(Exception):
    """A file cannot be used; the message continues a sentence that starts with the file's path."""

    def __init__(self, why: str, hint: str = "") -> None:
        super().__init__(why)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class TensorInfo:
    name: str  # for example ``blk.0.attn_q.weight``
    shape: tuple[int, ...]  # in ggml's order, fastest first: numpy's shape reversed
    type: int  # its ggml type id
    offset: int  # offset of its first byte in the data section of its file
    nbytes: int
    part: int = 0  # index of its file in a split model

    @property
    def type_name(self) -> str:
        return TENSOR_TYPES[self.type][0]


@dataclass(slots=True)
class Framing:
    """A file's key/value and tensor lists, before ``check`` validates their values."""

    metadata: dict[str, Value] = field(default_factory=dict)  # key to value
    # key to its type id; for an array, -1 minus the type id of its elements
    types: dict[str, int] = field(default_factory=dict)
    tensors: list[TensorInfo] = field(default_factory=list)  # the tensors in file order
    header: bytearray = field(default_factory=bytearray)  # all bytes up to the end of the tensor list
    size: int = 0  # length of the file in bytes


class Cursor:
    """A read position in a file's header, with bounds checks."""

    def __init__(self, file: BinaryIO, size: int, lists: Lists) -> None:
        self._file, self.size, self._lists = file, size, lists
        self.read = bytearray()
        self.position = 0
        self.memory = MAX_MEMORY

    def reach(self, end: int) -> None:
        if end <= len(self.read):
            return
        if end > self.size:
            raise DamagedError(
                f"is cut short: its header needs {end:,} bytes but the file ends after {self.size:,}",
                "The download may have stopped early, or the file is damaged: fetch it again.",
            )
        if end > MAX_HEADER:
            raise DamagedError(f"is damaged: its header needs {end:,} bytes, more than the {MAX_HEADER:,} allowed")
        self.read += self._file.read(min(self.size, max(end, len(self.read) + CHUNK)) - len(self.read))
        if end > len(self.read):
            raise DamagedError("became shorter while it was read", "Wait until nothing writes to it, then try again.")

    def spend(self, memory: int, what: str) -> None:
        self.memory -= memory
        if self.memory < 0:
            raise DamagedError(f"is damaged: with {what} its header takes more memory than the {MAX_MEMORY:,} allowed")

    def take(self, n: int) -> bytearray:
        start = self.position
        self.reach(start + n)
        self.position = start + n
        return self.read[start : start + n]

    def u32(self) -> int:
        return int(_U32.unpack(self.take(4))[0])

    def u64(self) -> int:
        return int(_U64.unpack(self.take(8))[0])

    def string(self, limit: int, what: str) -> str:
        """Takes a length and a UTF-8 string of that many bytes."""
        length = self.u64()
        if length > limit:
            raise DamagedError(f"is damaged: {what} is {length:,} bytes long, more than the {limit:,} allowed")
        try:
            text = self.take(length).decode()
        except UnicodeDecodeError:
            raise DamagedError(f"is damaged: {what} is not UTF-8") from None
        self.spend(getsizeof(text), what)
        return text

    def strings(self, count: int, what: str) -> list[str]:
        """Takes ``count`` strings; inlines ``string`` for speed, since a file has hundreds of thousands."""
        self.reach(self.position + 8 * count)
        self.spend(8 * count, what)
        if known := self._lists.get(count):
            self.reach(min(self.position + len(known[0]), self.size, MAX_HEADER))
            if self.read.startswith(known[0], self.position):
                self.position += len(known[0])
                self.spend(known[2], what)
                return known[1]
        found: list[str] = []
        read, position, unpack, memory, allowed = self.read, self.position, _U64.unpack_from, 0, self.memory
        for index in range(count):
            if position + 8 > len(read):
                self.reach(position + 8)
            start = position + 8
            length = unpack(read, position)[0]
            if length > MAX_ELEMENT:
                raise DamagedError(f"is damaged: entry {index} of {what} claims {length:,} bytes")
            position = start + length
            if position > len(read):
                self.reach(position)
            try:
                text = read[start:position].decode()
            except UnicodeDecodeError:
                raise DamagedError(f"is damaged: entry {index} of {what} is not UTF-8") from None
            memory += getsizeof(text)
            if memory > allowed:
                break
            found.append(text)
        self.spend(memory, what)
        self._lists[count] = bytes(read[self.position : position]), found, memory
        self.position = position
        return found


def parse(file: BinaryIO, size: int, lists: Lists) -> Framing:
    """Parses a file at its start; adds its lists of strings to ``lists``, and takes equal ones from there."""
    cursor = Cursor(file, size, lists)
    cursor.take(8)
    n_tensors, n_keys = cursor.u64(), cursor.u64()
    if n_tensors > MAX_TENSORS:
        raise DamagedError(f"is damaged: it claims {n_tensors:,} tensors")
    if n_keys > MAX_KEYS:
        raise DamagedError(f"is damaged: it claims {n_keys:,} metadata keys")
    framing = Framing(size=size)
    for _ in range(n_keys):
        _key_value(cursor, framing)
    seen: set[str] = set()
    for _ in range(n_tensors):
        framing.tensors.append(_tensor(cursor, seen))
    del cursor.read[cursor.position :]
    framing.header = cursor.read
    return framing


def _key_value(cursor: Cursor, framing: Framing) -> None:
    key = cursor.string(MAX_KEY, "a metadata key")
    if not key or not key.isascii() or not key.isprintable():
        raise DamagedError(f"is damaged: metadata key {quoted(key)} is not printable ASCII")
    if key in framing.metadata:
        raise DamagedError(f"is damaged: metadata key {quoted(key)} stands there twice")
    kind = cursor.u32()
    if kind != ARRAY:
        framing.types[key] = kind
        framing.metadata[key] = _scalar(cursor, kind, key)
        return
    kind, count = cursor.u32(), cursor.u64()
    if count > MAX_ARRAY:
        raise DamagedError(f"is damaged: {quoted(key)} claims {count:,} entries")
    framing.types[key] = -1 - kind
    framing.metadata[key] = _array(cursor, kind, count, key)


def _scalar(cursor: Cursor, kind: int, key: str) -> Scalar:
    if kind == STRING:
        return cursor.string(MAX_STRING, quoted(key))
    if kind not in SCALARS:
        raise DamagedError(f"is damaged: {quoted(key)} has the unknown type {kind}")
    code = "<" + SCALARS[kind]
    value: int | float = struct.unpack(code, cursor.take(struct.calcsize(code)))[0]
    if kind != BOOL:
        return value
    if value not in (0, 1):
        raise DamagedError(f"is damaged: {quoted(key)} is neither true nor false")
    return bool(value)


def _array(cursor: Cursor, kind: int, count: int, key: str) -> Value:
    if kind == STRING:
        return cursor.strings(count, quoted(key))
    if kind not in SCALARS:
        raise DamagedError(f"is damaged: {quoted(key)} is a list of the unsupported type {kind}")
    cursor.spend(_PER_NUMBER * count, quoted(key))
    code = f"<{count}{SCALARS[kind]}"
    values = list(struct.unpack(code, cursor.take(struct.calcsize(code))))
    if kind != BOOL:
        return values
    if any(value not in (0, 1) for value in values):
        raise DamagedError(f"is damaged: {quoted(key)} holds values that are neither true nor false")
    return [bool(value) for value in values]


def _tensor(cursor: Cursor, seen: set[str]) -> TensorInfo:
    name = cursor.string(MAX_TENSOR_NAME, "a tensor name")
    if not name or "\0" in name:
        raise DamagedError(f"is damaged: {quoted(name)} is no tensor name")
    if name in seen:
        raise DamagedError(f"is damaged: tensor {quoted(name)} stands there twice")
    seen.add(name)
    n_dims = cursor.u32()
    if not 1 <= n_dims <= 4:
        raise DamagedError(f"is damaged: tensor {quoted(name)} claims {n_dims} dimensions")
    shape = tuple(cursor.u64() for _ in range(n_dims))
    elements = 1
    for length in shape:
        elements *= length
        if not 1 <= elements <= MAX_TENSOR_ELEMENTS:
            raise DamagedError(f"is damaged: tensor {quoted(name)} claims the shape {shape}")
    kind = cursor.u32()
    if kind not in TENSOR_TYPES:
        raise DamagedError(
            f"cannot be used: tensor {quoted(name)} has type {kind}, which this llama.cpp does not know",
            "Choose another quantization of the model, for example Q4_K_M or Q8_0.",
        )
    _, per_block, block_bytes = TENSOR_TYPES[kind]
    if shape[0] % per_block:
        raise DamagedError(f"is damaged: rows of tensor {quoted(name)} are no whole number of blocks")
    return TensorInfo(name, shape, kind, cursor.u64(), elements // per_block * block_bytes)
