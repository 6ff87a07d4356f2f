"""The catalogue of targets and their drafters: the package's entries and the user's.

The user's file has the format of ``catalog.toml``. Its first mistake is reported with the line; the entries before the
mistake are used.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from slipstream.models.gguf.file_name import split_name
from slipstream.models.gguf.rope import RopeScaling
from slipstream.models.outside import is_sha256, parse_toml, quoted, read_limited, shown_path

_MOST_BYTES: Final = 1 << 20
_REPO: Final = re.compile(r"[\w.-]+/[\w.-]+")
_PARAMS: Final = re.compile(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)([bm])(?![a-z0-9])", re.IGNORECASE)
_ACTIVE: Final = re.compile(r"[-_]([AE])(\d+(?:\.\d+)?)B(?![a-z0-9])", re.IGNORECASE)
# approximate bits per weight, embeddings included, from files whose size is known
_BITS: Final = MappingProxyType(
    {"Q4_K_M": 4.9, "UD-Q4_K_M": 4.9, "UD-Q4_K_XL": 5.0, "Q4_0": 4.6, "Q8_0": 8.5, "MXFP4": 4.9, "F16": 16.0}
)
_NEUTRAL: Final = frozenset({"gguf", "qwen", "meta", "google", "mistralai", "ggml", "unsloth", "hf", "it", "instruct"})
"""Words that a repository adds to a model's name without naming another model."""
_MOST_FACTOR: Final = 1024
_SAMPLING: Final = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True)
class CatalogFile:
    model: str  # the model's name: ``Qwen3-8B``
    repo: str = ""  # ``owner/name``; empty if unknown
    file: str = ""  # its name in the repository; empty if unknown
    size: int = 0  # length in bytes; 0 if unknown
    sha256: str = ""  # hash in hex; empty if unknown
    revision: str = ""  # commit of the repository that has this file; empty for the newest
    active: int = 0  # parameters that a token uses, as stated in its entry; 0 if not stated

    @property
    def params(self) -> int:
        """Number of parameters, from the model's name; 0 if unknown."""
        match = _PARAMS.search(self.model)
        return round(float(match[1]) * (1e9 if match[2].lower() == "b" else 1e6)) if match else 0

    @property
    def used(self) -> int:
        """Parameters that a token uses, as stated or from the name, such as ``35B-A3B``; 0 if it uses all of them."""
        match = _ACTIVE.search(self.model)
        return self.active or (round(float(match[2]) * 1e9) if match else 0)

    @property
    def experts(self) -> bool:
        """Whether the parameters that a token does not use are experts; otherwise they are embeddings."""
        match = _ACTIVE.search(self.model)
        return bool(self.active or (match and match[1].upper() == "A"))

    @property
    def quant(self) -> str:
        return split_name(self.file.rpartition("/")[2].removesuffix(".gguf"))[1]

    @property
    def about(self) -> int:
        """Length in bytes; if unknown, an estimate from the number of parameters; 0 if that is unknown too."""
        return self.size or round(self.params * _BITS.get(self.quant, 0.0) / 8)


@dataclass(frozen=True, slots=True)
class CatalogPair:
    id: str  # its name in the catalogue
    method: str  # the drafting method
    target: CatalogFile
    drafter: CatalogFile | None  # its drafter; None if it is inside the target's file
    family: str = ""  # the target's family, such as ``Qwen3``
    licence: str = ""  # the target's licence as its publisher states it; empty if unknown
    # the evidence that the two work together: ``documentation``, ``catalogue``, ``reported`` or ``suggested``
    evidence: str = ""
    note: str = ""
    first: bool = False  # whether the first screen offers it: it is small, and drafters for it ship with Slipstream
    own: bool = False  # whether the entry is from the user's file

    @property
    def untested(self) -> bool:
        """Whether evidence that the pair works is missing, or its note says it is for tests; it is not suggested."""
        return self.evidence == "suggested" or "for tests" in self.note


@dataclass(frozen=True, slots=True)
class CatalogSampling:
    """The sampling that suits a family, or a model."""

    family: str  # the models' name without their sizes: ``gemma-3``; with a size it is about that model alone
    values: Mapping[str, float]  # fields of ``Sampler``, by name
    note: str = ""  # source of the recommendation


@dataclass(frozen=True, slots=True)
class CatalogContext:
    """The RoPE scaling that a model's makers recommend for contexts longer than the trained one."""

    models: tuple[str, ...]  # the models' names: ``Qwen3-8B``
    scaling: RopeScaling
    note: str = ""  # source of the recommendation


