"""Typical sizes of models of so many parameters, for those whose header is not at hand."""

from __future__ import annotations

from typing import Final

from slipstream.models.fit_shape import Layer, Shape

_USUAL_BITS: Final = 4.9
"""Of a weight, where the number of parameters is not known: Q4_K_M."""
_FAMILY: Final = (
    # parameters, layers, width, keys of a token, width of the network, tokens
    (0.15e9, 30, 576, 192, 1536, 49_152),  # SmolLM2 135M
    (0.4e9, 32, 960, 320, 2560, 49_152),  # SmolLM2 360M
    (0.8e9, 28, 1024, 1024, 3072, 151_936),  # Qwen3 0.6B
    (1.5e9, 16, 2048, 512, 8192, 128_256),  # Llama 3.2 1B
    (2.2e9, 28, 2048, 1024, 6144, 151_936),  # Qwen3 1.7B
    (3.5e9, 28, 3072, 1024, 8192, 128_256),  # Llama 3.2 3B
    (5.5e9, 36, 2560, 1024, 9728, 151_936),  # Qwen3 4B
    (10e9, 36, 4096, 1024, 12_288, 151_936),  # Qwen3 8B
    (20e9, 40, 5120, 1024, 17_408, 151_936),  # Qwen3 14B
    (50e9, 64, 5120, 1024, 25_600, 151_936),  # Qwen3 32B
    (100e9, 80, 8192, 1024, 28_672, 128_256),  # Llama 3.3 70B
    (float("inf"), 88, 12_288, 1024, 28_672, 32_768),  # Mistral Large 123B
)
"""Dense models of the usual kind; the first one whose limit is not below is taken."""


def rough_shape(size: int, params: int = 0, n_ctx_train: int = 0) -> Shape:
    """Guesses a model's shape.

    Args:
        size: Bytes of its weights.
        params: Number of its parameters; 0 if not known.
        n_ctx_train: Tokens that it was trained on; 0 if not known.
    """
    params = params or round(8 * size / _USUAL_BITS)
    _, layers, width, keys, inner, vocabulary = next(row for row in _FAMILY if params <= row[0])
    embedding = min(size // 4, size * vocabulary * width // max(1, params))
    each = Layer((size - 2 * embedding) // layers, keys, keys, network=3 * inner + 4 * width)
    return Shape(
        layers=(each,) * layers,
        embedding=embedding,
        output=size - embedding - layers * each.weights,
        copied=0,
        width=width,
        vocabulary=vocabulary,
        n_ctx_train=n_ctx_train,
        params=params,
    )
