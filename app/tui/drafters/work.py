"""Work that the drafters screen can begin, as commands that run beside the chat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

TRAINED: Final = ("medusa", "kangaroo", "space")
"""Methods whose heads can be trained: ``slipstream.models.heads.check.METHODS``, which takes long to import."""


@dataclass(frozen=True, slots=True)
class Work:
    """A command.

    Attributes:
        title: What it does, as a sentence's beginning.
        arguments: What follows ``slipstream`` on the command line.
        cancelled: What is said once it was cancelled.
    """

    title: str
    arguments: tuple[str, ...]
    cancelled: str


def training(method: str, model: str, text: str, tokens: int) -> Work:
    """Trains heads for a model."""
    return Work(
        f"Training {method}",
        ("drafters", "train", method, "-m", model, "--on", text, "--tokens", str(tokens)),
        "The same training goes on where it was stopped.",
    )


def importing(path: str, model: str) -> Work:
    """Imports published heads for a model."""
    return Work("Importing heads", ("drafters", "import", path, "-m", model), "Nothing was imported.")


def indexing(path: str, model: str) -> Work:
    """Indexes a folder for models of a vocabulary."""
    arguments = ("drafters", "index", path, "-m", model, "--progress")
    return Work("Indexing", arguments, "What was read is kept; the same folder goes on.")
