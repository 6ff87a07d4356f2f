"""Which sizes and types of tensors must agree with a GGUF file's metadata before C code reads them.

llama.cpp compares most shapes itself and refuses a file in order; here is what it does not look at before a graph is
built on it, and then ends the process. Every rule stopped a crash in mutated files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from slipstream.models.gguf_parse import DamagedError, TensorInfo, Value
from slipstream.models.quoting import quoted

_ADDED: Final = re.compile(r"(norm(_\d)?\.weight|\.bias|\.ssm_[ad]|\.ssm_conv1d\.weight|\.shortconv\.conv\.weight)$")
"""Tensors that are added, multiplied or convolved, which ggml does in F32 only; every converter writes them so."""
_F32: Final = 0
_NO_WEIGHTS: Final = frozenset({9, 15, 24, 25, 26, 27, 28})
"""Types that no product of matrices takes as weights: Q8_1, Q8_K, whole numbers, F64."""
_TABLE: Final = "tid2eid"
"""Part of the names of weights that are whole numbers after all: experts by token."""
_OWN_HEADS: Final = frozenset({"lfm2", "lfm2moe"})
"""Architectures whose graph cuts queries by the metadata's head size although the file's rows were never compared."""
_DELTA_NETS: Final = frozenset({"qwen3next", "qwen35", "qwen35moe"})
"""Architectures of gated delta nets, whose heads of keys and of values are equally wide."""


def check_sizes(metadata: Mapping[str, Value], architecture: str, tensors: Sequence[TensorInfo]) -> None:
    """Checks heads and rotated dimensions against each other and against the tensors.

    Args:
        metadata: Of the first file; every value is in its own range.
        architecture: ``general.architecture``.
        tensors: Of all files that are there.

    Raises:
        DamagedError: If they contradict each other.
    """
    for tensor in tensors:
        if _ADDED.search(tensor.name) and tensor.type != _F32:
            raise DamagedError(f"is damaged: tensor {quoted(tensor.name)} is stored as {tensor.type_name}, not F32")
        if tensor.type in _NO_WEIGHTS and tensor.name.endswith(".weight") and _TABLE not in tensor.name:
            raise DamagedError(f"is damaged: tensor {quoted(tensor.name)} holds no weights but {tensor.type_name}")
    numbers = {
        key.removeprefix(f"{architecture}."): value
        for key, value in metadata.items()
        if key.startswith(f"{architecture}.")
    }
    heads, shared = numbers.get("attention.head_count"), numbers.get("attention.head_count_kv")
    _shared_evenly(heads, shared)
    if architecture in _DELTA_NETS:
        inner, state, count = (numbers.get(f"ssm.{name}") for name in ("inner_size", "state_size", "time_step_rank"))
        if isinstance(inner, int) and isinstance(state, int) and isinstance(count, int) and inner != state * count:
            raise DamagedError(f"is damaged: {count:,} heads of {state:,} numbers do not make {inner:,}")
    width = _head(numbers, heads)
    _rotated(numbers, width)
    if isinstance(heads, int) and heads:
        for tensor in tensors:
            if not tensor.name.endswith(".attn_q.weight") or len(tensor.shape) != 2:
                continue
            rows = tensor.shape[1]
            if rows % heads or (architecture in _OWN_HEADS and width and rows != heads * width):
                raise DamagedError(f"is damaged: tensor {quoted(tensor.name)} has {rows:,} rows for {heads} heads")


def _shared_evenly(heads: Value | None, shared: Value | None) -> None:
    """Every head of keys serves the same number of heads of queries; 0 stands for a layer without attention."""
    counts = [n for n in shared if isinstance(n, int)] if isinstance(shared, list) else [shared]
    each = [n for n in heads if isinstance(n, int)] if isinstance(heads, list) else [heads] * len(counts)
    for query, key in zip(each, counts, strict=False):
        if isinstance(query, int) and isinstance(key, int) and query and key and query % key:
            raise DamagedError(f"is damaged: {query} heads cannot share {key}")


def _head(numbers: Mapping[str, Value], heads: Value | None) -> int:
    """Width of a head; 0 where the file does not say."""
    said, width = numbers.get("attention.key_length"), numbers.get("embedding_length")
    if isinstance(said, int) and said:
        return said
    return width // heads if isinstance(width, int) and isinstance(heads, int) and heads else 0


def _rotated(numbers: Mapping[str, Value], width: int) -> None:
    turned = numbers.get("rope.dimension_count")
    if not width:
        return
    if isinstance(turned, int) and (turned > width or turned % 2):
        raise DamagedError(f"is damaged: it rotates {turned:,} numbers of heads that have {width:,}")
    sections = numbers.get("rope.dimension_sections")
    if isinstance(sections, list) and not 0 <= sum(n for n in sections if isinstance(n, int)) <= width:
        raise DamagedError(f"is damaged: it rotates heads of {width:,} numbers in sections of more")
