"""Writes a trained model as a GGUF file that llama.cpp loads as architecture ``llama``."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from slipstream.drafters.training.family.tokenizer import CHAT_TEMPLATE, CONTROL, END, END_OF_TEXT
from slipstream.drafters.training.model import Decoder, Shape

_KINDS = {  # ways to store the matrices; norms are always F32
    "q8_0": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
    "f32": (gguf.GGMLQuantizationType.F32, gguf.LlamaFileType.ALL_F32),
}

_LICENCE_NOTE = "Weights: MIT. Trained on open texts whose licences and authors the model card names."


def write_gguf(model: Decoder, tokenizer: Path, path: Path, name: str, description: str, kind: str = "q8_0") -> None:
    """Writes a decoder under a temporary name and moves it into place.

    Args:
        kind: one of ``_KINDS``.
    """
    facts = {"general.name": name, "general.description": description}
    facts["general.size_label"] = _size_label(sum(p.numel() for p in model.parameters()))
    _write(path, "llama", model.shape, model.shape.layers, facts, tokenizer, tensors(model), kind)


def write_eagle(
    weights: Mapping[str, NDArray[np.float32]],
    shape: Shape,
    layers: Sequence[int],
    tokenizer: Path,
    path: Path,
    target: str,
    kind: str = "q8_0",
) -> None:
    """Writes an EAGLE-3 head as llama.cpp's architecture ``eagle3``; it uses the target's embedding.

    Args:
        weights: the result of ``eagle.tensors``.
        layers: the target's layers whose inputs it reads.
        target: identity of the model it was trained for.
        kind: one of ``_KINDS``.
    """
    facts = {
        "general.name": "Slipstream mini EAGLE-3",
        "general.description": "EAGLE-3 head for Slipstream mini.",
        "slipstream.heads.target": target,
        "eagle3.target_layers": list(layers),
        "eagle3.target_hidden_size": shape.width,
        "eagle3.norm_before_residual": False,
    }
    _write(path, "eagle3", shape, 1, facts, tokenizer, weights, kind)


def _write(
    path: Path,
    architecture: str,
    shape: Shape,
    blocks: int,
    facts: Mapping[str, Any],
    tokenizer: Path,
    weights: Mapping[str, NDArray[np.float32]],
    kind: str,
) -> None:
    quantization, file_type = _KINDS[kind]
    part = path.with_name(path.name + ".part")
    writer = gguf.GGUFWriter(part, architecture)
    for key, value in facts.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, list):
            writer.add_array(key, value)
        else:
            writer.add_string(key, value)
    writer.add_author("The Slipstream authors")
    writer.add_license("mit")
    writer.add_string("general.license.note", _LICENCE_NOTE)
    writer.add_languages(["en"])
    _add_shape(writer, shape, blocks)
    _add_tokenizer(writer, tokenizer)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_file_type(file_type)
    for name, values in weights.items():
        if values.ndim == 1 or kind == "f32":
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, gguf.quants.quantize(values, quantization), raw_dtype=quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(part, path)


def tensors(model: Decoder) -> dict[str, NDArray[np.float32]]:
    """The weights by llama.cpp's names, float32, matrices as (out, in); the embedding is also the output matrix."""
    return {name: p.detach().float().numpy() for name, p in model.named_parameters()}


def _add_shape(writer: gguf.GGUFWriter, shape: Shape, blocks: int) -> None:
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(blocks)
    writer.add_feed_forward_length(shape.ffn)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_size)
    writer.add_value_length(shape.head_size)
    writer.add_layer_norm_rms_eps(shape.eps)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_rope_dimension_count(shape.head_size)
    writer.add_vocab_size(shape.vocabulary)


def _add_tokenizer(writer: gguf.GGUFWriter, path: Path) -> None:
    stored = json.loads(path.read_text(encoding="utf-8"))["model"]
    tokens = sorted(stored["vocab"], key=stored["vocab"].__getitem__)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in stored["merges"]]
    kinds = [gguf.TokenType.CONTROL if token in CONTROL else gguf.TokenType.NORMAL for token in tokens]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(CONTROL.index(END_OF_TEXT))
    writer.add_eos_token_id(CONTROL.index(END))
    writer.add_eot_token_id(CONTROL.index(END))
    writer.add_pad_token_id(CONTROL.index(END_OF_TEXT))
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def _size_label(parameters: int) -> str:
    return f"{parameters / 1e6:.1f}M"