@dataclass(frozen=True, slots=True)
class Catalog:
    """All pairs, the user's first."""

    pairs: tuple[CatalogPair, ...]
    problem: str = ""  # the first mistake in the user's file, with its line; empty if there is none
    samplings: tuple[CatalogSampling, ...] = ()  # recommended samplings, the user's first
    contexts: tuple[CatalogContext, ...] = ()  # scalings for long contexts, the user's first

    def of(self, names: Iterable[str], sha256: str | None = None) -> list[CatalogPair]:
        names = list(names)
        return [pair for pair in self.pairs if is_model(pair.target, names, sha256)]

    def sampling(self, names: Iterable[str]) -> dict[str, float]:
        """The recommended sampling of a model, by field of ``Sampler``; empty if unknown."""
        wanted = [_words(name) for name in names]
        for entry in self.samplings:
            family = _words(entry.family)
            if any(family in (words, words[:-1]) and _PARAMS.fullmatch(words[-1]) for words in wanted if words):
                return dict(entry.values)
        return {}

    def scaling(self, names: Iterable[str]) -> RopeScaling | None:
        """The scaling for contexts longer than a model's trained one; None if unknown."""
        wanted = [_words(name) for name in names]
        found = (each.scaling for each in self.contexts if any(_words(name) in wanted for name in each.models))
        return next(found, None)


def catalog(own: Path | None = None) -> Catalog:
    mine, problem = Catalog(()), ""
    if own:
        try:
            mine = _read(read_limited(own, _MOST_BYTES), shown_path(own))
        except FileNotFoundError:
            pass
        except OSError as error:
            problem = f"{shown_path(own)} cannot be read: {error.strerror or error}."
    shipped = _shipped()
    return Catalog(
        (*(replace(pair, own=True) for pair in mine.pairs), *shipped.pairs),
        mine.problem or problem,
        (*mine.samplings, *shipped.samplings),
        (*mine.contexts, *shipped.contexts),
    )


def is_model(file: CatalogFile, names: Iterable[str], sha256: str | None = None) -> bool:
    """Whether an entry is about a model with one of ``names``, or whose file has the hash ``sha256``."""
    if file.sha256 and file.sha256 == sha256:
        return True
    wanted = _words(file.model)
    return bool(wanted) and any(_words(name) == wanted for name in names)


def _words(name: str) -> tuple[str, ...]:
    """The words of a model's name that distinguish it."""
    name = split_name(name.rpartition("/")[2])[0]
    return tuple(word for word in re.split(r"[-_ ]+", name.lower()) if word and word not in _NEUTRAL)


@cache
def _shipped() -> Catalog:
    raw = resources.files("slipstream.models.library").joinpath("catalog.toml").read_bytes()
    shipped = _read(raw, "catalog.toml")
    if shipped.problem:
        raise ValueError(shipped.problem)
    return shipped


def _read(raw: bytes, name: str) -> Catalog:
    try:
        found, text = parse_toml(raw), raw.decode()
    except UnicodeDecodeError:
        return Catalog((), f"{name} cannot be read: it is not UTF-8.")
    except ValueError as error:
        return Catalog((), f"{name} is no TOML file: {error}.")
    readers: dict[str, Callable[[dict[str, Any]], Any]] = {"pair": _pair, "sampling": _sampling, "context": _context}
    if unknown := [key for key in found if key not in readers]:
        return Catalog((), f"{name}, line {_line(text, unknown[0])}: there is no {quoted(unknown[0])} in a catalogue.")
    good: dict[str, list[Any]] = {kind: [] for kind in readers}

    def problem() -> str:
        for kind, reader in readers.items():
            entries = found.get(kind, [])
            if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
                return f"{name}, line {_line(text, kind)}: {kind}s are written as [[{kind}]]."
            for number, entry in enumerate(entries):
                try:
                    good[kind].append(reader(entry))
                except _WrongError as error:
                    return f"{name}, line {_line(text, error.key, number, kind)}: {error.reason}."
        return ""

    wrong = problem()
    return Catalog(tuple(good["pair"]), wrong, tuple(good["sampling"]), tuple(good["context"]))


class _WrongError(Exception):
    def __init__(self, key: str, reason: str) -> None:
        super().__init__(reason)
        self.key, self.reason = key, reason


