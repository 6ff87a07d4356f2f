"""What heads are trained on: the model's own answers, a folder, or, only when asked, the owner's chats."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from slipstream.app.chats.store import ChatStore
from slipstream.app.paths import Paths
from slipstream.models.errors import UsageError
from slipstream.models.heads import Text

Messages = Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class ChosenText:
    """Text to train on.

    Attributes:
        kind: What it is.
        folder: Of a folder, its absolute path.
        chats: Of chats, id to messages.
    """

    kind: Text
    folder: Path | None = None
    chats: Mapping[str, Messages] = field(default_factory=dict)

    def facts(self) -> list[object]:
        """Plain values that differ where the text does."""
        lengths = {chat: sum(len(message["content"]) for message in said) for chat, said in self.chats.items()}
        return [self.kind, str(self.folder), lengths]


def chosen_text(on: str, paths: Paths) -> ChosenText:
    """The text that ``--on`` asks for.

    Args:
        on: ``answers``, ``chats`` or the path of a folder.
        paths: Where the chats are.

    Raises:
        UsageError: If it is none of them, or no chat has a reply.
        SlipstreamError: If the chats cannot be read.
    """
    if on == "answers":
        return ChosenText("answers")
    if on == "chats":
        return ChosenText("chats", chats=_chats(paths))
    folder = Path(on).expanduser()
    if not folder.is_dir():
        raise UsageError(
            f"there is no text {on!r} to train on.",
            "Known: answers (what the model itself writes), chats (your own chats), or the path of a folder.",
        )
    return ChosenText("folder", folder.resolve())


def _chats(paths: Paths) -> dict[str, Messages]:
    """The shown branch of every chat with a reply, up to the first message without text, by id."""
    found: dict[str, Messages] = {}
    with closing(ChatStore(paths.chats, paths.states, paths.heads, paths.index)) as store:
        if store.notice:
            print(f"slipstream: {store.notice}", file=sys.stderr)
        for chat in sorted(kept.id for kept in store.list_chats(limit=-1)):  # SQLite: no limit
            said = [
                {"role": message.role, "content": message.content}
                for message in takewhile(lambda message: message.content.strip(), store.messages(chat))
            ]
            if any(message["role"] == "assistant" for message in said):
                found[chat] = said
    if not found:
        raise UsageError("no chat with a reply is kept yet.", "Chat first, or train on answers or on a folder.")
    return found
