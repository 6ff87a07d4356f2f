"""Renders a conversation with a model's chat template, and separates the template's text from the messages' text.

A template joins both into one text. If that text were tokenized as a whole, a pasted ``<|im_end|>`` would become the
control token and could forge another speaker's turn. So each character of a message is replaced by a private-use
character before the template runs, and restored afterwards. Private-use characters survive trimming, slicing,
measuring, splitting and upper-casing, so every character can be traced to its message.

- Whitespace is not replaced, because templates trim it; it cannot form a control token.
- Reasoning marks in an *assistant* message are not replaced: templates use them to drop earlier reasoning.
- Words that switch reasoning, such as ``/no_think``, are not replaced if the template uses them.
- Filters that change letters (``upper``) have no effect on a message, and a search in it finds no other words.
- If a template writes private-use characters itself, its own text only becomes plain content.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from types import MappingProxyType
from typing import Final

from jinja2 import Template

from slipstream.models.chat_template import SWITCHES, THINKING
from slipstream.models.chat_template.sandbox import (
    TIME_LIMIT,
    TemplateLimitError,
    TemplateRefusal,
    TemplateSandbox,
    compile_template,
)
from slipstream.models.errors import SlipstreamError
from slipstream.models.outside import LONGEST_REASON, quoted

ROLES: Final = frozenset({"system", "user", "assistant", "tool"})
CHATML: Final = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""The most common template. Source: OpenAI's Chat Markup Language."""
CONTINUED: Final = (
    "{% for message in messages %}{{ message.content }}{% if message.role != 'user' and not loop.last %}{{ '\\n\\n' }}"
    "{% endif %}{% endfor %}"
)
"""Writes the conversation as one text, without marks."""
_TURNS: Final = (
    "{{% for message in messages %}}{{% if message.role == 'assistant' %}}{reply}{{{{ message.content }}}}{end}"
    "{{% else %}}{user}{{{{ message.content }}}}{end}{{% endif %}}{{% endfor %}}"
    "{{% if add_generation_prompt %}}{reply}{{% endif %}}"
)
_HEADER: Final = "{{{{ '<|start_header_id|>{}<|end_header_id|>\\n\\n' }}}}"
FAMILIES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "<start_of_turn>": _TURNS.format(  # Gemma to Gemma 3
            user="<start_of_turn>user\n", reply="<start_of_turn>model\n", end="{{ '<end_of_turn>\\n' }}"
        ),
        "<|turn>": _TURNS.format(user="<|turn>user\n", reply="<|turn>model\n", end="{{ '<turn|>\\n' }}"),  # Gemma 4
        "<|im_start|>": CHATML,  # Qwen, SmolLM and others
        "<|start_header_id|>": _TURNS.format(  # Llama 3
            user=_HEADER.format("user"), reply=_HEADER.format("assistant"), end="<|eot_id|>"
        ),
        "<|assistant|>": _TURNS.format(user="<|user|>\n", reply="<|assistant|>\n", end="{{ '<|end|>\\n' }}"),  # Phi
    }
)
"""A mark in the vocabulary to the template of the family that has it, for files without a template."""
_FIRST_MARK: Final = 0xF0000
_LAST_MARK: Final = 0x10FFFD
_LANES: Final = 16  # message n uses lane n % 16; on average a lane has room for 8,000 different characters
_MARKS: Final = re.compile(r"([\U000f0000-\U0010fffd]+(?:\s+[\U000f0000-\U0010fffd]+)*)")
_THINKING: Final = re.compile("(" + "|".join(re.escape(mark) for mark in THINKING) + ")")
_BETWEEN: Final = re.compile(r"(?:\s|" + "|".join(re.escape(mark) for mark in (*THINKING, *SWITCHES)) + ")*")
_MARK: Final = re.compile(r"<[^<>\s]{1,40}>|\[/?[A-Z_]{3,}\]")
_LISTED: Final = (frozenset[str](), ROLES, frozenset({"system"}), frozenset({"user"}), frozenset({"system", "user"}))
"""Roles whose content is passed as a list of parts: some templates take nothing else, and say nothing of a text."""
_WRITTEN_OUT: Final = re.compile(r"""['"]type['"]: ?['"]text['"]""")
"""A list of parts in a template that takes a text, and writes the list as Python or JSON writes it."""
_TEXTS: Final = ("content", "reasoning_content")  # keys of a message whose values come from the user or a model


