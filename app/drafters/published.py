"""``slipstream drafters import``: heads that others trained and published."""

from __future__ import annotations

import argparse
import os
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from slipstream.app.drafters.files import file_in, shown_size
from slipstream.app.model_choice import choose
from slipstream.app.paths import Paths, private_folder
from slipstream.models.gguf import read_header
from slipstream.models.heads import read_info
from slipstream.models.published import LoadPickle, import_heads
from slipstream.models.quoting import shown_path


def import_published(options: argparse.Namespace, paths: Paths) -> int:
    """Writes published heads into the folder of heads, beside those that were trained here.

    Args:
        options: ``path``, ``model``, ``licence``, ``exit_layer``.
        paths: Where things are kept.

    Returns:
        The exit code, 0.

    Raises:
        ModelFileError: If the files are missing, damaged, no published heads, or do not fit the model.
        UsageError: If the exit layer of a Kangaroo adapter is not known, or there is no such model.
        SlipstreamError: If the disk is full or the folder cannot be written to.
    """
    target = read_header(Path(choose(paths, options.model).model))
    arrived = private_folder(paths.heads) / f"{target.path.stem}-{os.getpid()}.import"  # the method is not known yet
    source = Path(options.path).expanduser()
    try:
        import_heads(source, target, arrived, options.licence, _load_pickle(), options.exit_layer)
        info = read_info(arrived)
        out = file_in(paths.heads, target, f"{info.method}-imported")
        os.replace(arrived, out)
    finally:
        with suppress(OSError):
            arrived.unlink(missing_ok=True)
    print(f"{shown_path(out)}: {shown_size(out.stat().st_size)}, {info.method} heads for {shown_path(target.path)}")
    return 0


def _load_pickle() -> LoadPickle | None:
    """What reads PyTorch files, where torch is installed."""
    if find_spec("torch") is None:
        return None
    from slipstream.drafters.training.pickles import load_pickle

    return load_pickle
