"""References to downloads: ``owner/name``, ``owner/name:Q4_K_M``, a file in a repository, or its address."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from slipstream.models.errors import UsageError
from slipstream.models.hub.types import Quant
from slipstream.models.library.catalog import Catalog, CatalogFile, is_model
from slipstream.models.outside import quoted

_ADDRESS: Final = re.compile(r"^(?:hf:|https?://[^/]+/|hf\.co/|huggingface\.co/)")
_REFERENCE: Final = re.compile(
    r"(?P<repo>[\w.-]+/[\w.-]+)(?:/(?:(?:blob|resolve|tree)/(?P<revision>[^/?#]+))?/?(?P<file>[^:?#]*))?"
    r"(?::(?P<label>[\w.-]+))?(?:[?#].*)?"
)
_HOW: Final = "Write owner/name or owner/name:Q4_K_M, or paste the address of its page."


@dataclass(frozen=True, slots=True)
class Reference:
    """A download that a user named."""

    repo: str  # ``owner/name``
    label: str = ""  # the quantization; empty for the recommended one
    file: str = ""  # the file in the repository; empty to choose by the quantization
    revision: str | None = None  # the commit or branch; None for the newest
    sha256: str = ""  # expected hash of the file from the catalogue; else empty


def reference(text: str, catalog: Catalog) -> Reference:
    """Parses a typed reference; a name without an owner is looked up in the catalogue."""
    text = text.strip()
    bare = _ADDRESS.sub("", text)
    match = _REFERENCE.fullmatch(bare)
    if match:
        file = (match["file"] or "").strip("/")
        if file and not file.endswith(".gguf"):
            raise UsageError(f"{quoted(text, 120)} names no model file.", _HOW)
        return Reference(match["repo"], match["label"] or "", file, match["revision"])
    name, _, label = bare.partition(":")
    known = {
        pair.target.repo: pair.target for pair in catalog.pairs if pair.target.repo and is_model(pair.target, [name])
    }
    if not known:
        near = [pair.target.model for pair in catalog.pairs if name.lower() in pair.target.model.lower() and name]
        hint = f"The catalogue has {', '.join(dict.fromkeys(near[:6]))}." if near else _HOW
        raise UsageError(f"there is no repository {quoted(text, 120)}.", hint)
    file = next(iter(known.values()))
    return in_catalog(file, label)


def in_catalog(file: CatalogFile, label: str = "") -> Reference:
    """A file of the catalogue, or another quantization of the same model."""
    if label and label.lower() != file.quant.lower():
        return Reference(file.repo, label)
    return Reference(file.repo, file.quant, file.file, revision=file.revision or None, sha256=file.sha256)


def chosen(wanted: Reference, quants: Sequence[Quant], best: Quant | None) -> Quant:
    """Chooses the quantization of a reference; ``best`` for a reference without one."""
    if wanted.file:
        for quant in quants:
            if any(file.name.lower() == wanted.file.lower() for file in quant.files):
                return quant
        raise UsageError(f"{wanted.repo} has no file {quoted(wanted.file, 120)}.", _choices(wanted.repo, quants))
    if not wanted.label:
        if best is None:
            raise UsageError(f"{wanted.repo} has no model that can be chatted with.", _choices(wanted.repo, quants))
        return best
    for quant in quants:
        if quant.label.lower() == wanted.label.lower():
            return quant
    ends = [quant for quant in quants if quant.label.lower().endswith(wanted.label.lower()) and not quant.drafts]
    if len(ends) == 1:
        return ends[0]
    raise UsageError(f"{wanted.repo} has no {quoted(wanted.label, 60)}.", _choices(wanted.repo, quants))


def _choices(repo: str, quants: Sequence[Quant]) -> str:
    labels = [quant.label for quant in quants if not quant.drafts]
    if not labels:
        return "Look for a repository whose name ends in -GGUF: slipstream models search."
    return f"It has {', '.join(labels[:12])}{' and more' if len(labels) > 12 else ''}: {repo}:{labels[0]}."
