"""Finds models and their mmproj files, which encode images for them, on this machine: in other programs' folders, too.

Other programs' folders are only read. Hugging Face's cache: https://huggingface.co/docs/huggingface_hub/guides/manage-cache.
Ollama: https://github.com/ollama/ollama/tree/main/manifest. llama.cpp: ``common/arg.cpp`` and ``common/download.cpp``.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from slipstream.models.errors import ModelFileError, SlipstreamError
from slipstream.models.files import make_folder, replace_file
from slipstream.models.hub.types import is_projector, projector_rank
from slipstream.models.outside import is_sha256, read_limited, read_object

if TYPE_CHECKING:
    from slipstream.models.gguf.reader import Header

Origin = Literal["ours", "folder", "package", "bundled", "lmstudio", "hf-cache", "llama.cpp", "ollama"]
"""The owner of a model's folder, in the order of lists: Slipstream, the user, a package, or another program."""
OLLAMA_SERVICE: Final = Path("/usr/share/ollama/.ollama/models")
"""Ollama's folder of models when it runs as a Linux service."""
_OLLAMA_MODEL: Final = "application/vnd.ollama.image.model"
_OLLAMA_PROJECTOR: Final = "application/vnd.ollama.image.projector"
_OLLAMA_ADAPTER: Final = "application/vnd.ollama.image.adapter"
_OLLAMA_SYSTEM: Final = "application/vnd.ollama.image.system"
_OLLAMA_TEMPLATE: Final = "application/vnd.ollama.image.template"
_OLLAMA_PARAMETERS: Final = "application/vnd.ollama.image.params"
_OLLAMA_HOST, _OLLAMA_OWNER = "registry.ollama.ai", "library"
_HUB_ADDRESS: Final = re.compile(r"https?://[^/]+/(?P<repo>[^/]+/[^/]+)/resolve/")
_LATER_PART: Final = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$", re.IGNORECASE)
_FIRST_PART: Final = re.compile(r"-\d{5}(?=-of-\d{5}\.gguf$)", re.IGNORECASE)
_PROJECTOR: Final = "mmproj"
_MOST_BYTES: Final = 1 << 20  # maximum size of a manifest
ARCHITECTURE: Final = "clip"  # the architecture of every mmproj file
_WIDTH: Final = "clip.vision.projection_dim"
_MOST_FILES: Final = 2_000  # maximum files that are read of a folder, and maximum mmproj files of other folders
_MOST_OFFERED: Final = 3
_PACKAGES: Final = ".packages.json"  # file in the folder of models; contains the model files of Python packages
_OWN: Final = Path(__file__).resolve().parents[1]  # has the bundled models, which are listed as such
_TITLE: Final = "general.name"
_KIND: Final = ("general.size_label", "general.finetune", "general.version")


@dataclass(frozen=True, slots=True)
class StoreExtras:
    """What the store of another program adds to a model's file."""

    adapters: tuple[Path, ...] = ()  # LoRA adapters
    system: str = ""  # the system prompt
    template: str = ""  # the template of chats, in Go's language
    parameters: Mapping[str, object] = field(default_factory=dict, hash=False)  # by Ollama's names; untrusted


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A model file that was found but not read yet."""

    path: Path  # the file, or the first of a split model
    origin: Origin  # the program whose folder it is in
    name: str = ""  # its name in that program; empty to use the file's name
    repo: str | None = None  # its repository on the hub, if the folder names it
    sha256: str | None = None  # hash of the file, if its name contains the hash
    extras: StoreExtras = field(default_factory=StoreExtras)

    @property
    def place(self) -> tuple[object, ...]:
        """Identifies it: a file in Ollama's store is as many models as it has names."""
        return (place_of(self.path), *([self.name] if self.origin == "ollama" else []))


def gguf_files(folder: Path) -> Iterator[Path]:
    """Model files below a folder, without projectors, hidden folders, and later parts of split models."""
    for parent, folders, names in os.walk(folder, followlinks=False):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if not name.lower().endswith(".gguf") or name.startswith(".") or name.lower().startswith(_PROJECTOR):
                continue
            if _LATER_PART.search(name) and (Path(parent) / _FIRST_PART.sub("-00001", name)).exists():
                continue
            yield Path(parent) / name


