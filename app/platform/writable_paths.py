"""The folders that this run writes to: the user's, or temporary ones if those cannot be written to."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from slipstream.app.platform.paths import HOME_VARIABLE, Paths, private_folder, worded
from slipstream.models.errors import SlipstreamError

_TRIAL: Final = 1 << 16  # bytes, about as many as a new database of chats has
_NAME: Final = re.compile(r"slipstream-(\d+)-\w+")


@contextmanager
def places(paths: Paths, keep: bool = True) -> Iterator[tuple[Paths, str]]:
    """Yields paths that this run can write to.

    Paths of files that are only read, such as models and settings, stay the same.

    Yields:
        The paths, and a notice that says what is not kept and why; empty if everything is kept.
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
    """Writes a trial file into a folder and deletes it."""
    private_folder(folder)
    trial = folder / f".trial-{os.getpid()}"
    with worded(folder):
        try:
            handle = os.open(trial, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
            try:
                if os.write(handle, bytes(_TRIAL)) < _TRIAL:
                    os.write(handle, bytes(_TRIAL))  # raises an error with the reason
            finally:
                os.close(handle)
        finally:
            trial.unlink(missing_ok=True)


def _passing() -> Path:
    """Creates a temporary folder for this run, in memory if the system offers that.

    Raises:
        SlipstreamError: If no folder for it can be written to.
    """
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
    """Deletes the temporary folders of killed runs."""
    if sys.platform == "win32":  # no owner to compare
        return
    import shutil

    import psutil

    for folder in place.glob("slipstream-*-*"):
        found = _NAME.fullmatch(folder.name)
        if found and folder.stat(follow_symlinks=False).st_uid == os.getuid() and not psutil.pid_exists(int(found[1])):
            shutil.rmtree(folder, ignore_errors=True)
