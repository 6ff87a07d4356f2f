"""The chats, in one SQLite file that survives a kill at any moment.

A user's message is on disk before the engine reads it. A reply is a row that grows while it streams; the next start
marks replies of a killed process "interrupted". Writes that must survive a power cut are synchronous.
"""

from contextlib import ExitStack, suppress
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
        states: Path | None = None,  # folder of kept KV caches, which are deleted with their chats
        heads: Path | None = None,  # folder of trained heads; deleting a chat marks those trained on it
        index: Path | None = None,  # folder of the text indexes, from which deleted chats are removed
        images: Path | None = None,  # folder of the images in chats; None for one next to the database
    ) -> None:
        self.database = database = Database(path)
        self.path = path
        self.listen, self.alone = database.listen, database.alone
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
        self.add_user, self.set_system, self.add_chats = talk.add_user, talk.set_system, talk.add_chats
        self.add_summary, self.remove_summary = talk.add_summary, talk.remove_summary
        self.begin_reply, self.go_on, self.append_reply = talk.begin_reply, talk.go_on, talk.append_reply
        self.finish_reply, self.withdraw, self.show = talk.finish_reply, talk.withdraw, talk.show
        self.remove, self.put_back = talk.remove, talk.put_back
        with ExitStack() as opened:
            opened.callback(database.close)
            try:
                chats.sweep()
            except SlipstreamError as error:  # tried again at the next start; the other chats can be read
                database.notice = database.notice or f"{error.title} {error.hint}"
            if self.alone:  # otherwise another process may still be writing them
                talk.interrupt()
            opened.pop_all()

    @property
    def notice(self) -> str:
        return self.database.notice

    def close(self) -> None:
        """Erases deleted chats, which can then no longer be restored, and closes the file."""
        with suppress(SlipstreamError):  # the next start tries again, or the file is already closed
            self._chats.sweep()
        self.database.close()
