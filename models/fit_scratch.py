"""What is alive at once while a layer computes, in numbers for each token of a pass.

llama.cpp lays the tensors of its graph into one buffer, each in the smallest hole that fits (ggml-alloc), so the buffer
is as large as the worst moment of the graph, and a little larger for holes that nothing fits. The sums below are those
moments, read off its graphs (``src/llama-graph.cpp``, ``src/models``) and held against the buffers that it logs.
"""

from __future__ import annotations

from collections.abc import Mapping

Shapes = Mapping[str, tuple[int, ...]]


def attention(width: int, query: int, keys: int, values: int, latent: int = 0) -> int:
    """With flash attention: the residual, the layer's input, queries and what comes of them, keys and values.

    Args:
        width: Of a hidden state.
        query: Of all queries.
        keys: Of all keys.
        values: Of all values.
        latent: Of all queries of latent attention (MLA), which multiplies in the width of what it keeps.
    """
    return 2 * width + 4 * latent if latent else 2 * width + 2 * query + keys + values


def feed_forward(shapes: Shapes, width: int, query: int, used: int) -> int:
    """The network after attention, whose queries' hole is too small for it.

    Args:
        shapes: The layer's tensors.
        width: Of a hidden state.
        query: Of all queries.
        used: Experts that serve one token.
    """
    found = [0]
    if "ffn_down.weight" in shapes:
        inner = shapes["ffn_down.weight"][0]
        gated = "ffn_gate.weight" in shapes or shapes.get("ffn_up.weight", (0, 0))[1] == 2 * inner
        found.append((3 if gated else 2) * inner + 3 * width + (query if query < inner else 0))
    if "ffn_down_exps.weight" in shapes:
        inner, outer = used * shapes["ffn_down_exps.weight"][0], used * width
        found.append(3 * inner + query + 3 * width + (outer if outer > 2 * inner else 0))
    return max(found)


def recurrent(shapes: Shapes, width: int, groups: int, heads: int) -> int:
    """Convolutions and states; the states themselves are not counted by token.

    Args:
        shapes: The layer's tensors.
        width: Of a hidden state.
        groups: Heads of keys.
        heads: Heads of values.
    """
    if "shortconv.in_proj.weight" in shapes:
        return 3 * width + shapes["shortconv.in_proj.weight"][1]
    if "time_mix_w1.weight" in shapes:
        return 12 * width
    if "ssm_conv1d.weight" not in shapes or "ssm_out.weight" not in shapes:
        return 0
    inner, mixed = shapes["ssm_out.weight"][0], shapes["ssm_conv1d.weight"][1]
    if "ssm_in.weight" in shapes:  # Mamba
        return shapes["ssm_in.weight"][1] + 2 * mixed + inner + 3 * width
    repeated = 2 * inner if heads > groups else 0  # gated delta net: queries and keys, once for each head of values
    return 5 * mixed // 2 + repeated + 2 * width
