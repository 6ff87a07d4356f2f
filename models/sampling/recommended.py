"""The sampling that a model's makers recommend, as its file names it."""

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
"""Keys behind ``general.sampling.``, which conversion writes from generation_config.json, and fields of ``Sampler``."""
_LARGEST: Final = MappingProxyType(
    {"temperature": 10.0, "top_k": 1e6, "top_p": 1.0, "min_p": 1.0, "repetition_penalty": 100.0}
)
"""What a file may ask for at most: it is not trusted."""


def recommended(metadata: Mapping[str, object]) -> dict[str, float]:
    """Reads the keys of a header.

    A file that names top-k or top-p but no min-p was meant without it. Values that cannot be are left out.

    Args:
        metadata: The header's keys and values.

    Returns:
        Fields of ``Sampler``, by name; empty where the file recommends nothing.
    """
    named = {field: metadata.get(f"general.sampling.{key}") for key, field in _KEYS.items()}
    return checked({field: value for field, value in named.items() if isinstance(value, int | float)})


def checked(values: Mapping[str, float]) -> dict[str, float]:
    """Fields of ``Sampler`` without those that it would refuse, and with min-p; see ``recommended``."""
    found: dict[str, float] = {}
    for field, value in values.items():
        if isinstance(value, bool) or not abs(value) <= _LARGEST[field]:  # a NaN is not
            continue
        number = max(int(value), 0) if field == "top_k" else round(float(value), 6)  # from single precision
        try:
            Sampler(**{field: number})  # type: ignore[arg-type]
        except UsageError:
            continue
        found[field] = number
    if found.keys() & {"top_k", "top_p"}:
        found.setdefault("min_p", 0.0)
    return found
