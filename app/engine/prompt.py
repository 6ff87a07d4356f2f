"""Builds the target's prompt tokens from a chat's messages."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import groupby
from pathlib import Path
from typing import Final, Protocol

from slipstream.app.chats.images import MARK
from slipstream.app.chats.reasoning import in_channels, split
from slipstream.app.protocol.events import check_size, least_tokens, longer_context
from slipstream.app.protocol.requests import Message
from slipstream.models.chat_template import AUTO_LEVEL, CHANNEL, CLOSING, THINKING, left_open
from slipstream.models.chat_template.reasoning import Reasoning, Switch, keeps_thoughts, reasoning_of, with_word
from slipstream.models.chat_template.template import ChatTemplate, TemplatePart, after_bos, joined
from slipstream.models.errors import ContextFullError, SlipstreamError, UsageError
from slipstream.models.outside import LARGEST
from slipstream.models.types import Token, shared_prefix

_REPLY_ROOM: Final = 256  # tokens kept free for the reply; in a small context, a quarter of it
_LONG: Final = 50_000
"""Characters of messages beyond which building a prompt may take over 0.1 s, the limit for stopping a reply."""
_POLL: Final = 0.02  # seconds
_UNSURE: Final = 8  # number of last tokens of a typed text that the next letters may change


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt that fits the context, or the beginning of one."""

    tokens: list[Token]  # what the target reads
    trimmed: int  # number of tokens in dropped messages; the sampler's noise positions still count them
    dropped: int  # number of dropped messages, the oldest ones
    size: int  # number of tokens of the whole prompt if it were sent now
    # number of tokens up to the end of the system prompt, which chats with the same one share; 0 without one
    system: int = 0
    thinks: str = ""  # closing mark of the reasoning if the prompt has opened it; otherwise empty
    said: int = 0  # number of tokens at the end that belong to the continued reply
    openers: frozenset[Token] = frozenset()  # tokens with which the reply may open its reasoning


