"""Names of models: derives them from files, and finds a model by the name that the user typed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from slipstream.models.errors import UsageError
from slipstream.models.gguf.file_name import split_name, stem_of
from slipstream.models.outside import quoted

if TYPE_CHECKING:  # the engine needs no records of what is installed
    from slipstream.models.gguf.reader import Header
    from slipstream.models.library.records import InstalledModel

_HOSTS: Final = ("https://", "http://", "huggingface.co/", "hf.co/")
_SHOWN: Final = 8


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
