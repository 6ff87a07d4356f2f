"""Settings that the command line gives: they win over the file."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from slipstream.app.settings.setting import Value

OPTIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "model": "model.name",
        "drafter": "model.drafter",
        "context": "model.context",
        "gpu_layers": "model.gpu_layers",
        "temp": "sampling.temperature",
        "top_k": "sampling.top_k",
        "top_p": "sampling.top_p",
        "min_p": "sampling.min_p",
        "repetition_penalty": "sampling.repetition_penalty",
        "presence_penalty": "sampling.presence_penalty",
        "typical": "sampling.typical",
        "max_tokens": "reply.max_tokens",
        "read_ahead": "ahead.read",
    }
)
"""The setting that stands behind an option, by the option's name."""


def given(options: Mapping[str, Any]) -> dict[str, Value]:
    """The settings that options set; whether they can be so is for whoever uses them to say.

    Args:
        options: What the command line was read to; None where an option was not given.
    """
    return {name: options[option] for option, name in OPTIONS.items() if options.get(option) is not None}