@dataclass(frozen=True, slots=True)
class TemplatePart:
    """A piece of a rendered conversation."""

    text: str
    # index of the message that the text comes from, to be tokenized without special tokens; None for the template's own
    # text, to be tokenized with special tokens
    content: int | None


def joined(parts: Iterable[TemplatePart]) -> tuple[str, list[tuple[int, int]]]:
    """The text of some parts, and where in it the text of messages stands."""
    texts, written, at = list[str](), list[tuple[int, int]](), 0
    for part in parts:
        if part.content is not None and part.text:
            written.append((at, at + len(part.text)))
        texts.append(part.text)
        at += len(part.text)
    return "".join(texts), written


def after_bos(parts: list[TemplatePart], bos: str) -> list[TemplatePart]:
    """The parts behind the token that opens every text, for callers that put it there; templates may write it, too."""
    if bos and parts and parts[0].content is None and (text := parts[0].text.lstrip()).startswith(bos):
        return [TemplatePart(text.removeprefix(bos), None), *parts[1:]]
    return parts


class ChatTemplate:
    """A model's compiled chat template; not thread-safe.

    ``bos`` and ``eos`` are the texts of the tokens that begin a conversation and end a reply; the template decides
    whether to write them. ``words`` are the ``SWITCHES`` that the template uses.
    """

    def __init__(self, source: str, bos: str = "", eos: str = "", *, time_limit: float = TIME_LIMIT) -> None:
        """Compiles the template; raises ``ModelFileError`` if it is too long or does not compile."""
        self.source, self.bos, self.eos = source, bos, eos
        self.words = tuple(word for word in SWITCHES if f"'{word}'" in source or f'"{word}"' in source)
        self._sandbox = TemplateSandbox(time_limit)
        self._template: Template = compile_template(source, self._sandbox)

    @classmethod
    def of(cls, source: str | None, bos: str, eos: str, names: Iterable[str]) -> ChatTemplate:
        """A file's template; without one that of the family whose marks are ``names`` of tokens, else ``CONTINUED``."""
        if not source:
            known = frozenset(names)
            source = next((source for mark, source in FAMILIES.items() if mark in known), CONTINUED)
        return cls(source, bos, eos)

    @cached_property
    def turn_marks(self) -> tuple[str, ...]:
        """The marks that the template writes between a reply and the next message, the end of a turn first.

        Without marks in brackets, it is the line that begins the next message, such as "### Human:".
        """
        chat = [{"role": role, "content": "x"} for role in ("user", "assistant", "user")]
        try:
            parts = self.parts(chat, add_generation_prompt=False)
        except SlipstreamError:  # it refuses this conversation
            return ()
        after = [at for at, part in enumerate(parts) if part.content == 1]
        between = parts[after[-1] + 1] if after and after[-1] + 1 < len(parts) else None
        if between is None or between.content is not None:
            return ()
        if marks := tuple(dict.fromkeys(mark for mark in _MARK.findall(between.text) if mark not in THINKING)):
            return marks
        line = between.text.strip().split("\n")[0]
        begins = "\n" if between.text[:1].isspace() and "\n" in between.text else ""
        return (begins + line,) if any(map(str.isalnum, line)) else ()

    def parts(
        self,
        messages: Sequence[Mapping[str, str]],
        add_generation_prompt: bool = True,
        variables: Mapping[str, object] | None = None,
    ) -> list[TemplatePart]:
        """Renders a conversation in pieces.

        Args:
            messages: Each has a ``role`` of ``ROLES`` and a ``content``; an assistant's may have a
                ``reasoning_content``. Other keys are ignored.
            variables: More variables of the template, such as ``enable_thinking``.
        """
        return self._pieces(messages, {**(variables or {}), "add_generation_prompt": add_generation_prompt}).parts()

    def complete_parts(
        self, messages: Sequence[Mapping[str, str]], variables: Mapping[str, object] | None = None
    ) -> list[TemplatePart]:
        """Renders a conversation as ``parts`` does, with contents in the form that the template reads.

        It refuses a rendering that leaves out some of the system prompt or of the user's last message.
        """
        problem: SlipstreamError | None = None
        for listed in _LISTED:
            try:
                pieces = self._pieces(messages, {"add_generation_prompt": True, **(variables or {})}, listed)
            except _TemplateFailure as error:
                problem = problem or error
                continue
            if not (left_out := pieces.left_out(messages)):
                return pieces.parts()
            problem = problem or SlipstreamError(
                f"the model's chat template leaves out {left_out}: the model would not read it.",
                _refusal_hint("", messages) if "system" in left_out else "Choose another conversion of the model.",
            )
        assert problem
        raise problem from None

    def _pieces(
        self, messages: Sequence[Mapping[str, str]], given: Mapping[str, object], listed: frozenset[str] = frozenset()
    ) -> _Pieces:
        unknown = {message["role"] for message in messages} - ROLES
        if unknown:
            raise ValueError(f"unknown roles: {sorted(unknown)}")
        marks = _Marks(messages, self.words)
        pieces = _Pieces.of(self._render(marks.messages, given, listed), marks)
        if any("".join(_edges(message["content"])) for message in messages):
            stripped = _Marks([{**message, "content": message["content"].strip()} for message in messages], self.words)
            bare = _Pieces.of(self._render(stripped.messages, given, listed), stripped)
            pieces = pieces.with_edges(bare, messages)
        return pieces

    def _render(
        self, messages: Sequence[Mapping[str, str]], given: Mapping[str, object], listed: frozenset[str]
    ) -> str:
        size = sum(len(message.get(key, "")) for message in messages for key in _TEXTS)
        content = [
            [{"type": "text", "text": message["content"]}] if message["role"] in listed else message["content"]
            for message in messages
        ]
        texts = [{**message, "content": text} for message, text in zip(messages, content, strict=True)]
        own = {"messages": texts, "bos_token": self.bos, "eos_token": self.eos, "tools": None, "documents": None}
        try:
            text = self._sandbox.render(self._template, {**given, **own}, size)
            if not (listed and _WRITTEN_OUT.search(text)):
                return text
            reason = "it takes no content in parts"
        except TemplateRefusal as error:
            reason = str(error).rstrip(". ")
            title = f"the model's chat template refuses this conversation: {quoted(reason, LONGEST_REASON)}."
            raise SlipstreamError(title, _refusal_hint(reason, messages)) from None
        except TemplateLimitError as error:
            reason = str(error)
        except Exception as error:  # foreign code may raise anything
            reason = quoted(f"{type(error).__name__}: {error}".rstrip(". "), LONGEST_REASON)
        title = f"the model's chat template failed: {reason}."
        raise _TemplateFailure(title, "Choose another conversion of the model.") from None


