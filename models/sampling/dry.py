"""DRY: a token becomes less likely the longer the repetition that it would continue.

Source: p-e-w's "DRY" for text-generation-webui (pull request 5677), as llama.cpp's sampler computes it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from slipstream.models.types import Token

BREAKERS: Final = (b"\n", b":", b'"', b"*")
"""A token that contains one of these ends a repetition: they structure lists, names and dialogue."""

LONGEST: Final = 64
"""Maximum counted length of a repetition; the penalty of much shorter ones already exceeds any logit."""


def repetitions(tokens: Sequence[Token], breakers: Collection[Token], least: int) -> dict[Token, int]:
    """Finds the tokens that would continue a repetition at the end of the text.

    Args:
        least: Shortest repetition that counts, in tokens.

    Returns:
        Each such token with the length of the longest repetition that it would continue.
    """
    end = len(tokens)
    longest = 0
    while longest < min(LONGEST, end) and tokens[end - 1 - longest] not in breakers:
        longest += 1
    found: dict[Token, int] = {}
    if longest < max(least, 1):
        return found
    last = tokens[-1]
    for place, token in enumerate(tokens[:-1], 1):  # ``place`` is the index of the following token
        if token != last:
            continue
        size = 1
        while size < min(longest, place) and tokens[place - 1 - size] == tokens[end - 1 - size]:
            size += 1
        if size >= least and size > found.get(tokens[place], 0):
            found[tokens[place]] = size
    return found