def user_models(places: Iterable[Path]) -> Iterator[FoundModel]:
    """The models in the user's own folders, and those that are named by their paths."""
    for place in places:
        for path in gguf_files(place) if place.is_dir() else [place] if place.is_file() else []:
            yield FoundModel(path, "folder")


def foreign_models(environment: Mapping[str, str]) -> Iterator[FoundModel]:
    """Every model of other programs, each file once."""
    seen: set[tuple[object, ...]] = set()
    for found in (
        *_lm_studio(environment),
        *_hub_cache(_hub_folder(environment), "hf-cache"),
        *_hub_cache(_llama_cpp_folder(environment), "llama.cpp"),  # newer versions keep the hub's layout
        *_llama_cpp(_llama_cpp_folder(environment)),
        *(each for folder in _ollama_folders(environment) for each in _ollama(folder)),
    ):
        if found.place not in seen and found.place[:1] not in seen:
            seen.add(found.place)
            yield found


def packaged_models(cache: Path) -> Iterator[FoundModel]:
    """The model files that installed packages ship, each once; listed again only when a package comes or goes."""
    folders = [str(path) for path in dict.fromkeys(Path(entry or ".").resolve() for entry in sys.path) if path.is_dir()]
    stamp = {folder: os.stat(folder).st_mtime_ns for folder in folders}
    kept = read_object(cache / _PACKAGES, _MOST_BYTES)
    found = kept.get("files")
    if kept.get("folders") != stamp or not isinstance(found, list):
        found = sorted({str(path) for path in _packaged() if not path.is_relative_to(_OWN)})
        with suppress(OSError, SlipstreamError):
            make_folder(cache)
            replace_file(cache / _PACKAGES, [json.dumps({"folders": stamp, "files": found}).encode()], sync=False)
    for name in map(str, found):
        if os.path.isfile(name):
            yield FoundModel(Path(name), "package")


def _packaged() -> Iterator[Path]:
    from importlib.metadata import distributions  # a slow import, needed once per change

    for package in distributions():
        with suppress(OSError, ValueError):
            listed = (package.read_text(name) or "" for name in ("RECORD", "installed-files.txt"))
            if any(".gguf" in text.lower() for text in listed):  # most have none, and parsing their lists takes long
                files = package.files or ()
                yield from (
                    Path(str(file.locate())).resolve()
                    for file in files
                    if file.suffix.lower() == ".gguf" and not file.name.lower().startswith(_PROJECTOR)
                )


def projector_files(folder: Path, environment: Mapping[str, str]) -> Iterator[Path]:
    """The mmproj files in Slipstream's and other programs' folders, each once; not Ollama's, which have no names."""
    seen: set[tuple[int, int] | str] = set()
    hubs = (_hub_folder(environment), _llama_cpp_folder(environment))
    for root in (folder, *_lm_studio_folders(_home(environment)), *hubs):
        for parent, folders, names in os.walk(root, followlinks=False):
            folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "blobs")
            for path in (Path(parent) / name for name in sorted(names) if is_projector(name)):
                if path.suffix.lower() == ".gguf" and (place := place_of(path)) not in seen:
                    seen.add(place)
                    yield path


def ollama_projector(model: Path) -> Path | None:
    """The mmproj file in Ollama's manifest of a model; None if there is none, or the model is not Ollama's."""
    if model.parent.name == "blobs":
        for _, layers in _manifests(model.parent.parent):
            files = dict(layers)
            if files.get(_OLLAMA_MODEL) == model and (found := files.get(_OLLAMA_PROJECTOR)):
                return found
    return None


def place_of(path: Path) -> tuple[int, int] | str:
    """Identifies a file independently of its name: device and inode, or the path if the file is missing."""
    try:
        status = path.stat()
    except OSError:
        return str(path)
    return status.st_dev, status.st_ino


def _home(environment: Mapping[str, str]) -> Path:
    return Path(environment.get("HOME") or environment.get("USERPROFILE") or Path.home())


def _cache(environment: Mapping[str, str]) -> Path:
    return Path(environment.get("XDG_CACHE_HOME") or _home(environment) / ".cache")


def _hub_folder(environment: Mapping[str, str]) -> Path:
    if folder := environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE"):
        return Path(folder).expanduser()
    home = environment.get("HF_HOME")
    return (Path(home).expanduser() if home else _cache(environment) / "huggingface") / "hub"


