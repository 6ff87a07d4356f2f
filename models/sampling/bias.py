"""Logit biases: parses the user's list, and converts it to token ids of a model."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from slipstream.models.errors import UsageError
from slipstream.models.outside import quoted

if TYPE_CHECKING:  # it loads numpy, which reading settings does not need
    from slipstream.models.types import Token

_MOST: Final = 100.0
_ENTRY: Final = re.compile(
    r'\s*(?P<token>"(?:[^"\\]|\\.)+"|[^",=\s](?:[^",=]*[^",=\s])?)\s*=\s*'
    r"(?P<value>[+-]?(?:inf|[0-9]+(?:\.[0-9]+)?))\s*(?:,|$)"
)


def entries_of(text: str) -> list[tuple[Token | str, float]]:
    """Parses a list such as ``the=-2, " fox"=1.5, 123=-inf``.

    Returns:
        Each token as its id or its text, and the bias of its logit. A text needs double quotes if it starts or ends
        with a space, contains a comma, a quote or ``=``, or is a number.
    """
    found: list[tuple[Token | str, float]] = []
    at = 0
    while at < len(text):
        entry = _ENTRY.match(text, at)
        try:
            token, value = (entry["token"], float(entry["value"])) if entry else ("", math.nan)
            number = token.isascii() and token.isdigit() and len(token) < 10
            name = json.loads(token) if token.startswith('"') else int(token) if number else token
        except ValueError:
            value = math.nan
        if not entry or not (-_MOST <= value <= _MOST or value == -math.inf):
            raise UsageError(
                f"logit-bias cannot be read from {quoted(text[at:], 40)}.",
                'Write tokens and numbers from -100 to 100, or -inf, such as the=-2, " fox"=1.5, 123=-inf.',
            )
        found.append((name, value))
        at = entry.end()
    return found


def bias_of(text: str, tokenize: Callable[[str], list[Token]], n_vocab: int) -> tuple[tuple[Token, float], ...]:
    """The token ids of a list and the biases of their logits."""
    found: list[tuple[Token, float]] = []
    for name, value in entries_of(text):
        tokens = [name] if isinstance(name, int) else tokenize(name)
        if len(tokens) != 1:
            raise UsageError(
                f"logit-bias: {quoted(str(name))} is {len(tokens)} tokens of this model, not one.",
                f"Name one token; its parts are {', '.join(map(str, tokens[:8]))}.",
            )
        if not 0 <= tokens[0] < n_vocab:
            raise UsageError(f"logit-bias: this model has no token {name}.", f"Its tokens are 0 to {n_vocab - 1:,}.")
        found.append((tokens[0], value))
    return tuple(found)
