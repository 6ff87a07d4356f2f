"""Checks whether llama.cpp can draft with a model's MTP layer; it would crash if the layer lacked a tensor."""

from __future__ import annotations

from typing import Final

from slipstream.models.gguf.reader import Header

_EXPERTS: Final = frozenset({"glm4moe", "deepseek2", "qwen35moe"})
"""Architectures whose MTP layer must choose among experts."""
_LATENT: Final = "deepseek2"  # the architecture whose MTP layer must have latent attention (MLA)
MTP_ARCHITECTURES: Final = _EXPERTS | {"qwen35"}
"""Architectures whose MTP graph (``DECODER_MTP`` in llama.cpp's ``src/models``) was tested; llama.cpp has others."""

ASSISTANT: Final = "gemma4-assistant"  # MTP layers in a file of their own, which read the KV cache of
ASSISTED: Final = "gemma4"
HAS_FEATURES: Final = MTP_ARCHITECTURES | {ASSISTED}
"""Architectures whose graphs hand out what MTP layers read, whether or not their own file has such layers."""


def mtp_only(header: Header) -> bool:
    """Whether a file leaves out all layers but those of MTP; llama.cpp, too, looks at the first layer alone."""
    has_trunk = any(tensor.name == "blk.0.attn_norm.weight" for tensor in header.tensors)
    return bool(header.number("nextn_predict_layers")) and not has_trunk and header.architecture in MTP_ARCHITECTURES


def without_mtp(header: Header) -> str:
    """The reason why MTP cannot serve a model, in words that follow "cannot serve this model:"; empty if it can."""
    layers, architecture = header.number("nextn_predict_layers") or 0, header.architecture
    if not layers:
        return "it needs MTP layers, and this model has none"
    if architecture not in MTP_ARCHITECTURES:
        return f"MTP layers of the architecture {architecture} are not supported"
    if layers > 1:
        return f"this model has {layers} MTP layers, and only one is supported"
    at = f"blk.{(header.n_layer or 0) - 1}"
    wanted = {f"{at}.{name}.weight" for name in ("nextn.eh_proj", "nextn.enorm", "nextn.hnorm")}
    if architecture in _EXPERTS:
        wanted.add(f"{at}.ffn_gate_inp.weight")
    if not wanted <= {tensor.name for tensor in header.tensors}:
        return "this file leaves out the model's MTP layers"
    if (header.number("embedding_length_out") or header.n_embd) != header.n_embd:
        return "its MTP layers read features of another width"
    if architecture == _LATENT and not _latent(header):
        return "llama.cpp does not run its MTP layers without latent attention"
    return ""


def _latent(header: Header) -> bool:
    """Whether the attention is the latent one that ``src/models/deepseek2.cpp`` requires."""
    sizes = [f"attention.{name}" for name in ("q_lora_rank", "kv_lora_rank", "key_length_mla", "value_length_mla")]
    dense = header.number("leading_dense_block_count") or 0
    scaled = header.metadata.get(f"{header.architecture}.attention.temperature_scale")
    return all(header.number(size) for size in sizes) and dense < (header.n_layer or 0) and not scaled
