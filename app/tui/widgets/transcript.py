"""What was said, newest at the bottom."""

from __future__ import annotations

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Static

from slipstream.app.chats.records import StoredMessage
from slipstream.app.tui.figures import kept_footnote, plural
from slipstream.app.tui.widgets.question import Question
from slipstream.app.tui.widgets.reply import Reply

AT_ONCE = 12
"""Messages that are made ready at a time: Markdown takes some 20 ms a paragraph."""
MOST_SHOWN = 60
"""Messages on the screen at most; older ones come back when they are asked for."""


class Earlier(Static):
    """Says how many messages lie above; a click brings some."""

    class Wanted(Message):
        """The user wants to see older messages."""

    def show(self, count: int) -> None:
        """Says how many there are."""
        self.display = count > 0
        self.update(Content(f"▲ {plural(count, 'earlier message')}"))

    def on_click(self) -> None:
        """Asks for some."""
        self.post_message(self.Wanted())


class Transcript(VerticalScroll, can_focus=False):
    """The messages of a chat; stays at the bottom while the reader is there."""

    def __init__(self) -> None:
        """Begins empty."""
        super().__init__()
        self._earlier = Earlier()
        self._hidden = 0
        self.column = Vertical()  # as high as the screen at least: an anchored short one would hang at the bottom
        """What holds the messages."""
        self.coloured = False
        """Whether replies show who wrote what."""

    def compose(self) -> ComposeResult:
        """The column of messages."""
        yield self.column

    async def fill(self, messages: list[StoredMessage]) -> None:
        """Shows a chat in place of what was shown."""
        with self.app.batch_update():
            await self.column.remove_children()
            self._earlier = Earlier()
            shown = messages[-AT_ONCE:]
            self._hidden = len(messages) - len(shown)
            await self.column.mount(self._earlier, *map(_widget_of, shown))
            self._earlier.show(self._hidden)
        self.to_end()

    async def add(self, widget: Widget) -> None:
        """Adds at the bottom, and lets the oldest go where there are too many."""
        if isinstance(widget, Reply):
            widget.colour(self.coloured)
        await self.column.mount(widget)
        said = [child for child in self.column.children if isinstance(child, Question | Reply)]
        if len(said) > MOST_SHOWN and self.is_vertical_scroll_end:
            spare = said[: len(said) - MOST_SHOWN]
            self._hidden += len(spare)
            await self.column.remove_children(spare)
            self._earlier.show(self._hidden)

    async def show_earlier(self, messages: list[StoredMessage]) -> None:
        """Shows some more of the chat above what is shown, which stays where it is.

        Args:
            messages: The whole chat.
        """
        older = messages[: self._hidden]
        batch = older[-AT_ONCE:]
        if not batch:
            return
        self._hidden = len(older) - len(batch)
        self.release_anchor()
        first = self.column.children[1]  # the one below "earlier"
        await self.column.mount(*map(_widget_of, batch), after=self._earlier)
        self._earlier.show(self._hidden)
        self.call_after_refresh(self.scroll_to_widget, first, animate=False, top=True)

    def to_end(self) -> None:
        """Goes to the newest message and stays there."""
        self.anchor()

    def colour(self, on: bool) -> None:
        """Shows who wrote what, in all replies of this session, or the Markdown."""
        self.coloured = on
        for reply in self.query(Reply):
            reply.colour(on)

    def page(self, direction: int) -> None:
        """Scrolls a screen up (-1) or down (1); at the top, older messages come."""
        if direction < 0 and self.scroll_y <= 0 and self._hidden:
            self.post_message(Earlier.Wanted())
        elif direction < 0:
            self.release_anchor()
            self.scroll_page_up(animate=False)
        else:
            self.scroll_page_down(animate=False)

    def _on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        if self.scroll_y <= 0 and self._hidden:
            self.post_message(Earlier.Wanted())
        super()._on_mouse_scroll_up(event)

    @property
    def last_reply(self) -> Reply | None:
        """The newest reply on the screen."""
        replies = list(self.query(Reply))
        return replies[-1] if replies else None


def _widget_of(message: StoredMessage) -> Widget:
    if message.role == "user":
        return Question(message.id, message.content)
    return Reply(message.id, message.content, kept_footnote(message))
