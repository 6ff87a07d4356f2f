"""Maps text between two vocabularies: the history to the draft model's tokens, and drafted text to the target's."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Final, Protocol

from slipstream.models.gguf.reader import Header
from slipstream.models.types import Token, shared_prefix

_AT_ONCE: Final = 512  # most target tokens that are translated in one step, to keep steps short
_GROUP: Final = 32  # target tokens that are tokenized together in a long new part
_LONG: Final = 64  # target tokens without a space, after which text is cut between any two characters
_CONTROL: Final = 3  # a token's type in a GGUF
_SPACE: Final = b" \t\n\r"


class Vocabulary(Protocol):
    """The part of ``LlamaModel`` that a mapping uses."""

    @property
    def ends(self) -> frozenset[Token]: ...
    def tokenize(self, text: str, special: bool) -> list[Token]: ...
    def piece(self, token: Token) -> bytes: ...
    def opening(self) -> list[Token]: ...


class Tokenizer:
    """Tokenizes pieces from the middle of a text."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._pieces: dict[Token, bytes] = {}
        self._leads = {lead: vocabulary.tokenize(lead, False) for lead in ("a", "\n")}

    def piece(self, token: Token) -> bytes:
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._vocabulary.piece(token)
        return piece

    def inside(self, text: str) -> list[Token]:
        """Tokenizes a piece that follows other text.

        Some tokenizers add a space before the first word; so other text is put before the piece, and its tokens are
        dropped.
        """
        lead = "a" if text[:1].isspace() else "\n"
        tokens, dropped = self._vocabulary.tokenize(lead + text, False), self._leads[lead]
        size = len(dropped)
        return tokens[size:] if tokens[:size] == dropped else self._vocabulary.tokenize(text, False)


class VocabularyMapping:
    """The history in the tokens of a draft model, and the draft model's text in the tokens of the target.

    Tokens are translated by their bytes. The history is cut where a word or a control token begins. When the history
    grows, only the text after the last cut is tokenized again, so a step costs work for its new tokens only. Control
    tokens have no bytes: those with equal names are matched, others are left out.
    """

    def __init__(self, target: Vocabulary, draft: Vocabulary, controls: Mapping[Token, Token]) -> None:
        """Starts empty; ``controls`` maps control tokens that both models have, the target's to the draft model's."""
        self._target, self._draft = Tokenizer(target), Tokenizer(draft)
        self._opening = len(target.opening())  # replaced by the draft model's own
        self._to_draft = dict(controls)
        self._to_target = {theirs: ours for ours, theirs in controls.items()}
        self._source: list[Token] = []  # the part of the history that was translated
        self._agreed = 0  # how many of these tokens the next history is known to share
        self.tokens = list(draft.opening())  # the history in the draft model's tokens; read-only
        self.whole = False  # whether ``tokens`` covers the whole history
        self.ends = draft.ends  # the draft model's tokens that end a reply
        self._cuts = [(0, len(self.tokens))]  # tokens of the history and of ``tokens`` before each cut

    def begin(self) -> None:
        self._agreed = 0

    def rewind(self, length: int) -> None:
        """Records that the history may have changed from index ``length`` on."""
        self._agreed = min(self._agreed, length)

    def behind(self, history: list[Token]) -> int:
        """Number of tokens that ``follow`` would translate; changes nothing, and needs no ``begin``."""
        at = min(self._agreed, len(self._source), len(history))
        if at and self._source[at - 1] != history[at - 1]:
            at = 0
        return len(history) - shared_prefix(self._source, history, at)

    def follow(self, history: list[Token]) -> int:
        """Translates the new part of a history, or the start of a long one; returns how many ``tokens`` stay."""
        same = shared_prefix(self._source, history, self._agreed)
        while self._cuts[-1][0] > same:
            self._cuts.pop()
        start, kept = self._cuts[-1]
        del self._source[start:], self.tokens[kept:]
        end = min(len(history), start + _AT_ONCE)
        tail = self._take(history, start, end)
        done = self._cuts[-1][0]
        self.whole = end == len(history) and not _unfinished(tail)
        if self.whole:
            self.tokens += self._draft.inside(tail.decode("utf-8", "replace")) if tail else []
            done = end
        self._source += history[start:done]
        self._agreed = done
        return kept

    def piece(self, token: Token) -> bytes:
        """The bytes of a token of the draft model; empty for control tokens."""
        return self._draft.piece(token)

    def control(self, token: Token) -> Token | None:
        """The target's token for a control token of the draft model, if there is one."""
        return self._to_target.get(token)

    def continued(self, text: bytes) -> list[tuple[Token, int]]:
        """Finds the target's tokens for text that follows the history.

        The text is tokenized together with the end of the history. Tokens are returned only if one of them begins where
        the history ends; otherwise the text would change the history's last token.

        Args:
            text: The bytes that follow; cut at the first invalid character.

        Returns:
            The tokens, and for each the length of the text up to its end.
        """
        before = b"".join(map(self._target.piece, self._source[self._cuts[-1][0] :]))
        raw = before + text[: len(text) - _unfinished(text)]
        try:
            raw.decode()
        except UnicodeDecodeError as error:
            raw = raw[: error.start]
        if len(raw) <= len(before):
            return []
        tokens = self._target.inside(raw.decode())
        pieces = [self._target.piece(token) for token in tokens]
        ends = list(accumulate(map(len, pieces)))
        if b"".join(pieces) != raw or len(before) not in (0, *ends):
            return []
        return [(token, end - len(before)) for token, end in zip(tokens, ends, strict=True) if end > len(before)]

    def _take(self, history: list[Token], start: int, end: int) -> bytes:
        """Translates tokens ``start`` to ``end`` of a history up to the last good cut; returns the bytes after it."""
        words = b""  # since the last cut
        good = 0, 0  # where the last word in ``words`` starts, in bytes and in tokens of the history
        for at in range(start, end):
            token = history[at]
            piece = self._target.piece(token)
            if not piece:
                self._cut(words, at)
                if at >= self._opening and token in self._to_draft:
                    self.tokens.append(self._to_draft[token])
                self._cut(b"", at + 1)
                words, good = b"", (0, 0)
                continue
            size, since = len(words), at - self._cuts[-1][0]
            if words and piece[0] == _SPACE[0] and words[-1] not in _SPACE:
                good = size, at
                if since >= _GROUP:
                    self._cut(words, at)
                    words, good = b"", (0, 0)
            elif since >= _LONG and not good[0] and (not _unfinished(words) or since >= 2 * _LONG):
                self._cut(words, at)
                words = b""
            words += piece
        if good[0]:
            self._cut(words[: good[0]], good[1])
            words = words[good[0] :]
        return words

    def _cut(self, words: bytes, at: int) -> None:
        if words:
            self.tokens += self._draft.inside(words.decode("utf-8", "replace"))
        self._cuts.append((at, len(self.tokens)))


def _unfinished(raw: bytes) -> int:
    for back in range(1, min(4, len(raw) + 1)):
        byte = raw[-back]
        if byte & 0xC0 != 0x80:
            size = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
            return back if size > back else 0
    return 0


def shared_controls(target: Header, draft: Header) -> dict[Token, Token]:
    """Matches control tokens of two vocabularies by name: the target's to the draft model's."""
    theirs = {name: token for name, token in _controls(draft)}
    return {token: theirs[name] for name, token in _controls(target) if name in theirs}


def _controls(header: Header) -> Sequence[tuple[str, Token]]:
    kinds = header.token_types
    return [(header.tokens[token], token) for token, kind in enumerate(kinds) if kind == _CONTROL]
