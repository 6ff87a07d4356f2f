"""What llama.cpp can do with the models of each architecture, read off its graphs (``src/models``) as vendored."""

from __future__ import annotations

from typing import Final

EXPERTS: Final = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
"""In the names of the tensors that hold a layer's experts, one behind the other, biases included; shared experts and
the router are not among them. As ``LLM_FFN_EXPS_REGEX`` of ``common/common.h``."""

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
"""Their graphs hand out the inputs of their layers; asking another one aborts the process."""

ROLLS_BACK: Final = frozenset(
    {"kimi-k3", "qwen35", "qwen35moe", "qwen4exp", "deepseek4", "glm5-next", "nemotron_h", "nemotron_h_moe"}
    | {"lfm2", "lfm2moe", "bailingmoe3"}
)
"""Recurrent or hybrid ones that keep copies of their states (``llm_arch_supports_rs_rollback``)."""

NO_ROLLBACK: Final = frozenset(
    {"mamba", "mamba2", "rwkv6", "rwkv7", "rwkv6qwen2", "arwkv7"}
    | {"jamba", "falcon-h1", "plamo2", "granitehybrid", "qwen3next", "kimi-linear", "minimax-01"}
)
"""The other recurrent and hybrid ones: they cannot take back a token, so that nothing can draft for them."""
