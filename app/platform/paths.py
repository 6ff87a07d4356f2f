"""The folders and files of slipstream on this machine; temporary ones if those cannot be written to."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Final

import platformdirs

from slipstream import models
from slipstream.models.errors import SlipstreamError, UsageError, reason_of
from slipstream.models.files import make_folder, replace_file, sync_folder

HOME_VARIABLE = "SLIPSTREAM_HOME"
_NO_HOME = f"{os.devnull}/home"  # nothing can be created here, not even by root
FULL = (errno.ENOSPC, errno.EDQUOT)
_TRIAL: Final = 1 << 16  # bytes, about as many as a new database of chats has
_NAME: Final = re.compile(r"slipstream-(\d+)-\w+")


@dataclass(frozen=True, slots=True)
class Paths:
    """The folders and files that slipstream uses; they are created when needed."""

    chats: Path
    models: Path  # downloaded and imported models: ``<owner>/<repository>/<file>.gguf``
    catalog: Path  # the user's own pairs of models, in the form of ``models/catalog.toml``; need not exist
    settings: Path  # need not exist
    presets: Path  # the user's system prompts and sampling presets; need not exist
    drafters: Path  # the drafters that the user disabled, by model; need not exist
    states: Path  # kept KV caches of chats; may be deleted at any time
    heads: Path  # trained and imported heads
    derived: Path  # files derived from models, such as a model's first layers; may be deleted at any time
    index: Path  # indexed text of chats and files, for drafting; a folder for each vocabulary
    training: Path  # work folders of training runs; without them a stopped run starts over
    benches: Path  # stored results of benchmarks that were run from the chat
    logs: Path  # logs of the engine; they hold no prompts and no replies
    bundled: Path  # the models that ship with slipstream
    images: Path  # images in chats; each is deleted with the last chat that contains it

    @staticmethod
    def default(environment: Mapping[str, str] = os.environ) -> Paths:
        """The paths below ``SLIPSTREAM_HOME`` if it is set, else in the platform's usual folders."""
        bundled = Path(models.__file__).parent / "bundled"
        home = environment.get(HOME_VARIABLE)
        if home:
            try:
                root = Path(home).expanduser().absolute()
            except RuntimeError as error:
                raise UsageError(f"{HOME_VARIABLE} is {home}: there is no such user.", "Set it to a folder.") from error
            data = config = cache = root
            logs = root / "logs"
        else:
            platform = platformdirs.PlatformDirs("slipstream", appauthor=False)
            try:
                homeless = not platform.user_data_path.is_absolute()
            except RuntimeError:  # from newer releases of platformdirs
                homeless = True
            if homeless:
                return Paths.default({HOME_VARIABLE: _NO_HOME})
            data, config, cache = platform.user_data_path, platform.user_config_path, platform.user_cache_path
            logs = platform.user_log_path
        return Paths(
            chats=data / "chats.db",
            catalog=data / "catalog.toml",
            bundled=bundled,
            logs=logs,
            **{name: config / f"{name}.toml" for name in ("settings", "presets", "drafters")},
            **{name: data / name for name in ("models", "heads", "index", "benches", "images")},
            **{name: cache / name for name in ("states", "derived", "training")},
        )

    def rows(self) -> list[tuple[str, Path]]:
        return [(field.name, getattr(self, field.name)) for field in fields(self)]


@contextmanager
def worded(path: Path) -> Iterator[None]:
    """Turns an ``OSError`` into an error for the user, see ``unwritable``."""
    try:
        yield
    except OSError as error:
        raise unwritable(path, error) from error


def private_folder(path: Path) -> Path:
    """Creates a folder, and its missing parents, that only its owner can enter."""
    with worded(path):
        make_folder(path)
    if not os.access(path, os.W_OK | os.X_OK):
        raise unwritable(path, PermissionError(13, "permission denied"))
    return path