def _llama_cpp_folder(environment: Mapping[str, str]) -> Path:
    if folder := environment.get("LLAMA_CACHE"):
        return Path(folder).expanduser()
    if sys.platform == "darwin":
        return _home(environment) / "Library" / "Caches" / "llama.cpp"
    return _cache(environment) / "llama.cpp"


def _ollama_folders(environment: Mapping[str, str]) -> list[Path]:
    if folder := environment.get("OLLAMA_MODELS"):
        return [Path(folder).expanduser()]
    return [_home(environment) / ".ollama" / "models", OLLAMA_SERVICE]


def _lm_studio(environment: Mapping[str, str]) -> Iterator[FoundModel]:
    """Finds ``<owner>/<repository>/<file>.gguf``."""
    for folder in _lm_studio_folders(_home(environment)):
        for path in gguf_files(folder):
            parts = path.relative_to(folder).parts
            yield FoundModel(path, "lmstudio", repo="/".join(parts[:2]) if len(parts) > 2 else None)


def _lm_studio_folders(home: Path) -> list[Path]:
    """Lists LM Studio's folders: a pointer file may name another home, and settings another folder of models."""
    homes = [home / ".lmstudio", home / ".cache" / "lm-studio"]
    with suppress(OSError, ValueError):
        pointer = read_limited(home / ".lmstudio-home-pointer", _MOST_BYTES).decode().strip()
        homes += [Path(pointer)] if pointer else []
    chosen = [read_object(each / "settings.json", _MOST_BYTES).get("downloadsFolder") for each in homes]
    folders = [Path(folder) for folder in chosen if isinstance(folder, str) and os.path.isabs(folder)]
    return [*folders, *(each / "models" for each in homes)]


def _hub_cache(folder: Path, origin: Origin) -> Iterator[FoundModel]:
    """Finds ``models--<owner>--<repository>/snapshots/<commit>/<file>``, links to blobs named by their hashes."""
    with suppress(OSError):
        for repository in sorted(folder.glob("models--*--*")):
            owner, _, name = repository.name.removeprefix("models--").partition("--")
            for path in gguf_files(repository / "snapshots"):
                yield FoundModel(path, origin, repo=f"{owner}/{name}", sha256=_blob_hash(path, repository / "blobs"))


def _blob_hash(path: Path, blobs: Path) -> str | None:
    """The hash in the name of a link's target; trusted only if the target is in the repository's folder of blobs."""
    with suppress(OSError):
        target = Path(os.path.normpath(path.parent / os.readlink(path)))
        if target.parent == blobs and is_sha256(target.name):
            return target.name
    return None


def _llama_cpp(folder: Path) -> Iterator[FoundModel]:
    """Finds ``<owner>_<repository>_<file>.gguf``, with its address in ``<file>.json`` in the same folder."""
    for path in gguf_files(folder):
        address = read_object(path.with_name(path.name + ".json"), _MOST_BYTES).get("url")
        match = _HUB_ADDRESS.match(address) if isinstance(address, str) else None
        name = ""
        if match:
            name = path.stem.removeprefix(match["repo"].replace("/", "_") + "_")
        yield FoundModel(path, "llama.cpp", name, match["repo"] if match else None)


def _ollama(folder: Path) -> Iterator[FoundModel]:
    for (host, *owner, model, tag), layers in _manifests(folder):
        of = dict(layers)
        for path in (file for kind, file in layers if kind == _OLLAMA_MODEL):
            place = [] if host == _OLLAMA_HOST else [host]
            place += [] if owner == [_OLLAMA_OWNER] else owner
            yield FoundModel(
                path,
                "ollama",
                "/".join([*place, f"{model}:{tag}"]).lower(),
                f"{owner[0]}/{model}" if host in ("hf.co", "huggingface.co") and len(owner) == 1 else None,
                path.name.removeprefix("sha256-"),
                extras=StoreExtras(
                    tuple(file for kind, file in layers if kind == _OLLAMA_ADAPTER),
                    _text_of(of.get(_OLLAMA_SYSTEM)).strip(),
                    _text_of(of.get(_OLLAMA_TEMPLATE)),
                    read_object(of[_OLLAMA_PARAMETERS], _MOST_BYTES) if _OLLAMA_PARAMETERS in of else {},
                ),
            )


