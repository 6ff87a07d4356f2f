"""Which files of trained heads were made for a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from slipstream.models.errors import SlipstreamError
from slipstream.models.gguf.reader import Header, read_header
from slipstream.models.gguf.vocabulary import HEADS_ARCHITECTURE
from slipstream.models.heads.check import unfit_by_header
from slipstream.models.heads.file import identity, read_info

HEAD_ARCHITECTURES = frozenset({"eagle3"})
"""Architectures of heads that llama.cpp itself runs; ``slipstream.heads.target`` names the model they are for."""

TARGET_KEY = "slipstream.heads.target"


def companions(
    header: Header, paths: Iterable[Path], unreadable: Callable[[Path, SlipstreamError], None] = lambda _, __: None
) -> dict[str, Path]:
    """Finds the heads that were trained for this very model.

    Args:
        paths: Files that may be heads; of several for one method the last is taken.
        unreadable: Called with each file that cannot be read, which is passed over, and with the reason.

    Returns:
        Method to file.
    """
    found: dict[str, Path] = {}
    own = ""
    for path in paths:
        try:
            theirs = read_header(path)
            if theirs.architecture == HEADS_ARCHITECTURE:
                info = read_info(path)
                method, target = str(info.method), info.target
            elif theirs.architecture in HEAD_ARCHITECTURES:
                method, target = theirs.architecture, str(theirs.metadata.get(TARGET_KEY, ""))
                if not target and not unfit_by_header(theirs, header):  # published heads do not name their model
                    found.setdefault(method, path)
            else:
                continue
            own = own or identity(header)
        except SlipstreamError as error:
            unreadable(path, error)
            continue
        if target == own:
            found[method] = path
    return found
