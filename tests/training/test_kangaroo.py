"""A trained adapter, cut into a drafter, computes in llama.cpp what it computes in torch."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.models.adapters import layer_inputs, logits_of, random_pair

from slipstream.drafters.training.decoder import frequencies, rotations
from slipstream.drafters.training.from_gguf import rope_factors, shape_of
from slipstream.drafters.training.kangaroo import Exit, KangarooAdapter, tensors
from slipstream.models.gguf.reader import read_header
from slipstream.models.gguf.tensors import read_tensor
from slipstream.models.heads.file import read_heads, write_heads
from slipstream.models.heads.self_draft import cut

EXIT, LENGTH = 2, 40


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_the_cut_computes_what_is_trained(tmp_path: Path, architecture: str) -> None:
    pair = random_pair(tmp_path, architecture, EXIT)
    header = read_header(pair.target)
    shape = shape_of(header)
    torch.manual_seed(0)
    adapter = KangarooAdapter(shape)
    for values in adapter.parameters():
        torch.nn.init.normal_(values, mean=float(values.ndim == 1), std=0.2)
    write_heads(pair.adapter, read_heads(pair.adapter).info, tensors(adapter), "f32")
    cut(*pair, tmp_path / "cut.gguf")
    tokens = list(range(5, 5 + LENGTH))
    per_position = frequencies(shape.head_size, shape.rope_base, shape.rope_scaling, torch.device("cpu"))
    factors = rope_factors(header)
    rotation = rotations(torch.arange(LENGTH), per_position if factors is None else per_position / factors)
    matrix = next(read_tensor(header, tensor) for tensor in header.tensors if tensor.name == "output.weight")
    at = Exit(shape, rotation, torch.from_numpy(matrix), 0)
    hidden = torch.from_numpy(layer_inputs(pair.target, EXIT, tokens))[None]
    with torch.no_grad():
        wanted = at.logits(adapter, torch.zeros(1, LENGTH, dtype=torch.long), [hidden])[0].numpy()
    found = logits_of(tmp_path / "cut.gguf", tokens)
    assert np.linalg.norm(found - wanted) < 1e-5 * np.linalg.norm(wanted)