def _manifests(folder: Path) -> Iterator[tuple[tuple[str, ...], list[tuple[str, Path]]]]:
    """The places of Ollama's manifests, ``<host>/<owner>/<model>/<tag>``, and the kind and the file of their layers."""
    with suppress(OSError):
        for manifest in sorted(path for path in (folder / "manifests").rglob("*") if path.is_file()):
            parts = manifest.relative_to(folder / "manifests").parts
            layers = read_object(manifest, _MOST_BYTES).get("layers")
            if len(parts) > 3 and isinstance(layers, list):
                known = ((str(each.get("mediaType")), each) for each in layers if isinstance(each, dict))
                hashes = ((kind, str(each.get("digest")).removeprefix("sha256:")) for kind, each in known)
                yield parts, [(kind, folder / "blobs" / f"sha256-{name}") for kind, name in hashes if is_sha256(name)]


def _text_of(file: Path | None) -> str:
    with suppress(OSError, ValueError):
        return read_limited(file, _MOST_BYTES).decode("utf-8", "replace") if file else ""
    return ""


@dataclass(frozen=True, slots=True)
class ProjectorChoice:
    """The mmproj file of a model, or the candidates if it is not certain."""

    path: Path | None = None
    unsure: tuple[Path, ...] = ()  # candidates: they have the model's width, and their names do not exclude them


def projector_of(model: Path, elsewhere: Callable[[], Iterable[Path]]) -> ProjectorChoice:
    """The mmproj file of a model: in its folder, else in another folder if its header names the same model.

    The same width and family are not enough: fine-tuned models have different projectors, and the model cannot
    interpret the output of a wrong one.
    """
    path = projector_beside(model)
    if path or ((path := ollama_projector(model)) and _fitting(model, [path])[1]):
        return ProjectorChoice(path)
    own, fitting = _fitting(model, islice(elsewhere(), _MOST_FILES))
    if own is None or not fitting:
        return ProjectorChoice()
    if same := [header for header in fitting if _says_the_same(header, own)]:
        return ProjectorChoice(min(same, key=lambda header: projector_rank(header.path.name)).path)
    may_be = [header for header in fitting if not _names(header) or _names(header) & _names(own)]
    may_be.sort(key=lambda header: projector_rank(header.path.name))
    return ProjectorChoice(unsure=tuple(header.path for header in may_be[:_MOST_OFFERED]))


def projector_beside(model: Path) -> Path | None:
    """The mmproj file in a model's folder that belongs to it; None if there is none, or none of its width.

    Makers publish it in the model's folder. If a folder contains several models, the names in the headers decide.
    """
    files: list[Path] = []
    with suppress(OSError):
        files = sorted(path for path in islice(model.parent.iterdir(), _MOST_FILES) if is_projector(path.name))
    own, fitting = _fitting(model, files)
    if own is None or not fitting:
        return None
    named = [header for header in fitting if _names(header) & _names(own)]
    if not named and len({frozenset(_names(header)) for header in fitting}) > 1:
        return None
    return min(named or fitting, key=lambda header: projector_rank(header.path.name)).path


def _fitting(model: Path, files: Iterable[Path]) -> tuple[Header | None, list[Header]]:
    """A model's header, read only if there are files, and the headers of the mmproj files of its width."""
    from slipstream.models.gguf.reader import read_header  # imported late: slow, and most models have no mmproj file

    fitting: list[Header] = []
    own: Header | None = None
    for path in files:
        with suppress(ModelFileError, OSError):
            own = own or read_header(model)
            header = read_header(path)
            if header.architecture == ARCHITECTURE and header.metadata.get(_WIDTH) == own.n_embd:
                fitting.append(header)
    return own, fitting


def _says_the_same(header: Header, own: Header) -> bool:
    """Whether two headers name the same model: equal titles, and no difference in size, tuning and version."""
    title, other = str(header.metadata.get(_TITLE) or ""), str(own.metadata.get(_TITLE) or "")
    pairs = ((header.metadata.get(key), own.metadata.get(key)) for key in _KIND)
    agree = all(one is None or two is None or str(one).casefold() == str(two).casefold() for one, two in pairs)
    return bool(title) and title.casefold() == other.casefold() and agree


def _names(header: Header) -> set[str]:
    """The names in a header of the model that the file belongs to."""
    keys = ("general.name", "general.basename", "general.base_model.0.name")
    return {str(name).casefold() for key in keys if (name := header.metadata.get(key))}
