"""References to downloads: ``owner/name``, ``owner/name:Q4_K_M``, a file in a repository, or its address."""

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
    named = (pair.target for pair in catalog.pairs if pair.target.repo and is_model(pair.target, [name]))
    known = next(named, None)
    if known is None:
        near = [pair.target.model for pair in catalog.pairs if name.lower() in pair.target.model.lower() and name]
        hint = f"The catalogue has {', '.join(dict.fromkeys(near[:6]))}." if near else _HOW
        raise UsageError(f"there is no repository {quoted(text, 120)}.", hint)
    return in_catalog(known, label)


def in_catalog(file: CatalogFile, label: str = "") -> Reference:
    """A file of the catalogue, or another quantization of the same model."""
    if label and label.lower() != file.quant.lower():
        return Reference(file.repo, label)
    return Reference(file.repo, file.quant, file.file, revision=file.revision or None, sha256=file.sha256)


def chosen(wanted: Reference, quants: Sequence[Quant], best: Quant | None) -> Quant:
    file, label = wanted.file.lower(), wanted.label.lower()
    if file:
        found = [quant for quant in quants if any(each.name.lower() == file for each in quant.files)]
        what = f"file {quoted(wanted.file, 120)}"
    elif not label:
        found, what = [best] if best else [], "model that can be chatted with"
    else:
        ends = [quant for quant in quants if quant.label.lower().endswith(label) and not quant.drafts]
        found = [quant for quant in quants if quant.label.lower() == label] or (ends if len(ends) == 1 else [])
        what = quoted(wanted.label, 60)
    if not found:
        raise UsageError(f"{wanted.repo} has no {what}.", _choices(wanted.repo, quants))
    return found[0]


def _choices(repo: str, quants: Sequence[Quant]) -> str:
    labels = [quant.label for quant in quants if not quant.drafts]
    if not labels:
        return "Look for a repository whose name ends in -GGUF: slipstream models search."
    return f"It has {', '.join(labels[:12])}{' and more' if len(labels) > 12 else ''}: {repo}:{labels[0]}."