def write_private(path: Path, text: str) -> None:
    """Writes a text to a file atomically, readable by its owner alone; creates its folder."""
    try:
        place = path.resolve()  # a link stays a link: some users keep such files elsewhere
    except RuntimeError as error:
        raise unwritable(path, OSError(errno.ELOOP, os.strerror(errno.ELOOP))) from error
    private_folder(place.parent)
    with worded(path):
        replace_file(place, [text.encode("utf-8")])
    with suppress(OSError):  # the file is in place; some file systems cannot flush folders
        sync_folder(place.parent)


def unwritable(path: Path, error: OSError) -> SlipstreamError:
    """Makes the error for the user if a file or a folder cannot be written."""
    if path.is_relative_to(_NO_HOME):
        hint = f"Set HOME, or {HOME_VARIABLE} to a folder that you can write to."
        return SlipstreamError("this user has no home folder.", hint)
    reason = reason_of(error)
    hint = f"Fix its rights, or set {HOME_VARIABLE} to a folder that you can write to."
    if error.errno in FULL:
        hint = f"Make some room and try again, or set {HOME_VARIABLE} to a folder on another disk."
    elif error.errno == errno.EIO:
        hint = f"The disk may be failing; set {HOME_VARIABLE} to a folder on another one."
    return SlipstreamError(f"cannot write to {path}: {reason}.", hint)


@contextmanager
def places(paths: Paths, keep: bool = True) -> Iterator[tuple[Paths, str]]:
    """Yields paths that this run can write to, and a notice that says what is not kept and why, or nothing.

    Paths of files that are only read, such as models and settings, stay the same.
    """
    refused = None
    try:
        for folder in dict.fromkeys([paths.chats.parent, paths.derived.parent, paths.logs.parent, paths.logs]):
            _try(folder)
    except SlipstreamError as error:
        refused = error
    if keep and not refused:
        yield paths, ""
        return
    import shutil  # seldom needed

    folder = _passing()
    try:
        here = replace(paths, chats=folder / "chats.db", states=folder / "states", index=folder / "index")
        words = "Chats are not kept: this one is forgotten when slipstream ends (setting keeping.chats)."
        if refused:
            here = replace(here, derived=folder / "derived", logs=folder / "logs", training=folder / "training")
            words = f"{refused.title} Nothing is kept: chats are forgotten when slipstream ends. {refused.hint}"
        yield here, words[0].upper() + words[1:]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _try(folder: Path) -> None:
    private_folder(folder)
    trial = folder / f".trial-{os.getpid()}"
    with worded(folder):
        try:
            trial.write_bytes(bytes(_TRIAL))
        finally:
            trial.unlink(missing_ok=True)


def _passing() -> Path:
    """Creates a temporary folder for this run, in memory if the system offers that."""
    import tempfile  # seldom needed

    wanted = [os.environ.get("XDG_RUNTIME_DIR", ""), "/dev/shm", os.environ.get("TMPDIR", ""), "/tmp", "/var/tmp"]
    if sys.platform == "win32":
        wanted = [tempfile.gettempdir()]
    for place in [Path(name) for name in wanted if name and Path(name).is_dir()]:
        with suppress(OSError, SlipstreamError):
            _sweep(place)
            folder = Path(tempfile.mkdtemp(prefix=f"slipstream-{os.getpid()}-", dir=place))
            _try(folder)
            return folder
    raise SlipstreamError(
        "nothing can be written anywhere, not even for the time being.",
        f"Make some room, or set {HOME_VARIABLE} to a folder that you can write to.",
    )


def _sweep(place: Path) -> None:
    if sys.platform == "win32":  # no owner to compare
        return
    import shutil

    import psutil

    for folder in place.glob("slipstream-*-*"):
        found = _NAME.fullmatch(folder.name)
        if found and folder.stat(follow_symlinks=False).st_uid == os.getuid() and not psutil.pid_exists(int(found[1])):
            shutil.rmtree(folder, ignore_errors=True)
