"""Grammars that a reply must follow."""

from typing import Literal

GrammarKind = Literal["json", "lark", "gbnf"]
"""A JSON schema, a grammar as Lark writes it, or one as llama.cpp does."""
