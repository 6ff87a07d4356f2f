"""Every architecture that is said to take masks uses a token's vector as it uses the token."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray
from tests.models.kinds import KINDS, write_kind

from slipstream.models.gguf.parse import TensorInfo
from slipstream.models.gguf.reader import Header, read_header
from slipstream.models.gguf.tensors import NewTensor, read_tensor, write_gguf
from slipstream.models.llama import mask_rows
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.mask_rows import MASK_ARCHITECTURES
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.target import ContextOptions
from slipstream.models.types import TokenTree

BUNDLED = Path(__file__).parents[3] / "models" / "bundled" / "slipstream-mini-q8_0.gguf"
OPTIONS = ContextOptions(n_ctx=256, max_leaves=4, kv="f32", flash=False, threads=1)


def write(path: Path, architecture: str) -> Path:
    """Writes a tiny model of this kind, or the bundled one under the name of a kind that has the same parts."""
    if architecture in KINDS:
        return write_kind(path, architecture)
    header = read_header(BUNDLED)
    metadata = {
        key.replace("llama.", f"{architecture}.") if key.startswith("llama.") else key: (header.types[key], value)
        for key, value in header.metadata.items()
        if key not in ("general.architecture", "general.alignment")
    }
    tensors = [stored(header, tensor, tensor.name) for tensor in header.tensors]
    if architecture == "internlm2":  # which has a vocabulary matrix of its own
        tensors.append(stored(header, next(t for t in header.tensors if "token_embd" in t.name), "output.weight"))
    if architecture == "qwen2":  # which has biases
        for tensor in header.tensors:
            if tensor.name.endswith(("attn_q.weight", "attn_k.weight", "attn_v.weight")):
                name, size = tensor.name.replace("weight", "bias"), tensor.shape[1]
                tensors.append(NewTensor(name, (size,), gguf.GGMLQuantizationType.F32, ones(size)))
    write_gguf(path, architecture, metadata, tensors)
    return path


def stored(header: Header, tensor: TensorInfo, name: str) -> NewTensor:
    kind = gguf.GGMLQuantizationType(tensor.type)
    return NewTensor(name, tensor.shape[::-1], kind, lambda: read_tensor(header, tensor))


def ones(size: int) -> Callable[[], NDArray[np.float32]]:
    return lambda: np.ones(size, np.float32)


def ordinary_rows_are_equal(path: Path) -> bool:
    """Whether the same tree has the same bits in its ordinary rows with masks as probes and with tokens as probes."""
    model = LlamaModel(path)
    n = model.n_vocab
    equal = True
    with closing(LlamaTarget(model, OPTIONS)) as masked, closing(LlamaTarget(model, OPTIONS)) as other:
        masked.use_masks(np.random.default_rng(1).normal(0, 0.5, (2, model.n_embd)).astype(np.float32))
        for target in (masked, other):
            target.prefill(list(range(20, 60)))
        for turn in range(3):
            rows = []
            for target, probes in ((masked, (n, n + 1)), (other, (17, 18))):
                tree = TokenTree((70 + turn, 80, *probes, *probes), (-1, 0, 1, 2, -1, 4), frozenset({2, 3, 4, 5}))
                rows.append(target.evaluate(60 + turn, tree).logits.copy())
                target.keep((0, 1)[:turn])
            assert not np.array_equal(rows[0][3:], rows[1][3:])
            equal = equal and np.array_equal(rows[0][:3], rows[1][:3])
    model.close()
    return equal


@pytest.mark.parametrize("architecture", sorted(MASK_ARCHITECTURES))
def test_a_token_is_the_same_bits_as_its_vector(architecture: str, tmp_path: Path) -> None:
    assert ordinary_rows_are_equal(write(tmp_path / "kind.gguf", architecture))


def test_where_masks_are_not_offered_a_vector_differs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """gemma3 scales what it looks up, and takes a vector as it is."""
    path = write(tmp_path / "kind.gguf", "gemma3")
    model = LlamaModel(path)
    with closing(LlamaTarget(model, OPTIONS)) as target:
        assert not target.abilities.masks
    model.close()
    monkeypatch.setattr(mask_rows, "MASK_ARCHITECTURES", frozenset({"gemma3"}))
    assert not ordinary_rows_are_equal(path)