class PromptTokenizer(Protocol):
    """Turns text into tokens: see ``slipstream.models.llama.model.LlamaModel.tokenize``."""

    def __call__(
        self, text: str, special: bool, written: Sequence[tuple[int, int]] = (), *, joins: bool = False
    ) -> list[Token]: ...


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a rendering, or of a message with images."""

    content: int | None  # index of its message; None for the template's own text
    text: str
    tokens: list[Token] | None = None  # those of an image, or of a reply as it was generated


class _Reading:
    """The tokens of a rendering: its text is tokenized as a whole, except at tokens that are known before."""

    def __init__(self, pieces: Sequence[_Piece], tokenize: PromptTokenizer, opening: list[Token]) -> None:
        self.pieces, self.tokens = pieces, list[Token]()
        self._tokenize = tokenize
        self._runs: list[tuple[int, int]] = []  # first piece of each run of text, and the number of tokens before it
        for known, run in groupby(range(len(pieces)), lambda at: -1 if pieces[at].tokens is None else at):
            first, *rest = run
            self._runs.append((first, len(self.tokens)))
            self.tokens += (pieces[first].tokens or []) if known >= 0 else self._run(first, first + len(rest) + 1)
        self._runs.append((len(pieces), len(self.tokens)))
        self._opened = len(opening)
        self.tokens = opening + self.tokens

    def until(self, count: int) -> int:
        """Number of tokens that the first pieces give, whatever text follows them."""
        at = bisect_left(self._runs, (count, 0))
        if self._runs[at][0] == count:
            return self._opened + self._runs[at][1]
        first, before = self._runs[at - 1]
        return shared_prefix(self.tokens[self._opened + before :], self._run(first, count)) + self._opened + before

    def _run(self, first: int, until: int) -> list[Token]:
        text, written = joined(TemplatePart(piece.text, piece.content) for piece in self.pieces[first:until])
        return self._tokenize(text, True, written, joins=first > 0)


@dataclass(frozen=True, slots=True)
class _Rendered:
    messages: Sequence[Message]
    switch: Switch
    read: _Reading
    thinks: str
    openers: frozenset[Token]

    @property
    def tokens(self) -> list[Token]:
        return self.read.tokens

    def last(self) -> tuple[int, int]:
        own = [at for at, piece in enumerate(self.read.pieces) if piece.content == len(self.messages) - 1]
        return (self.read.until(own[0]), self.read.until(own[-1] + 1)) if own else (len(self.tokens),) * 2

    def system_size(self) -> int:
        """Number of tokens up to the end of the system prompt; 0 without one."""
        contents = [piece.content for piece in self.read.pieces]
        if self.messages[0].role != "system" or 0 not in contents:
            return 0
        return self.read.until(next((at for at, content in enumerate(contents) if content), 0))


class PromptBuilder:
    """Renders messages by a chat template and turns them into tokens.

    Names of control tokens in messages are tokenized as text, so that a pasted ``<|im_end|>`` stays text.
    """

    def __init__(
        self,
        template: ChatTemplate,
        tokenize: PromptTokenizer,
        opening: list[Token],
        token_bytes: int = 0,
        *,
        n_vocab: int = LARGEST,
        images: Callable[[Path, str], list[Token]] | None = None,
        blind: SlipstreamError | None = None,
        longest: int = 0,
        system: str = "",
    ) -> None:
        """Creates a builder; every text starts with the tokens in ``opening``.

        A reply with other ids than those below ``n_vocab``, as an imported chat may have, is tokenized anew. ``images``
        turns the file of an image and its SHA-256 into tokens; without it, an image raises ``blind``. ``longest`` is
        the longest context that the model can have, 0 if unknown; ``system`` the system prompt of chats without one.
        """
        self._template, self._tokenize, self._opening = template, tokenize, opening
        self._n_vocab, self._token_bytes = n_vocab, token_bytes
        self._images, self._blind, self._longest = images, blind, longest
        self._system = [Message("system", system)] if system else []
        self._thread = ThreadPoolExecutor(1, "prompt")
        self._made: Future[Prompt] | None = None  # the last prompt made in the thread
        self._keeps_thoughts = cache(partial(keeps_thoughts, template))

    @cached_property
    def reasoning(self) -> Reasoning:
        return reasoning_of(self._template)

    def turn_ends(self, known: frozenset[Token]) -> tuple[frozenset[Token], tuple[str, ...]]:
        """The tokens and the texts that end a reply because the template ends a turn with them.

        There are none where the template ends a turn with one of the ``known`` end tokens. A mark that is no token of
        this vocabulary is written as text.
        """
        if CHANNEL in self._template.source:  # gpt-oss ends each channel of a reply with the mark of a turn
            return frozenset(), ()
        written = {mark: self._tokenize(mark, True) for mark in self._template.turn_marks}
        if any(token in known for tokens in written.values() for token in tokens):
            return frozenset(), ()
        return frozenset(tokens[0] for tokens in written.values() if len(tokens) == 1), tuple(written)

    def control_tokens(self, text: str) -> list[Token]:
        return self._tokenize(text, True)

    def tokens_of(self, text: str) -> list[Token]:
        """Tokens of a text that continues another."""
        return self._tokenize(text, False, joins=True)

    def unless(self, cancelled: Callable[[], bool], size: int, make: Callable[[], Prompt]) -> Prompt | None:
        """Makes a prompt from messages of ``size`` characters; returns None once it is cancelled.

        A long prompt is made in a thread, which runs to its end even after a cancel: neither the template nor
        llama.cpp's tokenizer can be interrupted. Only one prompt is made at a time.
        """
        if size < _LONG and (self._made is None or self._made.done()):
            return make()
        made = self._made = self._thread.submit(make)
        while not cancelled():
            with suppress(TimeoutError):
                return made.result(_POLL)
        made.cancel()
        return None

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)

    def build(
        self, messages: Sequence[Message], n_ctx: int, reasoning: str = AUTO_LEVEL, *, whole: bool = False
    ) -> Prompt:
        """Builds the prompt; drops the oldest turns if it does not fit, never the system message; ``whole`` drops none.

        It drops a quarter of the context at a time, so that the next turns can reuse the cache. If the last message is
        a reply, the prompt ends with it, and the model continues it. While there is room, the prompt keeps the same
        turns as when the reply began, so that the continuation is the same as without a stop.
        """
        if not messages or not (messages[-1].role == "assistant" or messages[-1].content.strip()):
            raise UsageError("the prompt is empty.", "Write something to answer.")
        messages = self._begun(messages)
        asked_now = messages[-1].content if messages[-1].role == "user" else ""
        check_size(asked_now, self._token_bytes, n_ctx, self._longest)
        if messages[-1].images and self._blind:
            raise self._blind
        asked, said = messages, list[Token]()
        if messages[-1].role == "assistant":
            asked, said = messages[:-1], self._generated(messages[-1]) or self.tokens_of(messages[-1].content)
        rendered = self._rendered(asked, self._switch(reasoning))
        kept = self._fitting(rendered, n_ctx, _room(n_ctx))
        if len(kept.tokens) + len(said) >= n_ctx and said:  # no room for another token
            kept = self._fitting(rendered, n_ctx, _room(n_ctx) - len(said))
        tokens = kept.tokens + said
        if len(tokens) >= n_ctx:
            raise self._too_long(kept, len(said), n_ctx)
        left = len(asked) - len(kept.messages)
        if left and whole:
            raise ContextFullError(
                f"the context is full: this chat has {len(rendered.tokens) + len(said):,} tokens, and {_room(n_ctx):,} "
                "fit beside a reply.",
                "/compact summarizes the older messages; the setting reply.overflow says what is done by itself.",
            )
        return Prompt(
            tokens,
            trimmed=len(rendered.tokens) - len(kept.tokens),
            dropped=left,
            size=len(tokens),
            system=kept.system_size(),
            thinks=kept.thinks,
            said=len(said),
            openers=kept.openers,
        )

    def beginning(
        self, messages: Sequence[Message], n_ctx: int, reasoning: str = AUTO_LEVEL, *, typed: bool = True
    ) -> Prompt:
        """Builds the beginning that a prompt likely has once its last message, so far ``typed``, is complete."""
        messages = self._begun(messages)
        last = messages[-1]
        least = least_tokens(last.content, self._token_bytes)
        if least >= n_ctx:
            return Prompt([], 0, 0, least)
        empty = not last.content.strip()
        whole = self._rendered([*messages[:-1], Message(last.role, ".") if empty else last], self._switch(reasoning))
        kept = self._fitting(whole, n_ctx, _room(n_ctx))
        begun, ended = kept.last()
        tokens = kept.tokens[: min(max(begun, ended - _UNSURE) if typed else begun, n_ctx - 1)]
        while tokens and tokens[-1] < 0:  # an image at the end may be incomplete
            tokens.pop()
        return Prompt(
            tokens,
            len(whole.tokens) - len(kept.tokens),
            len(whole.messages) - len(kept.messages),
            len(kept.tokens) - (ended - begun if empty else 0),
            min(kept.system_size(), len(tokens)),
        )

    def _switch(self, level: str) -> Switch:
        return self.reasoning.switch(level) if level != AUTO_LEVEL else Switch()

    def _begun(self, messages: Sequence[Message]) -> Sequence[Message]:
        return messages if messages[0].role == "system" else [*self._system, *messages]

    def _fitting(self, whole: _Rendered, n_ctx: int, room: int) -> _Rendered:
        """Drops the oldest turns until the prompt fits, or only the last turn is left.

        It frees a multiple of a quarter of the context, or less if a long turn would free a quarter more than that. The
        choice depends on the messages alone, so the same chat always gets the same prompt.
        """
        if len(whole.tokens) <= room:
            return whole
        messages = whole.messages
        system = messages[:1] if messages[0].role == "system" else []
        cuts = [at for at in range(len(system) + 1, len(messages)) if messages[at].role == "user"]
        made = {0: whole}

        def shorter(count: int) -> _Rendered:
            if count not in made:
                made[count] = self._rendered([*system, *messages[cuts[count - 1] :]], whole.switch)
            return made[count]

        def fewest(size: int) -> int:
            """Fewest turns to drop for a prompt of at most ``size`` tokens; at most all but the last."""
            return bisect_left(range(len(cuts)), True, key=lambda count: len(shorter(count).tokens) <= size)

        step = max(n_ctx // 4, 1)
        goal = len(whole.tokens) - -(-(len(whole.tokens) - room) // step) * step
        needed, wanted = fewest(room), fewest(goal)
        while wanted > needed and len(shorter(wanted).tokens) < goal - step:
            wanted -= 1
        return shorter(wanted)

    def _rendered(self, messages: Sequence[Message], switch: Switch) -> _Rendered:
        sent = [self._sent(message) for message in messages]
        turns = [{"role": m.role, "content": m.content, **thoughts} for m, thoughts in sent]
        if switch.word and turns[-1]["role"] == "user":
            turns[-1]["content"] = with_word(turns[-1]["content"], switch.word)
        written = self._template.complete_parts(turns, variables=switch.variables)
        if self._opening:
            written = after_bos(written, self._template.bos)
        pieces = [piece for part in written for piece in self._pieces(part, [message for message, _ in sent])]
        ending = written[-1].text if written and written[-1].content is None else ""
        read, thinks = _Reading(pieces, self._tokenize, self._opening), CLOSING.get(left_open(ending), "")
        openers = frozenset() if any(mark in ending for mark in THINKING) else self._openers
        return _Rendered(messages, switch, read, thinks=thinks, openers=openers)

    @cached_property
    def _openers(self) -> frozenset[Token]:
        marks = [mark for mark in (*CLOSING, CHANNEL) if mark in self._template.source]
        return frozenset(tokens[0] for mark in marks if len(tokens := self._tokenize(mark, True)) == 1)

    def _sent(self, message: Message) -> tuple[Message, dict[str, str]]:
        """A message as passed to the template, and its reasoning if that is passed separately.

        A template that removes reasoning by its marks gets the whole reply; gpt-oss's template gets the answer alone.
        Other templates get the reasoning as ``reasoning_content``, and keep it or leave it out.
        """
        if message.role != "assistant":
            return message, {}
        if in_channels(message.content):
            return Message(message.role, split(message.content).answer), {}
        text, opens = message.content.lstrip(), self.reasoning.opens
        opening = next((mark for mark in CLOSING if text.startswith(mark)), "")
        inside = not opening and opens and CLOSING[opens] in text
        if not (opening or inside) or not self._keeps_thoughts(opening or opens):
            return message, {}
        parts = split(message.content, bool(inside))
        if not parts.answer:  # the reply ends inside its reasoning
            return message, {}
        return Message(message.role, parts.answer), {"reasoning_content": parts.thoughts}

    def _pieces(self, part: TemplatePart, messages: Sequence[Message]) -> Iterator[_Piece]:
        """A part of the rendering, divided at images; a reply keeps the tokens that it was generated with."""
        message = messages[part.content] if part.content is not None else None
        if message and part.text.strip() == message.content.strip() and (tokens := self._generated(message)):
            yield _Piece(part.content, part.text, tokens)
            return
        start = 0
        if message and self._images:
            for mark in MARK.finditer(part.text):
                if file := message.images.get(mark[2]):
                    yield _Piece(part.content, part.text[start : mark.start()])
                    yield _Piece(part.content, "", self._images(Path(file), mark[2]))
                    start = mark.end()
        yield _Piece(part.content, part.text[start:])

    def _too_long(self, kept: _Rendered, said: int, n_ctx: int) -> ContextFullError:
        size = len(kept.tokens) + said
        begun, ended = kept.last()
        system, longer = kept.system_size(), longer_context(n_ctx, self._longest)
        if said > n_ctx // 2:
            return ContextFullError(
                f"the reply and its question have {size:,} tokens, but the context holds {n_ctx:,}.",
                f"Ask in a new chat, or {longer}.",
            )
        if system > ended - begun:
            return ContextFullError(
                f"the system prompt alone has {system:,} tokens, but the context holds {n_ctx:,}.",
                f"Shorten it, or {longer}.",
            )
        return ContextFullError(
            f"this message alone makes a prompt of {size:,} tokens, but the context holds {n_ctx:,}.",
            f"Shorten it by {size - n_ctx + 1:,} tokens or more, send it in parts, or {longer}.",
        )

    def _generated(self, reply: Message) -> list[Token]:
        """A reply's tokens as generated, which the KV cache may hold; empty without, or with ids of no token."""
        tokens = reply.tokens
        return tokens if tokens and 0 <= min(tokens) <= max(tokens) < self._n_vocab else []


def _room(n_ctx: int) -> int:
    return n_ctx - min(_REPLY_ROOM, n_ctx // 4)
