"""Sorts a repository's files into what people download as one thing."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from slipstream.models.hub_types import Quant, RemoteFile

_LABEL: Final = re.compile(
    r"""(?<![A-Za-z0-9])
    (?: (?:UD-)? (?:
            IQ\d_(?:XXS|XS|NL|S|M|L|K[A-Z]*) | Q\d_K(?:_(?:XXS|XS|XL|S|M|L|P))? | Q\d_[01](?:_\d_\d)?
          | TQ\d_0 | MXFP\d(?:_MOE)? | NVFP\d )
      | BF16 | FP?16 | FP?32 | Q\d )
    (?![A-Za-z0-9])""",
    re.IGNORECASE | re.VERBOSE,
)
_SPLIT: Final = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
_NO_MODEL: Final = re.compile(r"mmproj|imatrix|(?<![a-z])lora(?![a-z])", re.IGNORECASE)
_DRAFTS: Final = re.compile(r"(?:^|/)mtp[-_/]|(?<![a-z0-9])(?:dflash|eagle-?3|dspark)(?![a-z])", re.IGNORECASE)


def label_of(name: str) -> str:
    """The quantization that a file's name tells of, as people write it; empty if it tells of none.

    The last one in the file's own name counts, then the last of its folders'.
    """
    folder, _, base = name.rpartition("/")
    for text in (base, folder):
        found = _LABEL.findall(text)
        if found:
            label = str(found[-1]).upper()
            return {"FP16": "F16", "FP32": "F32"}.get(label, label)
    return ""


def quants_of(files: Iterable[RemoteFile]) -> list[Quant]:
    """Groups files into quantizations, smallest first; one whose parts are not all there is left out.

    Projectors (``mmproj``), importance matrices and LoRA adapters are no models and left out too.
    """
    groups: dict[tuple[str, int], dict[int, RemoteFile]] = {}
    for file in files:
        if not file.name.lower().endswith(".gguf") or _NO_MODEL.search(file.name.rpartition("/")[2]):
            continue
        match = _SPLIT.fullmatch(file.name)
        key = (match["stem"], int(match["count"])) if match else (file.name[: -len(".gguf")], 1)
        groups.setdefault(key, {})[int(match["number"]) if match else 1] = file
    whole = [
        (stem, tuple(parts[number] for number in range(1, count + 1)))
        for (stem, count), parts in groups.items()
        if sorted(parts) == list(range(1, count + 1))
    ]
    whole.sort(key=lambda group: (group[0].count("/"), len(group[0]), group[0]))
    taken: set[str] = set()
    quants = [_quant(stem, parts, taken) for stem, parts in whole]
    return sorted(quants, key=lambda quant: (quant.drafts, quant.size, quant.label))


def _quant(stem: str, parts: tuple[RemoteFile, ...], taken: set[str]) -> Quant:
    drafts = bool(_DRAFTS.search(stem))
    label, base = label_of(stem), stem.rpartition("/")[2]
    for choice in ("" if drafts else label, base, stem):  # the plainest name that is still free
        if choice and choice not in taken:
            break
    taken.add(choice)
    return Quant(choice, parts, sum(file.size for file in parts), drafts)