class _TemplateFailure(SlipstreamError):
    """A template failed by itself; it may work with contents in another form."""


class _Marks:
    """Messages whose characters are replaced by private-use characters, and the mapping back."""

    def __init__(self, messages: Sequence[Mapping[str, str]], words: Sequence[str]) -> None:
        self._codes: dict[tuple[int, str], int] = {}
        self._lanes: dict[str, int] = {}
        self._chars: dict[int, str] = {}
        self._words = re.compile("(" + "|".join(map(re.escape, words)) + ")") if words else None
        self.messages = [
            {"role": message["role"]}
            | {key: self._marked(index, message["role"], message[key]) for key in _TEXTS if key in message}
            for index, message in enumerate(messages)
        ]

    def read(self, run: str, current: int) -> Iterator[tuple[int | None, str]]:
        """Yields the pieces of a run of marks, each with the index of its message; None for text of the template."""
        lanes = {self._lanes.get(char, -1) for char in set(run) if not char.isspace()}
        alone = len(lanes) == 1 and -1 not in lanes  # all characters are of one message, so they are translated at once
        pieces = [(lanes.pop(), iter(run))] if alone else groupby(run, lambda char: self._lanes.get(char, -1))
        for lane, chars in pieces:
            text = "".join(chars)
            if lane < 0:
                yield None, text  # whitespace, or the template's own private-use characters
                continue
            ahead = current + (lane - current) % _LANES  # the next message with this lane
            current = ahead if ahead < len(self.messages) else lane
            yield current, text.translate(self._chars)

    def _marked(self, index: int, role: str, content: str) -> str:
        plain = _THINKING if role == "assistant" else self._words
        if not plain:
            return self._translated(index, content)
        pieces = plain.split(content)  # odd indices are reasoning marks or switch words
        return "".join(piece if n % 2 else self._translated(index, piece) for n, piece in enumerate(pieces))

    def _translated(self, index: int, text: str) -> str:
        return text.translate({ord(c): self._code(index % _LANES, c) for c in sorted(set(text)) if not c.isspace()})

    def _code(self, lane: int, char: str) -> int:
        code = self._codes.setdefault((lane, char), _FIRST_MARK + len(self._codes))
        if code > _LAST_MARK:
            raise SlipstreamError("the conversation holds too many different characters.", "Begin a new chat.")
        self._lanes[chr(code)], self._chars[code] = lane, char
        return code


