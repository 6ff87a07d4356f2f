"""The prompt, its history, its keys, and the list of completions above it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from textual import events
from textual.content import Content
from textual.document._edit import Edit
from textual.message import Message
from textual.widgets import TextArea
from textual.widgets.option_list import Option
from textual.widgets.text_area import EditResult

from slipstream.app.chats.images import MARK as MARK_OF_IMAGE
from slipstream.app.library.format import size
from slipstream.app.platform.safe_text import one_line, typed
from slipstream.app.tui.chat.attach import Attachment, Files, Folds, is_long, pasted_image, path_completions
from slipstream.app.tui.chat.commands import MARK, CommandRequest, is_command, literal, matching
from slipstream.app.tui.parts.dialogs import RowList

NEW_LINE = ("ctrl+j", "alt+enter", "shift+enter", "ctrl+enter")
_FIRST_WORD = re.compile(r"/\S*\s?")
Arguments = Mapping[str, Callable[[], Mapping[str, str]]]


class Recall:
    """The history of prompts, and the position in it."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = list(dict.fromkeys([*texts][::-1]))[::-1]
        self._at: int | None = None
        self._unsent = ""  # what was typed before the first step
        self.shown = ""  # the recalled text; once the user edits it, Up and Down move the cursor again

    def add(self, text: str) -> None:
        if text in self._texts:
            self._texts.remove(text)
        self._texts.append(text)
        self._at = None

    def has(self, text: str) -> bool:
        return text in self._texts

    def recalls(self, text: str) -> bool:
        return self._at is not None and text == self.shown

    def step(self, text: str, step: int) -> str:
        if not self.recalls(text):
            self._at, self._unsent = len(self._texts), text
        assert self._at is not None
        self._at = max(self._at + step, 0)
        if self._at >= len(self._texts):
            self._at = None
            return self._unsent
        return self._texts[self._at]


