"""Takes text out of every index, whatever the vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from slipstream.drafters.text_index.index import TextIndex
from slipstream.models.errors import SlipstreamError


def forget(root: Path, unwanted: Callable[[str], bool]) -> set[str]:
    """Removes documents from every index in the folders of ``root``.

    Args:
        root: Folder of indexes.
        unwanted: Tells by its name whether a document is to go.

    Returns:
        The names of what was removed.

    Raises:
        SlipstreamError: If an index cannot be read or written; the others are done all the same.
    """
    removed, failure = set[str](), None
    for folder in sorted(root.iterdir()) if root.is_dir() else []:
        try:
            index = TextIndex.existing(folder) if folder.is_dir() else None
            names = set(filter(unwanted, index.documents())) if index else set()
            if index and names:
                index.remove(names)
            removed |= names
        except SlipstreamError as error:
            failure = error
    if failure:
        raise failure
    return removed
