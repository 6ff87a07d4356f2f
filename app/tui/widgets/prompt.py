"""Where the user types."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from textual import events
from textual.document._edit import Edit
from textual.message import Message
from textual.widgets.text_area import EditResult

from slipstream.app.safe_text import typed
from slipstream.app.tui.attach import begun
from slipstream.app.tui.slash import MARK, is_command, literal, matching
from slipstream.app.tui.widgets.models_words import size
from slipstream.app.tui.widgets.prompt_choices import Choice, Choices
from slipstream.app.tui.widgets.prompt_files import FilePrompt
from slipstream.app.tui.widgets.prompt_folds import is_long

NEW_LINE = ("ctrl+j", "alt+enter", "shift+enter", "ctrl+enter")
_FIRST_WORD = re.compile(r"/\S*\s?")


class Prompt(FilePrompt):
    """A text box that grows with its text.

    Enter sends, Ctrl-J begins a line, Up recalls what was sent before. ``/`` begins a command and ``@`` a file; a list
    completes both. What is long, pasted or attached, stands behind a mark such as ``[pasted 10,000 lines, 412 kB]``
    and is sent whole; Tab on the mark puts it into the prompt.
    """

    @dataclass
    class Sent(Message):
        """The user pressed Enter on a message."""

        text: str

    @dataclass
    class Commanded(Message):
        """The user pressed Enter on a command."""

        text: str

    def __init__(self, recall: list[str], examples: list[str]) -> None:
        """Makes an empty prompt.

        Args:
            recall: What was sent before, oldest first.
            examples: What Tab offers while the prompt is empty.
        """
        super().__init__()
        self.choices = Choices()
        """The list above the prompt."""
        self._recall = [literal(text) for text in list(dict.fromkeys(recall[::-1]))[::-1]]  # each once, its last place
        self._examples = examples
        self._at: int | None = None  # place in _recall of the text that is shown
        self._recalled_text = ""  # what is shown of it
        self._quiet: str | None = None  # the text for which the list stays closed

    @property
    def message(self) -> str:
        """What Enter would send, whole; empty where it is a command."""
        return "" if is_command(self.text) else self._folds.unfold(self.text.removeprefix(MARK))

    def remember(self, message: str) -> None:
        """Adds a message to what Up recalls."""
        self.remember_typed(literal(message))

    def remember_typed(self, text: str) -> None:
        """Adds a prompt to what Up recalls, commands too."""
        if text in self._recall:
            self._recall.remove(text)
        self._recall.append(text)
        self._at = None

    def put(self, text: str) -> None:
        """Replaces the text as if it were typed; what is long is folded, and the cursor goes to the end."""
        text = typed(text)  # a message of an imported chat is not what somebody typed here
        if is_long(text):
            head = _FIRST_WORD.match(text)  # of a command, or of a message that only looks like one
            at = head.end() if head else 0
            text = text[:at] + self._folds.fold(self._folds.unfold(text[at:]))
        self._quiet = text
        self.choices.offer(())
        self.load_text(text)
        self.move_cursor(self.document.end)

    def put_message(self, message: str) -> None:
        """Replaces the text by a message that was sent or will be."""
        self.put(literal(message))

    def give_back(self, text: str) -> None:
        """Puts a message that was refused before what was typed since."""
        self.put(f"{literal(text)}\n{self.text}" if self.text.strip() else literal(text))

    def begin(self, text: str) -> None:
        """Begins something that is to be completed, in place of what was typed."""
        self.put("")
        self.focus()
        self.insert(text)

    # --- keys -----------------------------------------------------------------------------------------------------

    async def _on_key(self, event: events.Key) -> None:
        if self._key_for_the_list(event.key) or self._key(event.key):
            event.stop()
            event.prevent_default()
        else:
            await super()._on_key(event)

    def _key(self, key: str) -> bool:
        """Does what a key means here; False where it means what it means in every text box."""
        if key == "enter":
            self._send()
        elif key in NEW_LINE:
            self.insert("\n")
            self.scroll_cursor_visible()
        elif key in ("up", "down"):
            return self._recalled(-1 if key == "up" else 1)
        elif key == "tab" and self._examples and (not self.text or self.text in self._examples):
            at = self._examples.index(self.text) + 1 if self.text else 0
            self.put(self._examples[at % len(self._examples)])
        else:
            return key == "tab" and self._unfold()
        return True

    def _key_for_the_list(self, key: str) -> bool:
        if not self.choices.open:
            return False
        if key in ("up", "down"):
            self.choices.move(-1 if key == "up" else 1)
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
            self.post_message(self.Commanded(self._folds.unfold(self.text)))
        elif self._attach_mentioned():
            self.post_message(self.Sent(self.message))

    async def _on_paste(self, event: events.Paste) -> None:
        event.prevent_default()
        event.stop()
        text = typed(event.text)
        self.insert(self._folds.fold(text) if is_long(text) else text)
        self.scroll_cursor_visible()

    # --- the list -------------------------------------------------------------------------------------------------

    def offer(self) -> None:
        """Lists what completes the word before the cursor."""
        row, column = self.cursor_location
        before = self.document.get_line(row)[:column]
        if self.text == self._quiet or not self.selection.is_empty:
            self.choices.offer(())
        elif row == 0 and is_command(before) and not before[1:].count(" "):
            found = matching(before[len(MARK) :])
            self.choices.offer(
                [
                    Choice(f"{MARK}{one.name}" + " " * bool(one.argument), one.usage, one.about, whole=not one.needs)
                    for one in found
                ]
            )
        else:
            start, names = begun(before)
            self.choices.offer(
                [
                    Choice(f"@{name.path}", name.path, "" if name.bytes is None else size(name.bytes), file=name.path)
                    if name.bytes is not None
                    else Choice(f"@{name.path}", name.path)
                    for name in names
                ],
                start,
            )

    def _complete(self, choice: Choice, send: bool) -> None:
        start = self.choices.start
        if choice.file:
            if self._attached(choice.file, start) is None:
                self._quiet = self.text
                self.choices.offer(())
            return
        row, column = self.cursor_location
        self.replace(choice.text, (row, start), (row, column))
        if send and choice.whole:
            self.choices.offer(())
            self._send()

    def edit(self, edit: Edit) -> EditResult:
        """Changes the text; a mark is taken whole, or not at all."""
        begin, end = sorted((edit.from_location, edit.to_location))
        first = self._inside(begin)
        if begin == end:
            begin = end = (begin[0], first[1]) if first else begin
        else:
            last = self._inside(end)
            begin = (begin[0], first[0]) if first else begin
            end = (end[0], last[1]) if last else end
        result = super().edit(replace(edit, from_location=begin, to_location=end))
        if edit.text in (" ", "\n"):
            self._name_ended(*begin)
        self.offer()
        return result

    def _on_text_area_selection_changed(self) -> None:
        self.offer()

    def _inside(self, location: tuple[int, int]) -> tuple[int, int] | None:
        """Begin and end of the mark that a place is in the middle of."""
        row, column = location
        span = self._folds.at(self.document.get_line(row), column)
        return span if span and span[0] < column < span[1] else None

    def _unfold(self) -> bool:
        """Puts what the mark at the cursor stands for in its place; False where there is none."""
        row, column = self.cursor_location
        line = self.document.get_line(row)
        span = self._folds.at(line, column) or self._folds.at(line, column - 1)
        if span is None:
            return False
        self.replace(typed(self._folds.unfold(line[slice(*span)])), (row, span[0]), (row, span[1]))
        self._quiet = self.text
        self.choices.offer(())
        return True

    def _recalled(self, step: int) -> bool:
        """Shows another earlier prompt; False where the key should move the cursor instead."""
        if self._at is None or self.text != self._recalled_text:  # nothing recalled, or changed since
            if self.text:
                return False
            self._at = len(self._recall)
        self._at = max(self._at + step, 0)
        if self._at >= len(self._recall):
            self._at = None
            self.put("")
        else:
            self.put(self._recall[self._at])
            self._recalled_text = self.text
        return True
