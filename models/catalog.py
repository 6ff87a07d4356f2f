"""The catalogue: targets and the drafters that are known to fit them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CatalogFile:
    """A model file on the hub, as the catalogue knows it.

    Attributes:
        repo: ``owner/name``.
        file: Its name in the repository; empty where only the repository is known.
        size: Bytes; 0 if not known.
        sha256: In hex, or empty if not known.
        params: Number of parameters, from its name; 0 if not known.
        quant: How its weights are stored; empty if not known.
    """

    repo: str
    file: str = ""
    size: int = 0
    sha256: str = ""
    params: int = 0
    quant: str = ""


@dataclass(frozen=True, slots=True)
class CatalogPair:
    """A target and a drafter for it.

    Attributes:
        id: Its name in the catalogue.
        method: The drafting method.
        target: The model.
        drafter: Its drafter; None where it is inside the target's file.
        family: What people call the target's family, such as ``Qwen3``.
        licence: Of the target, as its publisher states it; empty if not known.
        evidence: How sure it is that the two work together: ``documentation``, ``catalogue``, ``reported`` or
            ``suggested``.
        note: What is worth knowing.
        own: Whether the entry is the owner's, from their own file.
    """

    id: str
    method: str
    target: CatalogFile
    drafter: CatalogFile | None
    family: str = ""
    licence: str = ""
    evidence: str = ""
    note: str = ""
    own: bool = False
