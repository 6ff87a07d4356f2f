"""The sampling settings that a model's authors recommend in its GGUF header."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from slipstream.models.errors import UsageError
from slipstream.models.sampling.sampler import Sampler

_KEYS: Final = MappingProxyType(
    {
        "temp": "temperature",
        "top_k": "top_k",
        "top_p": "top_p",
        "min_p": "min_p",
        "penalty_repeat": "repetition_penalty",
    }
)
"""Header keys below ``general.sampling.``, converted from generation_config.json, to fields of ``Sampler``."""
_LARGEST: Final = MappingProxyType(
    {"temperature": 10.0, "top_k": 1e6, "top_p": 1.0, "min_p": 1.0, "repetition_penalty": 100.0}
)
"""Largest accepted values: the file is not trusted."""


def recommended(metadata: Mapping[str, object]) -> dict[str, float]:
    """The recommended values of a header by field of ``Sampler``, without invalid ones.

    If top-k or top-p is given without min-p, min-p is off.
    """
    named = {field: metadata.get(f"general.sampling.{key}") for key, field in _KEYS.items()}
    return checked({field: value for field, value in named.items() if isinstance(value, int | float)})


def checked(values: Mapping[str, float]) -> dict[str, float]:
    """Leaves out values that ``Sampler`` would reject, and adds min-p; see ``recommended``."""
    found: dict[str, float] = {}
    for field, value in values.items():
        if isinstance(value, bool) or not abs(value) <= _LARGEST[field]:  # also true of a NaN
            continue
        number = max(int(value), 0) if field == "top_k" else round(float(value), 6)  # removes single-precision error
        try:
            Sampler(**{field: number})  # type: ignore[arg-type]
        except UsageError:
            continue
        found[field] = number
    if found.keys() & {"top_k", "top_p"}:
        found.setdefault("min_p", 0.0)
    return found
