"""Grammars that a reply must follow."""

from typing import Literal

GrammarKind = Literal["json", "lark", "gbnf"]
"""A JSON schema, or a grammar in the notation of Lark or of llama.cpp."""
