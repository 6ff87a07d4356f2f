"""Background commands of the drafters screen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

TRAINED: Final = ("medusa", "kangaroo", "space", "eagle3", "dflash")
"""Trainable methods: a copy of ``slipstream.models.heads.matching_heads.TRAINED``, whose import is slow."""


@dataclass(frozen=True, slots=True)
class Work:
    """A command that runs in the background.

    Attributes:
        title: Beginning of a sentence, such as "Training medusa".
        arguments: The arguments of ``slipstream``.
        cancelled: Message after a cancellation.
    """

    title: str
    arguments: tuple[str, ...]
    cancelled: str


def training(method: str, model: str, text: str, tokens: int) -> Work:
    return Work(
        f"Training {method}",
        ("drafters", "train", method, "-m", model, "--on", text, "--tokens", str(tokens)),
        "The same training goes on where it was stopped.",
    )


def importing(path: str, model: str) -> Work:
    return Work("Importing heads", ("drafters", "import", path, "-m", model), "Nothing was imported.")


def indexing(path: str, model: str) -> Work:
    arguments = ("drafters", "index", path, "-m", model, "--progress")
    return Work("Indexing", arguments, "What was read is kept; the same folder goes on.")
