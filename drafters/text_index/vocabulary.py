"""Which folder holds the text of a model: models that spell text in the same tokens share one."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from slipstream.drafters.text_index.files import make_folder, worded
from slipstream.drafters.text_index.index import TextIndex
from slipstream.models.gguf import Header

_SPELLING: Final = "tokenizer.ggml."
_NOT_SPELLING: Final = ("_token", "_token_id")  # which tokens begin, end and pad a text: uploads of one model differ


def fingerprint(header: Header) -> str:
    """Names a tokenizer by its content: SHA-256 in hex of what decides how plain text is spelled in its tokens."""
    digest = hashlib.sha256()
    for key in sorted(header.metadata):
        if key.startswith(_SPELLING) and not key.endswith(_NOT_SPELLING):
            digest.update(repr((key, header.metadata[key])).encode())
    return digest.hexdigest()


def folder_of(root: Path, header: Header) -> Path:
    """The folder below ``root`` of the index that serves a model."""
    return root / fingerprint(header)[:16]


def open_index(root: Path, header: Header) -> TextIndex:
    """Opens the index that serves a model, or makes an empty one.

    Args:
        root: Folder of all indexes.
        header: The model's.

    Raises:
        SlipstreamError: If it is damaged, in use for long, or cannot be written.
    """
    with worded(root):
        make_folder(root)
    return TextIndex(folder_of(root, header), fingerprint(header), header.n_vocab)
