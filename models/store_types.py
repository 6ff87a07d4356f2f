"""What is known of a model on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Origin = Literal["ours", "bundled", "hf-cache", "lmstudio", "ollama", "llama.cpp"]
"""Whose folder a model lies in: ours, the package's, or that of another program."""

Role = Literal["chat", "drafter", "other"]
"""What a file is good for: a model to chat with, heads that only draft for another model, or neither (a projector)."""


@dataclass(frozen=True, slots=True)
class Installed:
    """A model on this machine; a broken one is listed too, and says what is wrong with it.

    Attributes:
        name: What people call it: ``qwen3-4b:Q4_K_M``. No two models of a list have the same.
        path: Its file, or the first of a split model.
        files: All its files, ``path`` first; of a file that is a link the link, not what it leads to.
        size: Bytes of all files.
        sha256: In hex, where it is known; of a split model that of the first file.
        origin: Whose folder it lies in.
        repo: The repository on the hub that it is from, as ``owner/name``, where it is known.
        quant: How its weights are stored, such as ``Q4_K_M``; empty if neither its name nor its header says.
        architecture: ``general.architecture``; empty for a broken file.
        params: Number of its parameters.
        context: Tokens of context that it was trained with.
        title: The name that its header gives; not fit for a terminal as it is.
        fingerprint: As ``Header.fingerprint``: chats know their model by it. Empty for a broken file.
        role: What it is good for.
        n_vocab: Number of tokens in its vocabulary.
        vocabulary: As ``vocabulary_digest``; empty for a broken file.
        problem: What is wrong with it, in a sentence; empty if nothing is known to be.
        hint: What to do about the problem.
    """

    name: str
    path: Path
    files: tuple[Path, ...]
    size: int
    sha256: str | None
    origin: Origin
    repo: str | None
    quant: str
    architecture: str
    params: int
    context: int
    title: str = ""
    fingerprint: str = ""
    role: Role = "chat"
    n_vocab: int = 0
    vocabulary: str = ""
    problem: str = ""
    hint: str = ""

    @property
    def usable(self) -> bool:
        """Whether one can chat with it, as far as its header tells."""
        return self.role == "chat" and not self.problem

    @property
    def foreign(self) -> bool:
        """Whether another program owns it, so that it is used in place and never deleted."""
        return self.origin not in ("ours", "bundled")


@dataclass(frozen=True, slots=True)
class Checked:
    """What a look at every byte of a model found.

    Attributes:
        model: The model.
        sha256: Of each file, as it is now.
        expected: Of each file, as it should be; None where nobody knows.
        problem: What is wrong, in a sentence; empty if nothing is.
        hint: What to do about it.
    """

    model: Installed
    sha256: tuple[str, ...]
    expected: tuple[str | None, ...]
    problem: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Removed:
    """A model that was put into the trash.

    Attributes:
        name: What it was called.
        freed: Bytes that the disk gets back when the trash is emptied; links hold none.
        files: Where its files were.
    """

    name: str
    freed: int
    files: tuple[Path, ...]
