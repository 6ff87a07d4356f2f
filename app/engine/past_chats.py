"""Keeps the text index in step with the owner's chats while the engine is idle."""

from typing import Final

from slipstream.app.chats.deletion_hooks import CHAT
from slipstream.app.chats.reading import ChatReader, StoredReply
from slipstream.app.engine.prompt import PromptBuilder
from slipstream.app.protocol.requests import Message
from slipstream.drafters.text_index import TextIndex, TextPiece
from slipstream.models.types import Token

_SLICE: Final = 1 << 14  # tokens read at once; a request waits for at most one slice
_AT_ONCE: Final = 256  # replies of a chat that are read at once
_MOST: Final = 1 << 22  # tokens added at once
_GROWTH: Final = 20  # new replies are added once they are this part of the index, since adding sorts all of it
_NO_LIMIT: Final = 1 << 31


class PastChats:
    """Adds new replies to the text index, and removes deleted chats; nothing else adds chats.

    It compares the index with the database, so it also adds replies that a killed process left out, older chats, and
    chats of other models. A reply is indexed after its question as a prompt, so that the same question finds it.
    """

    def __init__(
        self, chats: ChatReader, index: TextIndex, fingerprint: str, prompts: PromptBuilder, n_vocab: int
    ) -> None:
        """Reads nothing yet; stored token ids are valid for the model of this ``fingerprint`` only."""
        self._chats, self._index, self._fingerprint = chats, index, fingerprint
        self.prompts, self._n_vocab = prompts, n_vocab
        self._new: list[TextPiece] = []  # read, not added yet
        self._size = 0  # tokens of these
        self._known_before: dict[str, int] = {}  # newest indexed reply of each chat when the first of these was read

    def catch_up(self) -> bool:
        """Removes deleted chats and reads a slice of new replies, added once there are enough; whether any are left."""
        self._index.refresh()
        newest = self._chats.newest()
        known = self._known()
        if gone := known.keys() - newest.keys():
            self._index.remove([CHAT + chat for chat in gone])
        if not self._new:
            self._known_before = known
        held = known | {piece.name.removeprefix(CHAT): piece.stamp for piece in self._new}
        until = self._size + _SLICE
        for chat, last in newest.items():
            if last <= held.get(chat, 0):
                continue
            replies = self._chats.replies(chat, held.get(chat, 0), _AT_ONCE)
            for reply in replies:
                if self._size > min(until, _MOST):
                    break
                tokens = self._tokens(reply)
                self._new.append(TextPiece(CHAT + chat, tokens, reply.id))
                self._size += len(tokens)
            if self._size > _MOST:
                self._add()
                return True
            if self._size > until or len(replies) == _AT_ONCE:  # the rest of this chat is read in the next slice
                return True
        return self._size * _GROWTH >= self._index.size().tokens and not self._add()

    def _known(self) -> dict[str, int]:
        documents = self._index.documents().items()
        return {name.removeprefix(CHAT): found.stamp for name, found in documents if name.startswith(CHAT)}

    def _add(self) -> bool:
        """Adds what was read, unless its chats were deleted meanwhile, or another engine has added it."""
        pieces, self._new, self._size, before = self._new, [], 0, self._known_before
        chats = {piece.name.removeprefix(CHAT) for piece in pieces}

        def still_wanted() -> bool:
            now = self._known()
            return self._chats.has(chats) and all(now.get(chat) == before.get(chat) for chat in chats)

        return self._index.add(pieces, still_wanted)

    def _tokens(self, reply: StoredReply) -> list[Token]:
        tokens = reply.tokens
        if reply.model != self._fingerprint or not tokens or not 0 <= min(tokens) <= max(tokens) < self._n_vocab:
            tokens = self.prompts.tokens_of(reply.content)
        if not reply.question.strip():
            return tokens
        return self.prompts.build([Message("user", reply.question)], _NO_LIMIT).tokens + tokens
