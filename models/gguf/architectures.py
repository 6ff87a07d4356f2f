"""What llama.cpp can do with each architecture, from the vendored graphs (``src/models``)."""

from __future__ import annotations

from typing import Final

EXPERTS: Final = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
"""Matches the tensors of a layer's experts with their biases, but not shared experts or the router. Equals
``LLM_FFN_EXPS_REGEX`` of ``common/common.h``."""

LAYER_INPUTS: Final = frozenset(
    {
        "llama",
        "qwen3",
        "qwen3moe",
        "qwen3next",
        "qwen35",
        "qwen35moe",
        "qwen4exp",
        "gemma4",
        "gpt-oss",
        "lfm2",
        "lfm2moe",
    }
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
