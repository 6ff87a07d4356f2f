"""Grammars that a reply must follow.

In: a JSON schema or a grammar, and a vocabulary. Out: the tokens that may follow.
May import: ``models.types``, ``models.errors``.
"""

from typing import Final, Literal

GrammarKind = Literal["json", "lark", "gbnf"]  # a JSON schema, or a grammar in the notation of Lark or of llama.cpp
MOST_BYTES: Final = 256 << 10  # maximum size of a schema or a grammar