@dataclass
class _Pieces:
    """A rendered text: the template's texts, and the messages' texts between them."""

    texts: list[str]  # the template's, one more than ``contents``; they may be empty
    contents: list[tuple[int, str]]  # the messages' texts, each with the index of its message

    @staticmethod
    def of(text: str, marks: _Marks) -> _Pieces:
        """Splits a rendered text and puts the messages' characters back."""
        texts = [""]
        contents: list[tuple[int, list[str]]] = []  # joined at the end: a content may have many pieces
        for number, run in enumerate(_MARKS.split(text)):
            if number % 2 == 0:
                texts[-1] += run
                continue
            for owner, found in marks.read(run, contents[-1][0] if contents else 0):
                if owner is None:
                    texts[-1] += found
                elif contents and contents[-1][0] == owner and _BETWEEN.fullmatch(texts[-1]):
                    contents[-1][1].extend((texts[-1], found))
                    texts[-1] = ""
                else:
                    contents.append((owner, [found]))
                    texts.append("")
        return _Pieces(texts, [(owner, "".join(pieces)) for owner, pieces in contents])

    def with_edges(self, bare: _Pieces, messages: Sequence[Mapping[str, str]]) -> _Pieces:
        """Moves a message's own whitespace from the template's texts back to its content.

        ``bare`` is the same conversation with stripped contents, where all whitespace is the template's.
        """
        if [index for index, _ in self.contents] != [index for index, _ in bare.contents]:
            return self
        texts, contents = list(self.texts), list(self.contents)
        for place, (text, own) in enumerate(zip(self.texts, bare.texts, strict=True)):
            left, right = place - 1, place
            before = _edges(messages[contents[left][0]]["content"])[1] if left >= 0 else ""
            after = _edges(messages[contents[right][0]]["content"])[0] if right < len(contents) else ""
            for tail, lead in ((before, after), (before, ""), ("", after)):
                if text == tail + own + lead:
                    texts[place] = own
                    if tail:
                        contents[left] = (contents[left][0], contents[left][1] + tail)
                    if lead:
                        contents[right] = (contents[right][0], lead + contents[right][1])
                    break
        return _Pieces(texts, contents)

    def left_out(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Which of the texts that the model must read is not in the rendering as a whole; empty if none is."""
        for index, role, name in ((len(messages) - 1, "user", "your message"), (0, "system", "the system prompt")):
            # a system prompt that stands behind later messages is taken for a later one of its lane
            found = sum(
                _letters(text) for owner, text in self.contents if owner == index or not (index or owner % _LANES)
            )
            if messages[index]["role"] == role and found < _letters(messages[index]["content"]):
                return name
        return ""

    def parts(self) -> list[TemplatePart]:
        parts = [TemplatePart(self.texts[0], None)]
        for (index, content), text in zip(self.contents, self.texts[1:], strict=True):
            parts += [TemplatePart(content, index), TemplatePart(text, None)]
        return [part for part in parts if part.text]


def _refusal_hint(reason: str, messages: Sequence[Mapping[str, str]]) -> str:
    if any(message["role"] == "system" for message in messages):
        return "Leave out the system prompt, or begin a new chat."
    if "system" in reason.lower() and not re.search("support|allow", reason.lower()):
        return "Give it a system prompt: with --system, or in the settings of the chat."
    return "Begin a new chat, or choose another conversion of the model."


def _letters(text: str) -> int:
    """Number of characters that are replaced by marks, or that templates may remove on purpose."""
    return len("".join(_BETWEEN.sub("", text).split()))


def _edges(content: str) -> tuple[str, str]:
    bare = content.strip()
    start = content.index(bare)
    return content[:start], content[start + len(bare) :]
