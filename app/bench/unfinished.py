"""The file that a benchmark begun from the chat writes its figures to, until they are kept."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from slipstream.app.platform.paths import private_folder, worded
from slipstream.models.hub.lock import HeldError, close_removed, open_locked

if TYPE_CHECKING:  # loaded when something was left, which is seldom
    from slipstream.app.bench.kept import Kept

PREFIX: Final = ".running-"  # what the names of such files begin with, so that nothing lists them


@contextmanager
def unfinished(folder: Path) -> Iterator[Path]:
    """Gives the file of one benchmark; it is gone afterwards, unless ``keep`` took it.

    It is locked meanwhile: what no process holds was left by a chat that was killed, see ``take_left``.
    """
    path = private_folder(folder) / f"{PREFIX}{os.urandom(4).hex()}"
    with worded(path):
        handle = open_locked(path)
    try:
        yield path
    finally:
        close_removed(handle, path)


def take_left(folder: Path) -> list[Kept]:
    """Keeps what benchmarks had measured whose chat was killed, and removes the files that have nothing in them.

    Args:
        folder: Where results are kept; need not exist.

    Returns:
        The results that are listed from now on.
    """
    taken: list[Kept] = []
    for path in sorted(folder.glob(f"{PREFIX}*")):
        from slipstream.app.bench.kept import keep, place_for

        with suppress(HeldError, OSError):  # another chat's benchmark runs, or it is not ours to take
            handle = open_locked(path)
            try:
                when = datetime.fromtimestamp(os.fstat(handle).st_mtime)
                if kept := keep(path, place_for(folder, when)):
                    taken.append(kept)
            finally:
                os.close(handle)
    return taken
