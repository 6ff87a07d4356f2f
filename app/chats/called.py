"""Which chats a person means who names one: by its id, its title, or the beginning of the title."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.app.chats.records import StoredChat
from slipstream.app.safe_text import one_line
from slipstream.models.errors import UsageError

_MOST_NAMED = 5


def is_called(chat: StoredChat, name: str) -> bool:
    """Whether a name is all of a chat's id or title, in capitals or not."""
    return _plain(name) in (_plain(chat.id), _plain(chat.title))


def called(chats: Sequence[StoredChat], name: str) -> list[StoredChat]:
    """The chats that a name may mean: by its whole id, else by a whole title, else by how a title begins."""
    begin = _plain(name)
    if not begin:
        return []
    return (
        [chat for chat in chats if chat.id == name]
        or [chat for chat in chats if is_called(chat, name)]
        or [chat for chat in chats if _plain(chat.title).startswith(begin)]
    )


def only(found: Sequence[StoredChat], name: str) -> StoredChat:
    """The one chat that was found.

    Raises:
        UsageError: If there are several; the hint lists them.
    """
    if len(found) == 1:
        return found[0]
    named = "; ".join(shown(chat) for chat in found[:_MOST_NAMED])
    more = f"; and {len(found) - _MOST_NAMED:,} more" if len(found) > _MOST_NAMED else ""
    raise UsageError(
        f'"{one_line(name)}" may be any of {len(found):,} chats.',
        f"Name one by its id, which stands first: {named}{more}.",
    )


def shown(chat: StoredChat) -> str:
    """Id and title, for a line of text."""
    return f"{chat.id} ({one_line(chat.title)})" if chat.title else chat.id


def _plain(text: str) -> str:
    return one_line(text).casefold()
