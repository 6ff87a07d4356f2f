"""The first bytes of a GGUF file, and what a file is that has others."""

from __future__ import annotations

from typing import BinaryIO, Final

from slipstream.models.gguf_parse import DamagedError
from slipstream.models.quoting import quoted

MAGIC: Final = b"GGUF"
_ANOTHER_FORMAT: Final = "Slipstream reads GGUF files: look for one whose name ends in .gguf."
_STRANGERS: Final = (
    ((b"lmgg", b"fmgg", b"tjgg", b"algg"), "is an old GGML file, from before GGUF", _ANOTHER_FORMAT),
    ((b"PK\x03\x04",), "is a zip or PyTorch file, not a GGUF file", _ANOTHER_FORMAT),
    ((b"version https://git-lfs",), "is a Git LFS pointer, not the model", "Fetch the file itself: git lfs pull."),
    (
        (b"<!DOCTYPE", b"<!doctype", b"<html"),
        "is a web page, not a GGUF file",
        "Download the file itself, not its page.",
    ),
)


def check_magic(file: BinaryIO, size: int) -> None:
    """Checks that a file begins as a GGUF file of a version that llama.cpp reads; the file is then at its start again.

    Raises:
        DamagedError: If it does not; it says what the file is instead, where that can be told.
    """
    if size == 0:
        raise DamagedError("is empty", "The download may have failed: fetch the file again.")
    start = file.read(64)
    file.seek(0)
    if not start.startswith(MAGIC[: len(start)]):
        for magics, what, hint in _STRANGERS:
            if start.startswith(magics):
                raise DamagedError(what, hint)
        raise DamagedError(f"is not a GGUF file: it starts with {_beginning(start)}", _ANOTHER_FORMAT)
    if size < 24:
        raise DamagedError(f"is cut short after {size} bytes", "The download may have stopped early: fetch it again.")
    version = int.from_bytes(start[4:8], "little")
    if version not in (2, 3):
        if version and version & 0xFFFF == 0:
            raise DamagedError("is a big-endian GGUF file", "Choose a copy of the model made for this kind of machine.")
        newer = "newer than this Slipstream knows" if version > 3 else "which llama.cpp no longer reads"
        raise DamagedError(f"is a GGUF file of version {version}, {newer}", "Choose a copy of version 2 or 3.")


def _beginning(start: bytes) -> str:
    try:
        text = start[:24].decode().split("\n", 1)[0]
    except UnicodeDecodeError:
        return quoted(start[:8])
    return quoted(text[:16] or start[:8])
