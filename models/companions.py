"""Which files of trained heads were made for a model."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from slipstream.models.eagle_check import unfit_by_header
from slipstream.models.errors import SlipstreamError
from slipstream.models.gguf import Header, read_header
from slipstream.models.heads import ARCHITECTURE, identity, read_info

HEAD_ARCHITECTURES = frozenset({"eagle3"})
"""Architectures of heads that llama.cpp itself runs; ``slipstream.heads.target`` names the model they are for."""

TARGET_KEY = "slipstream.heads.target"


def companions(header: Header, paths: Iterable[Path]) -> dict[str, Path]:
    """Finds the heads that were trained for this very model.

    Args:
        header: Of the model.
        paths: Files that may be heads; of several for one method the last is taken. What cannot be read is passed over:
            ``slipstream drafters list`` says what is wrong with it.

    Returns:
        Method to file.
    """
    found: dict[str, Path] = {}
    own = ""
    for path in paths:
        with suppress(SlipstreamError):
            theirs = read_header(path)
            if theirs.architecture == ARCHITECTURE:
                info = read_info(path)
                method, target = str(info.method), info.target
            elif theirs.architecture in HEAD_ARCHITECTURES:
                method, target = theirs.architecture, str(theirs.metadata.get(TARGET_KEY, ""))
                if not target and not unfit_by_header(theirs, header):  # published heads do not name their model
                    found.setdefault(method, path)
            else:
                continue
            own = own or identity(header)
            if target == own:
                found[method] = path
    return found
