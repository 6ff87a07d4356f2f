"""Finds the models of other programs; it only reads their folders.

Hugging Face's cache: https://huggingface.co/docs/huggingface_hub/guides/manage-cache. Ollama:
https://github.com/ollama/ollama/tree/main/manifest. llama.cpp: ``common/arg.cpp`` and ``common/download.cpp``.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slipstream.models.hub.types import is_projector
from slipstream.models.library.records import Origin
from slipstream.models.outside import is_sha256, read_limited, read_object

OLLAMA_SERVICE: Final = Path("/usr/share/ollama/.ollama/models")
"""Ollama's folder of models when it runs as a Linux service."""
_OLLAMA_MODEL: Final = "application/vnd.ollama.image.model"
_OLLAMA_PROJECTOR: Final = "application/vnd.ollama.image.projector"
_OLLAMA_HOST, _OLLAMA_OWNER = "registry.ollama.ai", "library"
_HUB_ADDRESS: Final = re.compile(r"https?://[^/]+/(?P<repo>[^/]+/[^/]+)/resolve/")
_LATER_PART: Final = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$", re.IGNORECASE)
_FIRST_PART: Final = re.compile(r"-\d{5}(?=-of-\d{5}\.gguf$)", re.IGNORECASE)
_PROJECTOR: Final = "mmproj"
_MOST_BYTES: Final = 1 << 20  # maximum size of a manifest


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A model file that was found but not read yet."""

    path: Path  # the file, or the first of a split model
    origin: Origin  # the program whose folder it is in
    name: str = ""  # its name in that program; empty to use the file's name
    repo: str | None = None  # its repository on the hub, if the folder names it
    sha256: str | None = None  # hash of the file, if its name contains the hash


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


def foreign_models(environment: Mapping[str, str]) -> Iterator[FoundModel]:
    """Every model of other programs, each file once.

    Args:
        environment: ``HOME`` and the variables that set the programs' folders.
    """
    seen: set[tuple[int, int] | str] = set()
    for found in (
        *_lm_studio(environment),
        *_hub_cache(_hub_folder(environment), "hf-cache"),
        *_hub_cache(_llama_cpp_folder(environment), "llama.cpp"),  # newer versions keep the hub's layout
        *_llama_cpp(_llama_cpp_folder(environment)),
        *(each for folder in _ollama_folders(environment) for each in _ollama(folder)),
    ):
        place = place_of(found.path)
        if place not in seen:
            seen.add(place)
            yield found


def projector_files(folder: Path, environment: Mapping[str, str]) -> Iterator[Path]:
    """The mmproj files in Slipstream's folder and in other programs' folders, each file once.

    Ollama's are not listed, since its files have no names.

    Args:
        folder: Slipstream's folder of models.
        environment: See ``foreign_models``.
    """
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
    digest = model.name.removeprefix("sha256-")
    if model.parent.name != "blobs" or not is_sha256(digest):
        return None
    with suppress(OSError):
        for manifest in sorted(path for path in (model.parent.parent / "manifests").rglob("*") if path.is_file()):
            layers = read_object(manifest, _MOST_BYTES).get("layers")
            kinds = [each for each in layers if isinstance(each, dict)] if isinstance(layers, list) else []
            files = {str(each.get("mediaType")): str(each.get("digest")).removeprefix("sha256:") for each in kinds}
            found = files.get(_OLLAMA_PROJECTOR, "")
            if files.get(_OLLAMA_MODEL) == digest and is_sha256(found):
                return model.with_name(f"sha256-{found}")
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
    """Reads ``manifests/<host>/<owner>/<model>/<tag>``, which list layers: files ``blobs/sha256-<hash>``."""
    manifests = folder / "manifests"
    with suppress(OSError):
        for manifest in sorted(path for path in manifests.rglob("*") if path.is_file()):
            parts = manifest.relative_to(manifests).parts
            layers = read_object(manifest, _MOST_BYTES).get("layers")
            if len(parts) < 4 or not isinstance(layers, list):
                continue
            host, *owner, model, tag = parts
            for layer in layers:
                if not isinstance(layer, dict) or layer.get("mediaType") != _OLLAMA_MODEL:
                    continue
                digest = str(layer.get("digest", "")).removeprefix("sha256:")
                if not is_sha256(digest):
                    continue
                place = [] if host == _OLLAMA_HOST else [host]
                place += [] if owner == [_OLLAMA_OWNER] else owner
                repo = f"{owner[0]}/{model}" if host in ("hf.co", "huggingface.co") and len(owner) == 1 else None
                yield FoundModel(
                    folder / "blobs" / f"sha256-{digest}",
                    "ollama",
                    "/".join([*place, f"{model}:{tag}"]).lower(),
                    repo,
                    digest,
                )
