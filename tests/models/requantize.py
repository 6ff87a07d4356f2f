"""Makes a copy of a model in another quantization."""

from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

import gguf
from numpy.typing import NDArray

from slipstream.models.gguf.parse import STRING, U32, TensorInfo
from slipstream.models.gguf.reader import Header, read_header
from slipstream.models.gguf.tensors import PLAIN, NewTensor, read_tensor, write_gguf
from slipstream.models.heads.file import DERIVED_FROM, identity

Kind = Literal["f32", "bf16", "q4_0", "q8_0"]

_F32: Final = gguf.GGMLQuantizationType.F32
_KINDS: Final = MappingProxyType(
    {
        "f32": (_F32, gguf.LlamaFileType.ALL_F32),
        "bf16": (gguf.GGMLQuantizationType.BF16, gguf.LlamaFileType.MOSTLY_BF16),
        "q4_0": (gguf.GGMLQuantizationType.Q4_0, gguf.LlamaFileType.MOSTLY_Q4_0),
        "q8_0": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
    }
)
_ALWAYS_F32: Final = ("_norm", "ffn_gate_inp", "ssm_conv1d", "position_embd", "token_types")
"""Parts of the names of matrices that llama.cpp leaves as they are: src/llama-quant.cpp, tensor_allows_quantization."""
_NOT_COPIED: Final = ("general.architecture", "general.alignment", "split.")  # the writer has its own


def requantize(source: Path, target: Path, kind: Kind) -> None:
    """Writes a copy of a model whose matrices, the token embedding too, are stored as ``kind``, and all else as F32.

    The copy names its original, so that heads trained for either serve both; a split model becomes one file.
    """
    header = read_header(source)
    metadata = {
        key: (header.types[key], value) for key, value in header.metadata.items() if not key.startswith(_NOT_COPIED)
    }
    metadata["general.file_type"] = (U32, int(_KINDS[kind][1]))
    metadata["general.quantization_version"] = (U32, gguf.GGML_QUANT_VERSION)
    metadata[DERIVED_FROM] = (STRING, identity(header))
    tensors = [
        NewTensor(tensor.name, tensor.shape[::-1], _stored_as(tensor, kind), _reader(header, tensor))
        for tensor in header.tensors
    ]
    write_gguf(target, header.architecture, metadata, tensors)


def _stored_as(tensor: TensorInfo, kind: Kind) -> gguf.GGMLQuantizationType:
    if tensor.type in PLAIN:
        return gguf.GGMLQuantizationType(tensor.type)
    wanted = _KINDS[kind][0]
    matrix = len(tensor.shape) > 1 and tensor.name.endswith(".weight")
    if not matrix or any(part in tensor.name for part in _ALWAYS_F32):
        return _F32
    return _F32 if tensor.shape[0] % gguf.GGML_QUANT_SIZES[wanted][0] else wanted


def _reader(header: Header, tensor: TensorInfo) -> Callable[[], NDArray[Any]]:
    return lambda: read_tensor(header, tensor)