class PromptBox(TextArea):
    """A text box that grows with its text.

    Enter sends, Ctrl-J begins a line, Up recalls earlier prompts. ``/`` begins a command and ``@`` a file; a list
    completes both. Long text and attached files are folded into marks such as ``[pasted 10,000 lines, 412 kB]`` and
    sent in full; Tab on a mark replaces it by its text.
    """

    @dataclass
    class MessageSent(Message):
        """The user pressed Enter on a message."""

        text: str

    @dataclass
    class Attached(Message):
        """A file was read and is part of the message now."""

        attachment: Attachment

    def __init__(self, recall: list[str]) -> None:
        """``recall`` has earlier prompts, oldest first."""
        super().__init__(
            tab_behavior="focus", show_line_numbers=False, placeholder="Message, / for commands, @ for files"
        )
        self.choices = CompletionList()  # the list above the prompt
        self._folds = Folds()
        self._files = Files(self, self._folds, lambda read: self.post_message(self.Attached(read)))
        self._recall = Recall(map(literal, recall))
        self.examples: Sequence[str] = ()  # Tab puts those that were not sent yet into an empty prompt, in turn
        self.arguments: Arguments = {}  # the known arguments of commands, each with what it does
        self._quiet: str | None = None  # the text for which the list stays closed

    @property
    def message(self) -> str:
        """The unfolded text that Enter would send; empty for a command."""
        return "" if is_command(self.text) else self._folds.unfold(self.text.removeprefix(MARK))

    def remember(self, message: str) -> None:
        self.remember_typed(literal(message))

    def remember_typed(self, text: str) -> None:
        self._recall.add(text)

    def attach(self, name: str) -> None:
        """Replaces the text by an attached file; raises ``UsageError`` if it cannot be read."""
        self._files.attach(name)

    def put(self, text: str) -> None:
        """Replaces the text; a long one is folded, the cursor moves to the end, and undo brings back the old text."""
        text = typed(text)  # an imported message may hold characters that cannot be typed
        text = MARK_OF_IMAGE.sub(lambda mark: self._folds.fold(mark.group(), mark[1]), text)
        text = self._folds.folded_again(text) if is_long(text) else text
        if is_long(text):
            head = _FIRST_WORD.match(text)  # the name of a command, or a first word that looks like one
            at = head.end() if head else 0
            text = text[:at] + self._folds.fold(self._folds.unfold(text[at:]))
        self._quiet = text
        self.choices.offer(())
        if text != self.text:
            self.history.checkpoint()
            super().edit(Edit(text, (0, 0), self.document.end, False))  # Ctrl-Z brings back what was typed
            self.history.checkpoint()
        self.move_cursor(self.document.end)

    def put_message(self, message: str) -> None:
        self.put(literal(message))

    def give_back(self, text: str) -> None:
        """Restores a refused message, and keeps the text that was typed since below it."""
        self.put(f"{literal(text)}\n{self.text}" if self.text.strip() else literal(text))

    def try_example(self, text: str) -> None:
        self.put(text)
        self.focus()

    def begin(self, text: str) -> None:
        self.put("")
        self.focus()
        self.insert(text)

    async def _on_key(self, event: events.Key) -> None:
        if self._key_for_the_list(event.key) or self._key(event.key):
            event.stop()
            event.prevent_default()
        else:
            await super()._on_key(event)

    def _key(self, key: str) -> bool:
        if key == "enter":
            self._send()
        elif key in NEW_LINE:
            self.insert("\n")
            self.scroll_cursor_visible()
        elif key in ("up", "down") and (not self.text or self._recall.recalls(self.text)):
            self.recall(-1 if key == "up" else 1)
        elif key == "tab" and self.examples and (not self.text or self.text in self.examples):
            left = [each for each in self.examples if each == self.text or not self._recall.has(each)]
            examples = left or self.examples
            at = examples.index(self.text) + 1 if self.text else 0
            self.put(examples[at % len(examples)])
        else:
            return key == "tab" and self._unfold()
        return True

    def _key_for_the_list(self, key: str) -> bool:
        if not self.choices.open:
            return False
        if key in ("up", "down"):
            (self.choices.action_cursor_up if key == "up" else self.choices.action_cursor_down)()
        elif key in ("tab", "enter"):
            self._complete(self.choices.chosen, send=key == "enter")
        elif key == "escape":
            self._quiet = self.text
            self.choices.offer(())
        else:
            return False
        return True

    def _send(self) -> None:
        if is_command(self.text):
            self.post_message(CommandRequest("typed", (self._folds.unfold(self.text),)))
        elif self._files.attach_mentioned():
            self.post_message(self.MessageSent(self.message))

    async def _on_paste(self, event: events.Paste) -> None:
        event.prevent_default()
        event.stop()
        text = typed(event.text)
        image = pasted_image(event.text)
        if image and self._files.attach_or_report(image, self.cursor_location[1]):
            return
        self.insert(self._folds.fold(text) if is_long(text) else text.removesuffix("\n"))
        self.scroll_cursor_visible()

    def offer(self) -> None:
        row, column = self.cursor_location
        before = self.document.get_line(row)[:column]
        if self.text == self._quiet or not self.selection.is_empty:
            self.choices.offer(())
        else:
            self.choices.offer(*completions(before, first_line=row == 0, arguments=self.arguments))

    def _complete(self, choice: Completion, send: bool) -> None:
        start = self.choices.start
        if choice.file:
            if self._files.attach_or_report(choice.file, start) is None:
                self._quiet = self.text
                self.choices.offer(())
            return
        row, column = self.cursor_location
        self.replace(choice.text, (row, start), (row, column))
        if send and choice.whole:
            self.choices.offer(())
            self._send()

    def edit(self, edit: Edit) -> EditResult:
        """Changes the text; an edit never splits a mark."""
        last = self.document.end  # an edit that deletes the last line ends on the row below it
        begin, end = sorted(min(location, last) for location in (edit.from_location, edit.to_location))
        first = self._inside(begin)
        if begin == end:
            begin = end = (begin[0], first[1]) if first else begin
        else:
            behind = self._inside(end)
            begin = (begin[0], first[0]) if first else begin
            end = (end[0], behind[1]) if behind else end
        result = super().edit(replace(edit, from_location=begin, to_location=end))
        if edit.text in (" ", "\n"):
            self._files.attach_ended(*begin)
        self.offer()
        return result

    def _on_text_area_selection_changed(self) -> None:
        self.offer()

    def _inside(self, location: tuple[int, int]) -> tuple[int, int] | None:
        """Start and end columns of the mark around a location; None at the edges of a mark and outside."""
        row, column = location
        span = self._folds.at(self.document.get_line(row), column)
        return span if span and span[0] < column < span[1] else None

    def _unfold(self) -> bool:
        row, column = self.cursor_location
        line = self.document.get_line(row)
        span = self._folds.at(line, column) or self._folds.at(line, column - 1)
        if span is None:
            return False
        self.replace(typed(self._folds.unfold(line[slice(*span)])), (row, span[0]), (row, span[1]))
        self._quiet = self.text
        self.choices.offer(())
        return True

    def recall(self, step: int) -> None:
        self.put(self._recall.step(self.text, step))
        self._recall.shown = self.text

    @property
    def recalling(self) -> bool:
        return self._recall.recalls(self.text)

    @property
    def text_follows(self) -> bool:
        return self.cursor_location != self.document.end

    @property
    def whole(self) -> str:
        return self._folds.unfold(self.text)


