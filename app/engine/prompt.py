"""From a chat's messages to the tokens that the target reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from slipstream.app.engine.requests import Message
from slipstream.models.errors import ContextFullError, UsageError
from slipstream.models.template import ChatTemplate
from slipstream.models.types import Token

_REPLY_ROOM: Final = 256
"""Tokens kept free for the reply, or a quarter of a small context."""

_UNSURE: Final = 8
"""Last tokens of a text that is being typed: the next letters may join with them to others."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt that fits the context.

    Attributes:
        tokens: What the target reads.
        trimmed: Tokens that left with the oldest messages; positions of the noise go on counting them.
        dropped: Messages that left.
    """

    tokens: list[Token]
    trimmed: int
    dropped: int


class PromptBuilder:
    """Renders messages by a chat template and turns them into tokens.

    What a person or a model wrote is tokenized apart from the template's own text and without special tokens, so that
    a pasted ``<|im_end|>`` stays text.
    """

    def __init__(
        self, template: ChatTemplate, tokenize: Callable[[str, bool], list[Token]], opening: list[Token]
    ) -> None:
        """Keeps the template, ``tokenize(text, special)`` and the tokens that every text starts with."""
        self._template, self._tokenize, self._opening = template, tokenize, opening

    def tokens_of(self, text: str) -> list[Token]:
        """Turns what a person or a model wrote into tokens, none of them special."""
        return self._tokenize(text, False)

    def build(self, messages: Sequence[Message], n_ctx: int) -> Prompt:
        """Builds the prompt; where it does not fit, the oldest turns leave and the system message stays.

        Where the last message is a reply, the prompt ends with it, so that it goes on. While there is room, the same
        turns stay as when it began: it then goes on as if it had never stopped.

        Raises:
            UsageError: If there is nothing to answer.
            ContextFullError: If the last message alone is too long.
        """
        if not messages or not (messages[-1].role == "assistant" or messages[-1].content.strip()):
            raise UsageError("the prompt is empty.", "Write something to answer.")
        room = _room(n_ctx)
        whole = self._tokens(messages)
        begun = len(self._said(messages[-1])) if messages[-1].role == "assistant" else 0
        kept, tokens = self._fitting(messages, whole, room + begun)
        if begun and len(tokens) >= n_ctx:  # not one token more would fit
            kept, tokens = self._fitting(messages, whole, room)
        if len(tokens) >= n_ctx:
            raise ContextFullError(
                f"the prompt has {len(tokens):,} tokens, but the context holds {n_ctx:,}.",
                "Shorten it, or load the model with a larger context (--context).",
            )
        return Prompt(tokens, len(whole) - len(tokens), len(messages) - len(kept))

    def beginning(self, messages: Sequence[Message], n_ctx: int, *, typed: bool = True) -> list[Token]:
        """The tokens that a prompt most likely begins with once its last message is written to its end.

        Args:
            messages: The chat; ends with what the user has typed so far, which may be nothing.
            n_ctx: Context in tokens.
            typed: Whether to take what is typed of the last message, too.

        Raises:
            SlipstreamError: If the chat template refuses the chat.
        """
        last = messages[-1]
        messages = [*messages[:-1], last if last.content.strip() else Message(last.role, ".")]
        parts = list(self._parts(messages))
        whole = self._opened(_joined(parts))
        kept, shorter = self._fitting(messages, whole, _room(n_ctx))
        if shorter is not whole:
            parts = list(self._parts(kept))
        until = next((at for at, (content, _) in enumerate(parts) if content == len(kept) - 1), len(parts))
        stable = parts[until][1][:-_UNSURE] if typed and until < len(parts) else []
        return self._opened(_joined(parts[:until]) + stable)[: n_ctx - 1]

    def _fitting(
        self, messages: Sequence[Message], whole: list[Token], room: int
    ) -> tuple[Sequence[Message], list[Token]]:
        """Lets the oldest turns leave until the prompt fits, or only the last one is left."""
        kept, tokens = messages, whole
        while len(tokens) > room and (shorter := _without_oldest_turn(kept)):
            kept, tokens = shorter, self._tokens(shorter)
        return kept, tokens

    def _tokens(self, messages: Sequence[Message]) -> list[Token]:
        if messages[-1].role == "assistant":
            return self._tokens(messages[:-1]) + self._said(messages[-1])
        return self._opened(_joined(self._parts(messages)))

    def _parts(self, messages: Sequence[Message]) -> Iterator[tuple[int | None, list[Token]]]:
        """The tokens of each part of the prompt, and which message it is; None for the template's own text."""
        for part in self._template.parts([{"role": m.role, "content": m.content} for m in messages]):
            message = messages[part.content] if part.content is not None else None
            if message and message.tokens and part.text.strip() == message.content.strip():
                yield part.content, message.tokens  # as they were generated: the KV cache holds just these
            else:
                yield part.content, self._tokenize(part.text, message is None)

    def _opened(self, tokens: list[Token]) -> list[Token]:
        """Puts what every text starts with before a prompt; some templates write it themselves."""
        return tokens if tokens[: len(self._opening)] == self._opening else self._opening + tokens

    def _said(self, reply: Message) -> list[Token]:
        return reply.tokens or self._tokenize(reply.content, False)


def _joined(parts: Iterable[tuple[int | None, list[Token]]]) -> list[Token]:
    return [token for _, tokens in parts for token in tokens]


def _without_oldest_turn(messages: Sequence[Message]) -> list[Message]:
    """Drops the first user message and what answers it; empty where only the last message would be left to drop."""
    system = 1 if messages[0].role == "system" else 0
    following = next((at for at in range(system + 1, len(messages)) if messages[at].role == "user"), 0)
    return [*messages[:system], *messages[following:]] if following else []


def _room(n_ctx: int) -> int:
    """Tokens that a prompt may have before its oldest turns leave."""
    return n_ctx - min(_REPLY_ROOM, n_ctx // 4)
