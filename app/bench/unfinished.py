"""The temporary file of a benchmark that the chat runs: it holds the figures until they are stored."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from slipstream.app.platform.paths import private_folder, worded
from slipstream.models.files import HeldError, close_removed, open_locked

if TYPE_CHECKING:  # seldom needed
    from slipstream.app.bench.kept import Kept

PREFIX: Final = ".running-"  # prefix of the temporary files, so that lists of results leave them out


@contextmanager
def unfinished(folder: Path) -> Iterator[Path]:
    """Creates the file of one benchmark, and removes it at the end unless ``keep`` has moved it.

    The file is locked while the benchmark runs: an unlocked one belongs to a killed chat, see ``recover``.
    """
    path = private_folder(folder) / f"{PREFIX}{os.urandom(4).hex()}"
    with worded(path):
        handle = open_locked(path)
    try:
        yield path
    finally:
        close_removed(handle, path)


def recover(folder: Path) -> list[Kept]:
    """Stores the figures of benchmarks whose chat was killed, and removes their files without figures.

    Args:
        folder: Folder of results; need not exist.

    Returns:
        The results that were recovered.
    """
    recovered: list[Kept] = []
    for path in sorted(folder.glob(f"{PREFIX}*")):
        from slipstream.app.bench.kept import keep, place_for

        with suppress(HeldError, OSError):  # another chat's benchmark is running, or the file cannot be opened
            handle = open_locked(path)
            try:
                when = datetime.fromtimestamp(os.fstat(handle).st_mtime)
                if kept := keep(path, place_for(folder, when)):
                    recovered.append(kept)
            finally:
                os.close(handle)
    return recovered
