"""What llama.cpp can do with a model's architecture, and with the MTP layers in its file."""

from typing import Final

from slipstream.models.gguf.reader import Header

EXPERTS: Final = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
"""Matches the tensors of a layer's experts with their biases, but not shared experts or the router. Equals
``LLM_FFN_EXPS_REGEX`` of ``common/common.h``."""
LAYER_INPUTS: Final = frozenset(
    {"llama", "qwen3", "qwen3moe", "qwen3next", "qwen35", "qwen35moe", "qwen4exp", "gemma4", "gpt-oss", "lfm2"}
    | {"lfm2moe"}
    | {"nemotron_h", "nemotron_h_moe", "mimo2", "muse-glimmer", "hunyuan_vl", "hunyuan-dense", "nanbeige"}
    | {"minimax-01", "minimax-m2", "bailingmoe3", "deepseek4"}
)
"""Architectures whose graphs provide the inputs of their layers; for any other, llama.cpp aborts the process."""
ROLLS_BACK: Final = frozenset(
    {"kimi-k3", "qwen35", "qwen35moe", "qwen4exp", "deepseek4", "glm5-next", "nemotron_h", "nemotron_h_moe"}
    | {"lfm2", "lfm2moe", "bailingmoe3"}
)
"""Recurrent or hybrid architectures that keep copies of their states (``llm_arch_supports_rs_rollback``)."""
NO_ROLLBACK: Final = frozenset(
    {"mamba", "mamba2", "rwkv6", "rwkv7", "rwkv6qwen2", "arwkv7"}
    | {"jamba", "falcon-h1", "plamo2", "granitehybrid", "qwen3next", "kimi-linear", "minimax-01"}
)
"""Other recurrent or hybrid architectures: they cannot roll back a token, so no drafter works with them."""
_EXPERTS: Final = frozenset({"glm4moe", "deepseek2", "cohere2moe", "qwen35moe"})
"""Architectures whose MTP layer must choose among experts."""
_LATENT: Final = "deepseek2"  # the architecture whose MTP layer must have latent attention (MLA)
_EITHER: Final = frozenset({"hy_v3", "step35"})
"""Architectures whose MTP layers are dense or have experts; files may lack both kinds of tensors."""
_FUSED: Final = "mimo2"  # the architecture whose MTP layers are dense, with one matrix of queries, keys and values
_DENSE: Final = ("ffn_gate", "ffn_up", "ffn_down")
_MIXED: Final = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps", "ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp")
_WHOLE_HEADS: Final = frozenset({"cohere2moe", "hy_v3"})
"""Architectures whose graphs end the process unless RoPE rotates whole heads."""
_SEVERAL: Final = _EITHER | {_FUSED}
"""Architectures that may have several MTP layers, one per future token; here, the first layer drafts all tokens."""
MTP_ARCHITECTURES: Final = _EXPERTS | _SEVERAL | {"qwen35"}
"""Architectures whose MTP graph (``DECODER_MTP`` in llama.cpp's ``src/models``) was tested; llama.cpp has others."""
ASSISTANT: Final = "gemma4-assistant"  # a file of MTP layers that read the KV cache of an ``ASSISTED`` model
ASSISTED: Final = "gemma4"
HAS_FEATURES: Final = MTP_ARCHITECTURES | {ASSISTED}
"""Architectures whose graphs provide the features that MTP layers read, with or without such layers in their file."""


def mtp_only(header: Header) -> bool:
    """Whether a file has MTP layers only; like llama.cpp, this looks for the first layer."""
    has_trunk = "blk.0.attn_norm.weight" in header.by_name
    return bool(header.number("nextn_predict_layers")) and not has_trunk and header.architecture in MTP_ARCHITECTURES


def without_mtp(header: Header) -> str:
    """Why MTP does not work with a model, to follow "does not work with this model:"; empty if it does."""
    layers, architecture = header.number("nextn_predict_layers") or 0, header.architecture
    if not layers:
        return "it needs MTP layers, and this model has none"
    if architecture not in MTP_ARCHITECTURES:
        return f"MTP layers of the architecture {architecture} are not supported"
    if layers > 1 and architecture not in _SEVERAL:
        return f"this model has {layers} MTP layers, and only one is supported"
    if not _tensors_wanted(header, f"blk.{(header.n_layer or 0) - layers}") <= header.by_name.keys():
        return "this file leaves out the model's MTP layers"
    if architecture in _WHOLE_HEADS and not _rotates_whole_heads(header):
        return "llama.cpp does not run its MTP layers where heads are rotated in part"
    if (header.number("embedding_length_out") or header.n_embd) != header.n_embd:
        return "its MTP layers read features of another width"
    if architecture == _LATENT and not _latent(header):
        return "llama.cpp does not run its MTP layers without latent attention"
    return ""


def _tensors_wanted(header: Header, layer: str) -> set[str]:
    """The tensors that llama.cpp uses in an MTP layer without checking that the file has them."""
    wanted = ["nextn.eh_proj", "nextn.enorm", "nextn.hnorm"]
    mixed = f"{layer}.ffn_gate_inp.weight" in header.by_name
    if header.architecture in _EXPERTS:
        wanted.append("ffn_gate_inp")
    elif header.architecture == _FUSED:
        wanted += ["attn_qkv", *_DENSE]
    elif header.architecture in _EITHER:
        wanted += _MIXED if mixed else _DENSE
    if f"{layer}.ffn_gate_up_exps.weight" in header.by_name:
        wanted = [name for name in wanted if name not in ("ffn_gate_exps", "ffn_up_exps")]
    return {f"{layer}.{name}.weight" for name in wanted}


def _rotates_whole_heads(header: Header) -> bool:
    size = header.number("attention.key_length") or (header.n_embd or 0) // (header.number("attention.head_count") or 1)
    return all(header.number(key) in (None, size) for key in ("attention.value_length", "rope.dimension_count"))


def _latent(header: Header) -> bool:
    """Whether the model has the latent attention that ``src/models/deepseek2.cpp`` requires."""
    sizes = [f"attention.{name}" for name in ("q_lora_rank", "kv_lora_rank", "key_length_mla", "value_length_mla")]
    dense = header.number("leading_dense_block_count") or 0
    scaled = header.metadata.get(f"{header.architecture}.attention.temperature_scale")
    return all(header.number(size) for size in sizes) and dense < (header.n_layer or 0) and not scaled
