"""Messages of a chat, which can be selected and may stand beside others; and those of the user."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content, Span
from textual.message import Message
from textual.widget import Widget

from slipstream.app.chats.images import image_label
from slipstream.app.library.format import size
from slipstream.app.platform.safe_text import clean

CODE_KEYS = range(1, 10)  # code blocks of a reply that a key copies


class Said(Widget):
    """A message of a chat. While it is selected it has the focus, and these keys are for it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "screen.command('select', '-1')", "Up", show=False),
        Binding("down,j", "screen.command('select', '1')", "Down", show=False),
        Binding("e", "screen.command('edit')", "Edit"),
        Binding("r", "screen.command('again')", "Again"),
        Binding("left,h", "screen.command('branch', '-1')", "Branch", key_display="←→"),
        Binding("right,l", "screen.command('branch', '1')", "Next branch", show=False),
        Binding("c", "screen.command('copy-selected')", "Copy"),
        *(Binding(str(key), f"screen.command('copy-code', '{key}')", show=False) for key in CODE_KEYS),
        Binding("escape,enter", "screen.command('deselect')", "Back", key_display="Esc"),
    ]

    @dataclass
    class Typed(Message):
        """Words for the prompt came while it was selected."""

        text: str
        pasted: bool = False

    def __init__(self, message: int) -> None:
        super().__init__()
        self.message = message
        self.beside: list[int] = []  # all messages that stand in its place, oldest first; empty where it is alone

    def fork(self, siblings: list[int]) -> None:
        """Says which messages stand in its place."""
        if siblings != self.beside:
            self.beside = siblings
            self.show_fork()

    def show_fork(self) -> None:
        self.refresh(layout=True)

    def fork_label(self) -> Content:
        """Which of its siblings it is: "‹ 2/3 ›", or nothing."""
        if not self.beside:
            return Content("")
        text = f"‹ {self.beside.index(self.message) + 1}/{len(self.beside)} ›"
        return Content(text, [Span(0, len(text), "bold $secondary")])

    def neighbour(self, step: int) -> int | None:
        """The message before (-1) or after (1) it in its place; None where there is none."""
        at = self.beside.index(self.message) + step if self.beside else -1
        return self.beside[at] if 0 <= at < len(self.beside) else None

    def select(self) -> None:
        """Takes the focus, which it can do only now: Tab and the mouse pass it by."""
        self.can_focus = True
        self.screen.set_focus(self, scroll_visible=False)  # at once: the next key is for it

    def on_key(self, event: events.Key) -> None:
        """A character that is none of the keys is meant for the prompt."""
        if event.is_printable and event.character and event.key not in self.screen.active_bindings:
            event.stop()
            event.prevent_default()
            self.post_message(self.Typed(event.character))

    def on_paste(self, event: events.Paste) -> None:
        event.stop()
        self.post_message(self.Typed(event.text, pasted=True))

    def on_blur(self) -> None:
        """It is not selected any more, unless it was selected again meanwhile."""
        self.can_focus = self.is_attached and self.screen.focused is self


class Summary(Said):
    """What stands for the older messages where the model reads the chat."""

    def __init__(self, message: int, text: str, keeps: int) -> None:
        """Makes it.

        Args:
            keeps: Messages directly above that the model still reads as they are.
        """
        super().__init__(message)
        self.text = text
        stays = f"; it still reads the last {keeps} as they are" if keeps else ""
        head = f"▲ summary: the model reads this in place of the messages above{stays} · /compact undo"
        self._content = Content(head).stylize("bold $secondary").append(Content(f"\n{clean(text).expandtabs(4)}"))

    def render(self) -> Content:
        return self._content.append(Content("\n")).append(self.fork_label()) if self.beside else self._content


MOST_LINES = 40  # lines of a message that are shown at first: drawing ten thousand takes seconds
MOST_CHARACTERS = 6000  # characters of a message that are shown at first


class Question(Said):
    """A message of the user, as it was typed; of a long one the beginning, until a click or Space shows all of it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("space", "unfold", "All of it")]

    def __init__(self, message: int, text: str) -> None:
        super().__init__(message)
        self.text = text  # the text as it was typed
        shown = image_label(text)
        begin = "\n".join(shown.split("\n", MOST_LINES)[:MOST_LINES])[:MOST_CHARACTERS]
        self.folded = len(begin) < len(shown)  # whether only its beginning is shown
        self.content = Content(clean(begin).expandtabs(4))  # the text as it is shown
        if self.folded:
            lines, whole = text.removesuffix("\n").count("\n") + 1, size(len(text.encode("utf-8", "replace")))
            note = f"\n… of {lines:,} lines, {whole} · Space or a click shows all"
            self.content = self.content.append(Content(note).stylize("$foreground 60%"))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return self.folded if action == "unfold" else True

    def action_unfold(self) -> None:
        if self.folded:
            self.folded = False
            self.content = Content(clean(image_label(self.text)).expandtabs(4))
            self.refresh(layout=True)

    def on_click(self) -> None:
        self.action_unfold()

    def render(self) -> Content:
        label = self.fork_label()
        return self.content.append(Content("\n")).append(label) if self.beside else self.content
