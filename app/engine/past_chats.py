"""Keeps the index of text in step with the owner's chats, when nothing else is to be done."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from slipstream.app.chats.deletion_hooks import CHAT
from slipstream.app.chats.reading import ChatReader, StoredReply
from slipstream.app.engine.prompt import PromptBuilder
from slipstream.app.protocol import Message
from slipstream.drafters.text_index.index import TextIndex
from slipstream.drafters.text_index.text import Piece
from slipstream.models.errors import SlipstreamError
from slipstream.models.types import Token

_SLICE: Final = 1 << 14  # tokens; a request that comes meanwhile waits for so many to be indexed
SEGMENTS: Final = 8  # beyond that many files a search is worth a merge
_NO_LIMIT: Final = 1 << 31


class PastChats:
    """Adds chats to an index, and removes deleted ones, by comparing the two; nothing else adds chats.

    Hence nothing is lost when a process is killed, and chats from before the index, or from before another model, are
    taken up as well. A reply is indexed behind the words that it answers, rendered as the model reads them, so that the
    same question finds its answer.
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
            fingerprint: Of the model: kept token ids are good for it alone.
        """
        self._chats, self._index, self._fingerprint = chats, index, fingerprint
        self.prompts, self._tokenize, self._n_vocab = prompts, tokenize, n_vocab
        self.merging = threading.Thread()

    def catch_up(self) -> bool:
        """Does a slice of what is to be done.

        Returns:
            Whether there is more.
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
            for reply in self._chats.replies(chat, known.get(chat, 0)):
                if size > _SLICE:
                    self._add(pieces, known)
                    return True
                tokens = self._tokens(reply)
                pieces.append(Piece(CHAT + chat, tokens, reply.id))
                size += len(tokens)
        self._merge()
        return not self._add(pieces, known)

    def _known(self) -> dict[str, int]:
        """The newest reply that is indexed of every chat."""
        documents = self._index.documents().items()
        return {name.removeprefix(CHAT): found.stamp for name, found in documents if name.startswith(CHAT)}

    def _add(self, pieces: list[Piece], known: dict[str, int]) -> bool:
        """Adds replies unless their chats were deleted meanwhile, or another engine was faster."""
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
        """Merges many small files into few, beside what else is done: it may take seconds, and may be killed."""
        if self._index.size().segments > SEGMENTS and not self.merging.is_alive():
            self.merging = threading.Thread(target=self._tidy, name="merging", daemon=True)
            self.merging.start()

    def _tidy(self) -> None:
        with suppress(SlipstreamError):  # tried again after the next reply
            self._index.tidy()
