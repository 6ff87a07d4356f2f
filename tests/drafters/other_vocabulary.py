"""Copies of a model in which every token has another id, and, if wanted, fewer merges make them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from tests.drafters.changed_file import changed

from slipstream.models.gguf import read_header
from slipstream.models.gguf_parse import Value
from slipstream.models.gguf_tensors import read_tensor


def in_other_tokens(source: Path, copy: Path, merges: int | None = None) -> Path:
    """Writes a model that says what ``source`` says, in tokens of other ids.

    Args:
        source: The model.
        copy: Where to.
        merges: How many merges the tokenizer keeps: with fewer of them words fall into more tokens.
    """
    header = read_header(source)
    order = np.random.default_rng(0).permutation(header.n_vocab)  # new id to old id
    new_ids = np.argsort(order)
    keys: dict[str, Value] = {}
    for key, value in header.metadata.items():
        if key.endswith("_token_id") and isinstance(value, int):
            keys[key] = int(new_ids[value])
        elif key in ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type") and isinstance(value, list):
            keys[key] = [value[old] for old in order]
        elif key == "tokenizer.ggml.merges" and isinstance(value, list):
            keys[key] = value[:merges]
    tensors: dict[str, Any] = {
        tensor.name: read_tensor(header, tensor)[order]
        for tensor in header.tensors
        if tensor.name in ("token_embd.weight", "output.weight")
    }
    return changed(source, copy, keys, tensors)
