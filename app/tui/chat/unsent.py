"""Stores unsent text per chat, across restarts."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from slipstream.app.platform.paths import write_private
from slipstream.models.errors import SlipstreamError
from slipstream.models.outside import read_object

_LARGEST: Final = 8 << 20  # maximum bytes of the file
NEW: Final = ""  # key of a new chat, which is not stored yet


class Unsent:
    """Unsent texts by chat; without a file, they are kept only until the program ends."""

    def __init__(self, path: Path | None) -> None:
        """Reads the file; an unreadable one counts as empty."""
        self._path = path
        self._texts: dict[str, str] = {}
        self._kept = True  # whether the file is up to date
        if path:
            self._texts = {chat: text for chat, text in read_object(path, _LARGEST).items() if isinstance(text, str)}

    def of(self, chat: str) -> str:
        """The unsent text of a chat; empty if there is none."""
        return self._texts.get(chat, "")

    def put(self, chat: str, text: str) -> None:
        """Replaces the unsent text of a chat."""
        if text == self.of(chat):
            return
        self._kept = False
        self._texts.pop(chat, None)
        if text.strip():
            self._texts[chat] = text

    def keep(self, is_kept: Callable[[str], bool]) -> None:
        """Writes the file if anything changed, without texts of deleted chats.

        Args:
            is_kept: Whether a chat still exists, by id.
        """
        gone = [chat for chat in self._texts if chat != NEW and not is_kept(chat)]
        for chat in gone:
            del self._texts[chat]
        if self._path is None or (self._kept and not gone):
            return
        self._kept = True
        with suppress(OSError, SlipstreamError):  # a full disk is reported when a chat is stored
            if self._texts:
                write_private(self._path, json.dumps(self._texts))
            else:
                self._path.unlink(missing_ok=True)
