"""The files of trained heads: their names, and what may be replaced."""

from __future__ import annotations

import os
from pathlib import Path

from slipstream.app.paths import private_folder
from slipstream.models.errors import SlipstreamError, UsageError
from slipstream.models.gguf import Header
from slipstream.models.heads import HeadsInfo, identity, read_info
from slipstream.models.heads_check import Method
from slipstream.models.quoting import quoted, shown_path


def heads_files(folder: Path) -> list[Path]:
    """GGUF files of a folder by name; none where there is no folder."""
    return sorted(folder.glob("*.gguf"))


def file_in(folder: Path, target: Header, kind: str) -> Path:
    """The file of a kind of heads for a model, in a folder that is made.

    Args:
        folder: Of heads.
        target: The model.
        kind: The method, or the method and where the heads are from.

    Raises:
        UsageError: If heads for another model of this name are there.
        SlipstreamError: If the folder cannot be written to.
    """
    out = private_folder(folder) / f"{target.path.stem}-{kind}.gguf"
    if (info := _kept(out)) and info.target != identity(target):
        raise UsageError(
            f"{shown_path(out)} holds heads for another model, {quoted(info.target_name)}.",
            "Rename one of the two models, or remove those heads.",
        )
    return out


def checked(out: Path, target: Header, method: Method) -> Path:
    """Makes sure that a file that a person named can be written, and that nothing but older heads is lost.

    Returns:
        Its absolute path.

    Raises:
        UsageError: If it cannot.
    """
    out = out.expanduser().absolute()
    if not out.parent.is_dir() or not os.access(out.parent, os.W_OK | os.X_OK):
        raise UsageError(
            f"{shown_path(out.parent)} is no folder that can be written to.", "Choose another file with --out."
        )
    if out.exists() and ((info := _kept(out)) is None or (info.method, info.target) != (method, identity(target))):
        raise UsageError(
            f"{shown_path(out)} is there already and holds no {method} heads for {quoted(target.name)}.",
            "Choose another file with --out.",
        )
    return out


def shown_size(size: int) -> str:
    """Bytes in words: ``640 kB``, ``1.2 MB``."""
    return f"{size / 1e6:.1f} MB" if size >= 1_000_000 else f"{max(1, round(size / 1e3))} kB"


def _kept(path: Path) -> HeadsInfo | None:
    """What a file of heads is; None if it is missing, damaged or something else."""
    try:
        return read_info(path)
    except SlipstreamError:
        return None
