"""Renders chat templates in a sandbox; this file has the marks around reasoning, and the words that switch it.

In: a template from a model file, and messages. Out: pieces of text, each the template's own or of one message.
May import: ``models.errors``, ``models.outside``.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

CLOSING: Final[Mapping[str, str]] = MappingProxyType(
    {
        "<think>": "</think>",  # Qwen, DeepSeek, GLM, MiniMax M2, SmolLM3 and most others
        "[THINK]": "[/THINK]",  # Magistral, Ministral
        "<|channel>": "<channel|>",  # Gemma 4; the channel's name follows
        "<seed:think>": "</seed:think>",  # Seed-OSS
        "<mm:think>": "</mm:think>",  # MiniMax M3
        "<think:opensource>": "</think:opensource>",  # Hunyuan 3
        "<|START_THINKING|>": "<|END_THINKING|>",  # Command
        "<|inner_prefix|>": "<|inner_suffix|>",  # Apertus
        "◁think▷": "◁/think▷",  # Kimi-VL
        "<thought>": "</thought>",  # EXAONE Deep
        "<|begin_of_thought|>": "<|end_of_thought|>",  # OpenThinker, Sky-T1
    }
)
"""Opening mark to closing mark; gpt-oss's channels are handled separately."""
THINKING: Final = tuple(mark for pair in CLOSING.items() for mark in pair)
"""Templates look for these marks in replies, to drop earlier reasoning from the prompt."""
CHANNEL: Final = "<|channel|>"  # opens a channel of gpt-oss
ANSWER_CHANNEL: Final = "<|end|><|start|>assistant<|channel|>final<|message|>"
"""Closes gpt-oss's analysis channel and opens the final one. Source: OpenAI's harmony format."""
AUTO_LEVEL: Final = "auto"  # the reasoning level at which the template decides
LEVELS: Final = ("off", "on", "low", "medium", "high", "max")  # all other reasoning levels; a template has some of them
SWITCHES: Final = ("/no_think", "/nothink", "/think")
"""Words in a message that turn reasoning off or on in some templates."""


def left_open(prompt: str) -> str:
    """The opening mark of the reasoning that a prompt leaves open; empty if there is none."""
    at, opening = max((prompt.rfind(mark), mark) for mark in CLOSING)
    return opening if at >= 0 and CLOSING[opening] not in prompt[at:] else ""
