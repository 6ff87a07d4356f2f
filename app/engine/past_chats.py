"""Keeps the text index in step with the owner's chats while the engine is idle."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from slipstream.app.chats.deletion_hooks import CHAT
from slipstream.app.chats.store import ChatReader, StoredReply
from slipstream.app.engine.prompt import PromptBuilder
from slipstream.app.protocol.requests import Message
from slipstream.drafters.text_index.index import TextIndex
from slipstream.drafters.text_index.text import Piece
from slipstream.models.errors import SlipstreamError
from slipstream.models.types import Token

_SLICE: Final = 1 << 14  # tokens indexed at once; a request waits for at most one slice
_AT_ONCE: Final = 256  # replies of a chat that are read at once
SEGMENTS: Final = 8  # more segments than this are merged, to keep searches fast
_NO_LIMIT: Final = 1 << 31


class PastChats:
    """Adds new replies to the text index, and removes deleted chats; nothing else adds chats.

    It compares the index with the database, so it also adds replies that a killed process left out, older chats, and
    chats of other models. A reply is indexed after its question as a prompt, so that the same question finds it.
    """

    def __init__(
        self,
        chats: ChatReader,
        index: TextIndex,
        fingerprint: str,
        prompts: PromptBuilder,
        tokenize: Callable[[str, bool], list[Token]],
        n_vocab: int,
    ) -> None:
        """Reads nothing yet.

        Args:
            fingerprint: Identifies the model; stored token ids are valid for it only.
        """
        self._chats, self._index, self._fingerprint = chats, index, fingerprint
        self.prompts, self._tokenize, self._n_vocab = prompts, tokenize, n_vocab
        self.merging = threading.Thread()

    def catch_up(self) -> bool:
        """Removes deleted chats, and adds a slice of the new replies.

        Returns:
            Whether more replies are left to add.
        """
        self._index.refresh()
        newest = self._chats.newest()
        known = self._known()
        if gone := known.keys() - newest.keys():
            self._index.remove([CHAT + chat for chat in gone])
        pieces, size = list[Piece](), 0
        for chat, last in newest.items():
            if last <= known.get(chat, 0):
                continue
            replies = self._chats.replies(chat, known.get(chat, 0), _AT_ONCE)
            for reply in replies:
                if size > _SLICE:
                    break
                tokens = self._tokens(reply)
                pieces.append(Piece(CHAT + chat, tokens, reply.id))
                size += len(tokens)
            if size > _SLICE or len(replies) == _AT_ONCE:  # the rest of this chat is read after these are known
                self._add(pieces, known)
                return True
        self._merge()
        return not self._add(pieces, known)

    def _known(self) -> dict[str, int]:
        documents = self._index.documents().items()
        return {name.removeprefix(CHAT): found.stamp for name, found in documents if name.startswith(CHAT)}

    def _add(self, pieces: list[Piece], known: dict[str, int]) -> bool:
        """Adds replies unless their chats were deleted meanwhile, or another engine has added them."""
        chats = {piece.name.removeprefix(CHAT) for piece in pieces}

        def still_wanted() -> bool:
            now = self._known()
            return self._chats.has(chats) and all(now.get(chat) == known.get(chat) for chat in chats)

        return self._index.add(pieces, still_wanted)

    def _tokens(self, reply: StoredReply) -> list[Token]:
        tokens = reply.tokens
        if reply.model != self._fingerprint or not tokens or not 0 <= min(tokens) <= max(tokens) < self._n_vocab:
            tokens = self._tokenize(reply.content, False)
        if not reply.question.strip():
            return tokens
        return self.prompts.build([Message("user", reply.question)], _NO_LIMIT).tokens + tokens

    def _merge(self) -> None:
        """Merges many segments into few in a thread, since it may take seconds; it can be killed safely."""
        if self._index.size().segments > SEGMENTS and not self.merging.is_alive():
            self.merging = threading.Thread(target=self._tidy, name="merging", daemon=True)
            self.merging.start()

    def _tidy(self) -> None:
        with suppress(SlipstreamError):  # tried again after the next reply
            self._index.tidy()
