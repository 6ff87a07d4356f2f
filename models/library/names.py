"""Names of models: derives them from files, and finds a model by the name that the user typed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from slipstream.models.errors import UsageError
from slipstream.models.outside import quoted

if TYPE_CHECKING:  # the engine needs no records of what is installed
    from slipstream.models.gguf.reader import Header
    from slipstream.models.library.records import InstalledModel

_PART: Final = re.compile(r"-\d{5}-of-\d{5}$")
_LABEL: Final = re.compile(
    r"[-._ ](?P<label>(?:ud[-_])?(?:i?q\d(?:_[0-9a-z]+)*|tq\d_\d|bf16|f16|f32|fp16|fp32|mxfp4(?:_moe)?|nvfp4))$",
    re.IGNORECASE,
)
_NAMELESS: Final = re.compile(r"(?:ggml[-_])?model|.*-[0-9a-f]{12,64}", re.IGNORECASE)  # such as those named by a hash
_SHIPPED: Final = Path(__file__).resolve().parents[1] / "bundled"
_OTHER_WORDS: Final = MappingProxyType({"FP16": "F16", "FP32": "F32"})
_HOSTS: Final = ("https://", "http://", "huggingface.co/", "hf.co/")
_SHOWN: Final = 8


def split_name(stem: str) -> tuple[str, str]:
    """Splits a file's name (without its ending) into the model's name and the label of its quantization.

    >>> split_name("Qwen3-4B-UD-Q4_K_XL-00001-of-00002")
    ('Qwen3-4B', 'UD-Q4_K_XL')
    """
    stem = _PART.sub("", stem)
    match = _LABEL.search(stem)
    if not match:
        return stem, ""
    label = match["label"].upper().replace("UD_", "UD-")
    return stem[: match.start()], _OTHER_WORDS.get(label, label)


def stem_of(path: Path) -> str:
    """A file's name without its ending, in capitals or not."""
    return path.stem if path.suffix.lower() == ".gguf" else path.name


def shown_name(path: Path, name: str = "") -> str:
    """The name of a model for people: its file's without the quantization.

    Args:
        name: The name in its header. It is used if the file's name says nothing, or says the same in lower case;
            others are often those of a training run.
    """
    stem = split_name(stem_of(path))[0]
    same = re.sub(r"[-_. ]+", " ", name.casefold()) == re.sub(r"[-_. ]+", " ", stem.casefold())
    says_more = path.parent.resolve() == _SHIPPED or _NAMELESS.fullmatch(stem) or (same and stem.islower())
    return name if name and says_more else stem


def plain_name(stem: str, quant: str) -> str:
    """Derives a model's name from its file: ``qwen3-4b:Q4_K_M``."""
    base, label = split_name(stem)
    label = label or quant
    return f"{base.lower()}:{label}" if label else base.lower()


def names_of(header: Header, repo: str | None = None, file: str = "") -> list[str]:
    """The names of a model from its header, its file and its repository."""
    names = [header.name, stem_of(header.path), file]
    base, size = (header.metadata.get(f"general.{key}") for key in ("basename", "size_label"))
    tune = header.metadata.get("general.finetune", "")
    if isinstance(base, str) and isinstance(size, str):
        names.append("-".join(part for part in (base, size, str(tune)) if part))
    return [name for name in (*names, repo or "") if name]


def matching(name: str, models: Sequence[InstalledModel]) -> list[InstalledModel]:
    """The models that match a name by the first rule that matches any model.

    The rules, in order: the model's name; its repository with or without the quantization, or its file; its name
    without the quantization; the start of its name.
    """
    wanted = name.strip().lower()
    for host in _HOSTS:
        wanted = wanted.removeprefix(host)
    wanted = wanted.replace("/resolve/main/", "/").replace("/blob/main/", "/")
    base, _, label = wanted.partition(":")
    if not base:
        return []
    rules = (
        lambda model: wanted == model.name.lower(),
        lambda model: wanted in _places(model),
        lambda model: wanted == model.name.lower().partition(":")[0],
        lambda model: _begins(model, base, label),
    )
    for rule in rules:
        if found := [model for model in models if rule(model)]:
            return found
    return []


def find(name: str, models: Sequence[InstalledModel]) -> InstalledModel:
    """The model that matches a name; if several copies of one file match, the first of them."""
    found = matching(name, models)
    if not found:
        raise UsageError(f"there is no model named {quoted(name, 80)}.", _instead(name, models))
    usable = [model for model in found if model.usable] or found
    different = {(model.fingerprint or str(model.path), _shared(model)): model for model in reversed(usable)}
    if len(different) > 1:
        raise UsageError(
            f"{quoted(name, 80)} may mean {len(different)} models.",
            f"Name one of them: {_listed(model.name for model in reversed(different.values()))}.",
        )
    return next(iter(different.values()))


def _shared(model: InstalledModel) -> str:
    """The part of a model's name that is the same for all copies of its file."""
    return model.name.lower().partition("@")[0].rpartition("/")[2]


def _places(model: InstalledModel) -> set[str]:
    places = {model.path.name.lower(), model.path.stem.lower(), str(model.path).lower()}
    if model.repo:
        repo = model.repo.lower()
        places |= {repo, f"{repo}:{model.quant.lower()}", f"{repo}/{model.path.name.lower()}"}
    return places


def _begins(model: InstalledModel, base: str, label: str) -> bool:
    theirs, _, tag = model.name.lower().partition(":")
    names = [theirs, model.repo.lower() if model.repo else "", theirs.partition("_")[2]]
    return any(each.startswith(base) for each in names if each) and (tag.startswith(label) or label in tag.split("-"))


def _instead(name: str, models: Sequence[InstalledModel]) -> str:
    names = {model.name.lower(): model.name for model in models if model.role == "chat"}
    bases = {each.partition(":")[0]: shown for each, shown in names.items()}
    near = get_close_matches(name.lower(), [*names, *bases], n=3, cutoff=0.5)
    shown = dict.fromkeys(({**bases, **names})[each] for each in near) or dict.fromkeys(names.values())
    if "/" in name:
        return f"Fetch it with slipstream models pull {quoted(name, 80)[1:-1]}, or give the path of a .gguf file."
    known = f"Known: {_listed(shown)}; or" if shown else "Fetch one with slipstream models pull, or"
    return f"{known} give the path of a .gguf file."


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
