"""Where the user types."""

from __future__ import annotations

from dataclasses import dataclass

from textual import events
from textual.message import Message
from textual.widgets import TextArea

from slipstream.app.safe_text import typed

NEW_LINE = ("ctrl+j", "alt+enter", "shift+enter", "ctrl+enter")


class Prompt(TextArea):
    """A text box that grows with its text: Enter sends, Ctrl-J begins a line, Up recalls what was sent before."""

    @dataclass
    class Sent(Message):
        """The user pressed Enter."""

        text: str

    def __init__(self, recall: list[str], examples: list[str]) -> None:
        """Makes an empty prompt.

        Args:
            recall: What was sent before, oldest first.
            examples: What Tab offers while the prompt is empty.
        """
        super().__init__(soft_wrap=True, tab_behavior="focus", show_line_numbers=False, placeholder="Say something")
        self._recall = list(dict.fromkeys(recall[::-1]))[::-1]  # each once, where it was sent last
        self._examples = examples
        self._at: int | None = None  # place in _recall of the text that is shown

    def remember(self, text: str) -> None:
        """Adds to what Up recalls."""
        if text in self._recall:
            self._recall.remove(text)
        self._recall.append(text)
        self._at = None

    def put(self, text: str) -> None:
        """Replaces the text; the cursor goes to its end."""
        self.load_text(text)
        self.move_cursor(self.document.end)

    def give_back(self, text: str) -> None:
        """Puts a message that was refused before what was typed since."""
        self.put(f"{text}\n{self.text}" if self.text.strip() else text)

    async def _on_key(self, event: events.Key) -> None:
        key = event.key
        if key == "enter":
            self.post_message(self.Sent(self.text))
        elif key in NEW_LINE:
            self.insert("\n")
            self.scroll_cursor_visible()
        elif key in ("up", "down") and self._recalled(-1 if key == "up" else 1):
            pass
        elif key == "tab" and self._examples and (not self.text or self.text in self._examples):
            at = self._examples.index(self.text) + 1 if self.text else 0
            self.put(self._examples[at % len(self._examples)])
        else:
            await super()._on_key(event)
            return
        event.stop()
        event.prevent_default()

    async def _on_paste(self, event: events.Paste) -> None:
        event.prevent_default()
        event.stop()
        self.insert(typed(event.text))
        self.scroll_cursor_visible()

    def _recalled(self, step: int) -> bool:
        """Shows another earlier prompt; False where the key should move the cursor instead."""
        if self._at is None or self.text != self._recall[self._at]:  # nothing recalled, or changed since
            if self.text:
                return False
            self._at = len(self._recall)
        self._at = max(self._at + step, 0)
        if self._at >= len(self._recall):
            self._at = None
            self.put("")
        else:
            self.put(self._recall[self._at])
        return True
