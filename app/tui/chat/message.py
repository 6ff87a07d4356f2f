"""The selectable messages of a chat: the base class, questions and summaries."""

from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content, Span
from textual.widget import Widget

from slipstream.app.chats.images import image_label
from slipstream.app.library.format import size
from slipstream.app.platform.safe_text import clean, plural
from slipstream.app.tui.chat.attach import folded
from slipstream.app.tui.chat.commands import CommandRequest

CODE_KEYS = range(1, 10)  # number keys that copy a code block
MOST_LINES = 40  # lines that a folded message shows; drawing ten thousand takes seconds
MOST_CHARACTERS = 6000  # characters that a folded message shows


class MessageView(Widget):
    """A message of a chat; it has the focus while it is selected."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "screen.command('select', -1)", "Up", show=False),
        Binding("down,j", "screen.command('select', 1)", "Down", show=False),
        Binding("e", "screen.command('edit')", "Edit"),
        Binding("r", "screen.command('again')", "Again"),
        Binding("left,h", "screen.command('branch', -1)", "Branch", key_display="←→"),
        Binding("right,l", "screen.command('branch', 1)", "Next branch", show=False),
        Binding("c", "screen.command('copy-selected')", "Copy"),
        Binding("f", "screen.command('fork')", "Fork"),
        Binding("d", "screen.command('delete')", "Delete"),
        Binding("u", "screen.command('undelete')", "Undo", show=False),
        *(Binding(str(key), f"screen.command('copy-code', {key})", show=False) for key in CODE_KEYS),
        Binding("escape,enter", "screen.command('deselect')", "Back", key_display="Esc"),
    ]

    def __init__(self, message: int) -> None:
        super().__init__()
        self.message = message
        self.beside: list[int] = []  # the message and its alternatives, oldest first; empty if there are none

    def fork(self, siblings: list[int]) -> None:
        if siblings != self.beside:
            self.beside = siblings
            self.show_fork()

    def show_fork(self) -> None:
        self.refresh(layout=True)

    def fork_label(self) -> Content:
        """Its position among its siblings: "‹ 2/3 ›"; empty without siblings."""
        if not self.beside:
            return Content("")
        text = f"‹ {self.beside.index(self.message) + 1}/{len(self.beside)} ›"
        return Content(text, [Span(0, len(text), "bold $secondary")])

    def neighbour(self, step: int) -> int | None:
        at = self.beside.index(self.message) + step if self.beside else -1
        return self.beside[at] if 0 <= at < len(self.beside) else None

    def select(self) -> None:
        """Takes the focus; it is focusable only while selected, so that Tab and the mouse skip it."""
        self.can_focus = True
        self.screen.set_focus(self, scroll_visible=False)  # at once, so that it gets the next key

    def on_key(self, event: events.Key) -> None:
        if event.is_printable and event.character and event.key not in self.screen.active_bindings:
            event.stop()
            event.prevent_default()
            self.post_message(CommandRequest("type", (event.character,)))

    def on_paste(self, event: events.Paste) -> None:
        event.stop()
        self.post_message(CommandRequest("type", (event.text, True)))

    def on_blur(self) -> None:
        self.can_focus = self.is_attached and self.screen.focused is self


class Summary(MessageView):
    """A summary, which replaces the older messages in the model's context."""

    def __init__(self, message: int, text: str, keeps: int) -> None:
        """``keeps`` counts the messages directly above it that stay in the context."""
        super().__init__(message)
        self.text = text
        stays = f"; it still reads the last {keeps} as they are" if keeps else ""
        head = f"▲ summary: the model reads this in place of the messages above{stays} · /compact undo"
        self._content = Content(head).stylize("bold $secondary").append(Content(f"\n{clean(text).expandtabs(4)}"))

    def render(self) -> Content:
        return self._content.append(Content("\n")).append(self.fork_label()) if self.beside else self._content


class Question(MessageView):
    """A message of the user; long text and attached files are folded until a click or Space."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("space", "unfold", "All of it")]

    def __init__(self, message: int, text: str) -> None:
        super().__init__(message)
        self.text = text  # the whole text
        labelled = image_label(text)
        shown = folded(labelled)
        begin = "\n".join(shown.split("\n", MOST_LINES)[:MOST_LINES])[:MOST_CHARACTERS]
        self.folded = begin != labelled  # whether a part of it is hidden
        self.content = Content(clean(begin).expandtabs(4))  # the shown text
        if len(begin) < len(shown):
            lines, whole = text.removesuffix("\n").count("\n") + 1, size(len(text.encode("utf-8", "replace")))
            note = f"\n… of {plural(lines, 'line')}, {whole} · Space or a click shows all"
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
