"""The switch of the text index: a file in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from slipstream.app.paths import private_folder, unwritable

_OFF: Final = "off"


def is_on(root: Path) -> bool:
    """Whether text may be indexed and drafted from; so it is until its owner switches it off."""
    return not (root / _OFF).exists()


def switch(root: Path, on: bool) -> None:
    """Switches the index on or off; a model that is loaded goes on drafting from it until it is loaded again.

    Args:
        root: Folder of all indexes.
        on: Which way.

    Raises:
        SlipstreamError: If the folder cannot be written to.
    """
    flag = private_folder(root) / _OFF
    try:
        if on:
            flag.unlink(missing_ok=True)
        else:
            flag.touch(0o600)
    except OSError as error:
        raise unwritable(root, error) from error
