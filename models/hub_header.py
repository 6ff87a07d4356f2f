"""The first bytes of a file on the hub, as a file to read from."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Final

FIRST: Final = 1 << 20
"""Bytes of the first request: enough for models with small vocabularies."""


class RemoteStart(io.RawIOBase):
    """Reads a remote file from its start; what was fetched is kept, and only what is missing is asked for."""

    def __init__(self, fetch: Callable[[int, int], bytes], size: int) -> None:
        """Fetches nothing yet.

        Args:
            fetch: Returns the bytes from a place on: that many, no more and no less.
            size: Length of the file.
        """
        self._fetch = fetch
        self._size = size
        self._bytes = bytearray()
        self._position = 0

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """Among the bytes of the file."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Moves; only counted from the start."""
        if whence != io.SEEK_SET or offset < 0:
            raise OSError("a remote file is read from its start")
        self._position = offset
        return offset

    def read(self, size: int = -1) -> bytes:
        """Returns up to that many bytes, fetching what is missing."""
        if size < 0:
            raise OSError("a remote file is not read whole")
        end = min(self._size, self._position + size)
        have = len(self._bytes)
        if end > have:
            self._bytes += self._fetch(have, min(self._size, max(end, have + FIRST)) - have)
        out = bytes(self._bytes[self._position : end])
        self._position += len(out)
        return out
