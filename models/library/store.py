"""The models on this machine: Slipstream's own, and those of other programs."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final, get_args

from slipstream.models.errors import ModelFileError, UsageError
from slipstream.models.files import locked, make_folder
from slipstream.models.gguf.file_name import shown_name, split_name, stem_of
from slipstream.models.hub.types import RemoteFile
from slipstream.models.library.import_model import LOCAL, How, OnProgress, check, import_model, recover_imports
from slipstream.models.library.names import find, plain_name
from slipstream.models.library.places import (
    FoundModel,
    Origin,
    foreign_models,
    gguf_files,
    packaged_models,
    place_of,
    user_models,
)
from slipstream.models.library.records import (
    FactsCache,
    InstalledModel,
    Record,
    RemovedModel,
    Verification,
    read_record,
    size_of,
    write_record,
)
from slipstream.models.library.trash import Trash
from slipstream.models.outside import shown_path

__all__ = ["InstalledModel", "ModelStore", "RemovedModel", "Verification"]
_ORDER: Final = get_args(Origin)
_OWNERS: Final = {
    "folder": ("your own folder", "Delete the file there, or take the folder out of model.folders."),
    "package": ("a Python package", "Remove it there: pip uninstall."),
    "hf-cache": ("Hugging Face's cache", "Remove it there: hf cache rm."),
    "lmstudio": ("LM Studio", "Remove it there: My Models."),
    "ollama": ("Ollama", "Remove it there: ollama rm."),
    "llama.cpp": ("llama.cpp's cache", "Remove it there: delete the file."),
}


class ModelStore:
    """Lists, adopts, verifies and removes models; it changes only files in its own folder."""

    def __init__(
        self,
        folder: Path,
        bundled: Mapping[str, Path] | None = None,
        environment: Mapping[str, str] | None = None,
        places: Callable[[], Iterable[Path]] = tuple,
    ) -> None:
        self.folder, self._places = folder, places
        self._bundled, self._environment = dict(bundled or {}), environment
        self._trash = Trash(folder)

    def installed(self) -> list[InstalledModel]:
        """All models, those of Slipstream's folder first, then by name; a broken file is listed with its problem."""
        recover_imports(self.folder)
        cache = FactsCache(self.folder / ".facts.json")
        models = [self._model(found, cache) for found in self._found()]
        cache.keep()
        models.sort(key=lambda model: (_ORDER.index(model.origin), model.name.lower(), str(model.path)))
        return _with_unique_names(models)

    def find(self, name: str, installed: Sequence[InstalledModel] | None = None) -> InstalledModel:
        """Finds a model by its name, the start of its name, or ``owner/repository:QUANT``; case does not matter."""
        return find(name, self.installed() if installed is None else installed)

    def record(self, files: Sequence[RemoteFile]) -> None:
        """Records the source and the hash of downloaded files; they need not be in their place yet."""
        for file in files:
            write_record(file.path_in(self.folder), Record(file.sha256 or "", file.size, file.repo, file.revision))

    def import_file(
        self,
        path: Path,
        how: How = "link",
        on_progress: OnProgress = lambda done, size: None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> InstalledModel:
        place = place_of(path.expanduser())

        @contextmanager
        def changing() -> Iterator[None]:
            with self._changing():
                for model in self.installed():
                    if model.origin == "ours" and place in map(place_of, model.files):
                        raise UsageError(f"{shown_path(path)} is here already, as {model.name}.")
                yield

        return self.listed(import_model(path, self.folder, how, on_progress, cancelled, changing=changing))

    def verify(
        self,
        name: str,
        on_progress: OnProgress = lambda done, size: None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Verification:
        """Reads every byte of a model and compares the hashes; raises ``KeyboardInterrupt`` if cancelled.

        If the expected hash of a file in Slipstream's folder is unknown, the computed hash is recorded for next time.
        """
        model = self.find(name)
        records = [read_record(file) if model.origin == "ours" else Record() for file in model.files]
        expected = [record.sha256 or None for record in records]
        if model.sha256:
            expected[0] = model.sha256
        checked = check(model, expected, on_progress, cancelled)
        if model.origin == "ours" and not checked.problem:
            with self._changing():
                for file, found in zip(model.files, checked.sha256, strict=True):
                    record, size = read_record(file), size_of(file)
                    if not record.sha256 and size:
                        write_record(file, replace(record, sha256=found, size=size))
        return checked

    def removable(self, name: str) -> InstalledModel:
        model = self.find(name)
        if model.origin == "bundled":
            raise UsageError(f"{model.name} ships with slipstream and stays.")
        if model.foreign:
            owner, hint = _OWNERS[model.origin]
            raise UsageError(f"{model.name} belongs to {owner}, so slipstream only reads it.", hint)
        return model

    def remove(self, name: str, now: bool = False) -> RemovedModel:
        """Moves a model of Slipstream's folder to the system's trash."""
        with self._changing():
            model = self.removable(name)
            return self._trash.skip(model.name, model.files) if now else self._trash.put(model.name, model.files)

    def undo(self) -> RemovedModel:
        with self._changing():
            return self._trash.undo()

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Locks the folder for a change; raises a ``SlipstreamError`` if another process changes it for long."""
        make_folder(self.folder)
        with locked(self.folder / ".lock"):
            yield

    def _found(self) -> Iterator[FoundModel]:
        for path in gguf_files(self.folder):
            yield FoundModel(path, "ours")
        for name, path in self._bundled.items():
            yield FoundModel(path, "bundled", name)
        seen: set[tuple[object, ...]] = {(place_of(path),) for path in gguf_files(self.folder)}
        elsewhere = list(user_models(self._places()))
        if self._environment is not None:
            elsewhere += [*packaged_models(self.folder), *foreign_models(self._environment)]
        for found in elsewhere:
            if found.place not in seen and found.place[:1] not in seen:  # skips files that Slipstream's folder links to
                seen.add(found.place)
                yield found

    def _model(self, found: FoundModel, cache: FactsCache) -> InstalledModel:
        facts, ours = cache.of(found.path), found.origin == "ours"
        record = read_record(found.path) if ours else Record()
        stem = stem_of(found.path)
        label = split_name(stem)[1] or facts.quant
        if found.name and found.origin in ("bundled", "ollama"):
            name = found.name
        else:
            name = plain_name(found.name or stem, facts.quant)
        problem, hint = facts.problem, facts.hint
        if not problem and record.size and record.size != (size := size_of(found.path)):
            problem = f"{name} has {size:,} bytes and should have {record.size:,}."
            hint = "Remove it and fetch it again."
        return InstalledModel(
            name=name,
            path=found.path,
            files=tuple(map(Path, facts.parts)),
            size=facts.size,
            sha256=record.sha256 or found.sha256,
            origin=found.origin,
            repo=self._repo(found, record),
            quant=label,
            architecture=facts.architecture,
            params=facts.params,
            context=facts.context,
            title=shown_name(found.path, facts.title),
            fingerprint=facts.fingerprint,
            role=facts.role,
            n_vocab=facts.n_vocab,
            vocabulary=facts.vocabulary,
            problem=problem,
            hint=hint,
            extras=found.extras,
        )

    def _repo(self, found: FoundModel, record: Record) -> str | None:
        if found.origin != "ours":
            return found.repo
        parts = found.path.relative_to(self.folder).parts
        return record.repo or ("/".join(parts[:2]) if len(parts) > 2 and parts[0] != LOCAL else None)

    def listed(self, path: Path) -> InstalledModel:
        """The model of a file in the folder; raises a ``ModelFileError`` if it is none."""
        model = next((model for model in self.installed() if model.path == path), None)
        if model is None:
            raise ModelFileError(f"{path} is not in the list of models.", "Its name must end in .gguf.")
        if model.problem:
            raise ModelFileError(model.problem, model.hint)
        return model


def _with_unique_names(models: Sequence[InstalledModel]) -> list[InstalledModel]:
    seen: Counter[str] = Counter()
    unique: list[InstalledModel] = []
    for model in models:
        name = model.name
        owner = [f"{model.repo.partition('/')[0].lower()}/{name}"] if model.repo else []
        place = [f"{name}@{model.origin}"] if model.foreign else []
        for other in (name, *place, *owner, *(f"{name}@{model.origin}-{n}" for n in range(2, 1000))):
            if not seen[other.lower()]:
                name = other
                break
        seen[name.lower()] += 1
        unique.append(replace(model, name=name))
    return unique