@dataclass(frozen=True, slots=True)
class Completion:
    """A row of the list."""

    text: str  # text that replaces the word
    shown: str  # name in the row
    about: str = ""  # description in the row
    file: str = ""  # the file that it attaches; empty for none
    whole: bool = False  # whether it is complete, so that Enter sends it at once


def completions(before: str, *, first_line: bool, arguments: Arguments) -> tuple[list[Completion], int]:
    """Commands, their arguments, or files after an ``@``; and the column where the completed word begins."""
    if first_line and is_command(before) and " " not in before[1:]:
        found = matching(before[len(MARK) :])
        rows = [
            Completion(f"{MARK}{one.name}" + " " * bool(one.argument), one.usage, one.about, whole=not one.needs)
            for one in found
        ]
        return rows, 0
    name, space, typed = before.removeprefix(MARK).partition(" ")
    if first_line and is_command(before) and space and (known := arguments.get(name.casefold())):
        begun = [(word, about) for word, about in known().items() if word.casefold().startswith(typed.casefold())]
        rows = [Completion(word, word, about, whole=True) for word, about in begun if word != typed]
        return rows, len(before) - len(typed)
    start, names = path_completions(before)
    files = [
        Completion(f"@{name.path}", name.path)
        if name.bytes is None
        else Completion(f"@{name.path}", name.path, size(name.bytes), file=name.path)
        for name in names
    ]
    return files, start


class CompletionList(RowList):
    """The list of completions; the prompt keeps the focus and forwards keys to it."""

    DEFAULT_CSS = """
    CompletionList {
        display: none;
        height: auto;
        max-height: 8;
        margin: 0 1;
        padding: 0 1;
        border: round $border-blurred;
        border-bottom: none;
        background: $background;
        scrollbar-size-vertical: 1;
    }
    .low CompletionList { max-height: 4; }
    """

    def __init__(self) -> None:
        super().__init__(markup=False)
        self.start = 0  # column where the completed word begins
        self._choices: list[Completion] = []

    @property
    def open(self) -> bool:
        return bool(self._choices)

    @property
    def chosen(self) -> Completion:
        return self._choices[self.highlighted or 0]

    def offer(self, choices: Sequence[Completion], start: int = 0) -> None:
        self.start = start
        if list(choices) == self._choices:
            return
        self._choices = list(choices)
        self.display = self.open
        width = max((Content(one_line(choice.shown)).cell_length for choice in choices), default=0)
        self.clear_options()
        self.add_options(Option(self._row(choice, width)) for choice in choices)
        self.highlighted = 0 if choices else None

    def _row(self, choice: Completion, width: int) -> Content:
        shown = Content(one_line(choice.shown))
        row = Content.assemble(shown.stylize("bold"), " " * (width - shown.cell_length + 2))
        return row.append(Content(one_line(choice.about)).stylize("$foreground 70%"))
