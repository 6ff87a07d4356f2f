"""The chats, in one SQLite file that survives a kill at any moment.

A user's message is on disk before the engine reads it. A reply is a row that grows while it streams; the next start
marks replies of a killed process "interrupted". Writes that must survive a power cut are synchronous.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from slipstream.app.chats.chat_list import ChatList
from slipstream.app.chats.database import Database
from slipstream.app.chats.images import ImageFolder
from slipstream.app.chats.messages import Messages
from slipstream.models.errors import SlipstreamError


class ChatStore:
    """All chats and their messages, safe to call from any thread; combines ``ChatList`` and ``Messages``."""

    def __init__(
        self,
        path: Path,
        states: Path | None = None,
        heads: Path | None = None,
        index: Path | None = None,
        images: Path | None = None,
    ) -> None:
        """Opens or creates the database, and erases the chats that were deleted before.

        Args:
            states: Folder of kept KV caches, which are deleted with their chats.
            heads: Folder of trained heads; deleting a chat marks the heads trained on it.
            index: Folder of the text indexes, from which deleted chats are removed.
            images: Folder of the images in chats; None for one next to the database.
        """
        self.database = database = Database(path)
        self.path = path
        self.listen = database.listen
        self.images = ImageFolder(images or path.parent / "images")
        self._chats = chats = ChatList(database, states, heads, index, self.images)
        self.list_chats, self.get, self.find = chats.list_chats, chats.get, chats.find
        self.create, self.open_or_create = chats.create, chats.open_or_create
        self.rename, self.pin = chats.rename, chats.pin
        self.sampling, self.keep_sampling, self.state = chats.sampling, chats.keep_sampling, chats.state
        self.delete, self.restore, self.erase_deleted = chats.delete, chats.restore, chats.erase_deleted
        talk = Messages(database, chats)
        self.messages, self.all_messages, self.forks = talk.messages, talk.all_messages, talk.forks
        self.search, self.prompts, self.refused = talk.search, talk.prompts, talk.refused
        self.add_user, self.set_system, self.add_chat = talk.add_user, talk.set_system, talk.add_chat
        self.add_summary, self.remove_summary = talk.add_summary, talk.remove_summary
        self.begin_reply, self.go_on, self.append_reply = talk.begin_reply, talk.go_on, talk.append_reply
        self.finish_reply, self.withdraw, self.show = talk.finish_reply, talk.withdraw, talk.show
        try:
            chats.sweep()
        except SlipstreamError as error:  # tried again at the next start; the other chats can be read
            database.notice = database.notice or f"{error.title} {error.hint}"
        if self.alone:  # otherwise another process may still be writing them
            talk.interrupt()

    @property
    def alone(self) -> bool:
        """Whether no other process had the file open."""
        return self.database.alone

    @property
    def notice(self) -> str:
        """The last report of restored files, or empty; after ``listen``, new reports go there instead."""
        return self.database.notice

    def close(self) -> None:
        """Erases deleted chats, which can then no longer be restored, and closes the file."""
        with suppress(SlipstreamError):  # the next start tries again, or the file is already closed
            self._chats.sweep()
        self.database.close()
