"""DRY: the more of the text a token would repeat, the less likely it becomes.

Source: p-e-w's "DRY" for text-generation-webui (pull request 5677), as llama.cpp's sampler computes it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from slipstream.models.types import Token

BREAKERS: Final = (b"\n", b":", b'"', b"*")
"""No repetition goes across a token that holds one of these: they are the layout of lists, names and speech."""

LONGEST: Final = 64
"""Tokens of a repetition that are counted: the penalty is beyond any logit long before."""


def repetitions(tokens: Sequence[Token], breakers: Collection[Token], least: int) -> dict[Token, int]:
    """Finds the tokens that would go on with a repetition of the text's end.

    Args:
        tokens: The text.
        breakers: Tokens that no repetition goes across.
        least: Shortest repetition that counts, in tokens.

    Returns:
        Each such token with the length of the longest repetition that it would go on with.
    """
    end = len(tokens)
    longest = 0
    while longest < min(LONGEST, end) and tokens[end - 1 - longest] not in breakers:
        longest += 1
    found: dict[Token, int] = {}
    if longest < max(least, 1):
        return found
    last = tokens[-1]
    for place, token in enumerate(tokens[:-1], 1):  # ``place`` is that of the token behind it
        if token != last:
            continue
        size = 1
        while size < min(longest, place) and tokens[place - 1 - size] == tokens[end - 1 - size]:
            size += 1
        if size >= least and size > found.get(tokens[place], 0):
            found[tokens[place]] = size
    return found