def _pair(entry: dict[str, Any]) -> CatalogPair:
    known = {field.name for field in fields(CatalogPair)} - {"own"}
    _only(entry, known)
    texts: dict[str, Any] = {key: _text(entry, key) for key in known - {"target", "drafter", "first"}}
    if not texts["method"]:
        raise _WrongError("method", "a pair needs a method, such as draft")
    if "target" not in entry:
        raise _WrongError("", "a pair needs a target")
    target = _file(entry, "target")
    drafter = _file(entry, "drafter") if "drafter" in entry else None
    if drafter is None and texts["method"] == "draft":
        raise _WrongError("method", "a pair whose method is draft needs a drafter")
    texts["id"] = texts["id"] or f"{target.model}+{drafter.model if drafter else texts['method']}".lower()
    first = entry.get("first", False)
    if not isinstance(first, bool):
        raise _WrongError("first", "first is not true or false")
    return CatalogPair(target=target, drafter=drafter, first=first, **texts)


def _sampling(entry: dict[str, Any]) -> CatalogSampling:
    _only(entry, {"family", "note", *_SAMPLING})
    family = _text(entry, "family")
    if not family:
        raise _WrongError("family", "a sampling needs a family: the name of its models without their sizes")
    values: dict[str, Any] = {key: entry[key] for key in _SAMPLING if key in entry}
    for key, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _WrongError(key, f"{key} is not a number")
    return CatalogSampling(family, MappingProxyType(values), _text(entry, "note"))


def _context(entry: dict[str, Any]) -> CatalogContext:
    _only(entry, {"models", "scaling", "factor", "trained", "note"})
    models, kind, factor, trained = (entry.get(key) for key in ("models", "scaling", "factor", "trained"))
    if not isinstance(models, list) or not models or not all(isinstance(name, str) for name in models):
        raise _WrongError("models", "a context needs models: a list of their names")
    if kind not in ("yarn", "linear"):
        raise _WrongError("scaling", "scaling is not yarn or linear")
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 < factor <= _MOST_FACTOR:
        raise _WrongError("factor", f"factor is not a number above 1 and at most {_MOST_FACTOR}")
    if isinstance(trained, bool) or not isinstance(trained, int) or trained < 1:
        raise _WrongError("trained", "trained is not a number of tokens")
    return CatalogContext(tuple(models), RopeScaling(kind, float(factor), trained), _text(entry, "note"))


def _file(entry: dict[str, Any], key: str) -> CatalogFile:
    table = entry[key]
    if not isinstance(table, dict):
        raise _WrongError(key, f"{key} is not a table such as {{ model = …, repo = … }}")
    _only(table, {"model", "repo", "file", "bytes", "sha256", "revision", "active"})
    model, repo, file, sha256, revision = (
        _text(table, name) for name in ("model", "repo", "file", "sha256", "revision")
    )
    size, active = table.get("bytes", 0), table.get("active", 0)
    if not model:
        raise _WrongError(key, f"{key} needs a model: the name that people know it by")
    if repo and not _REPO.fullmatch(repo):
        raise _WrongError("repo", f"repo is {quoted(repo)}, not owner/name")
    if sha256 and not is_sha256(sha256):
        raise _WrongError("sha256", "sha256 is not 64 hexadecimal digits")
    for name, value in (("bytes", size), ("active", active)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise _WrongError(name, f"{name} is not a number of {'bytes' if name == 'bytes' else 'parameters'}")
    return CatalogFile(model, repo, file, size=size, sha256=sha256, revision=revision, active=active)


def _only(table: dict[str, Any], known: set[str]) -> None:
    for key in table:
        if key not in known:
            raise _WrongError(key, f"there is no {quoted(key)}; known are {', '.join(sorted(known))}")


def _text(table: dict[str, Any], key: str) -> str:
    value = table.get(key, "")
    if not isinstance(value, str):
        raise _WrongError(key, f"{key} is not a text")
    return value


def _line(text: str, key: str, entry: int | None = None, kind: str = "pair") -> int:
    """The line of a key in an entry; the entry's own line if the key is not found."""
    lines = text.splitlines()
    heads = [number for number, line in enumerate(lines, 1) if line.strip().startswith(f"[[{kind}]]")]
    first, last = 1, len(lines)
    if entry is not None and entry < len(heads):
        first, last = heads[entry], (heads[entry + 1] - 1 if entry + 1 < len(heads) else len(lines))
    pattern = re.compile(rf"""(^|[\s{{,.\[])["']?{re.escape(key)}["']?\s*(=|\.|\])""")
    return next((n for n in range(first, last + 1) if key and pattern.search(lines[n - 1])), first)
