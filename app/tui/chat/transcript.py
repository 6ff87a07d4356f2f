"""The messages of a chat, newest at the bottom."""

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from slipstream.app.chats.records import StoredMessage, changes_of_writer
from slipstream.app.platform.safe_text import plural
from slipstream.app.tui.chat.commands import CommandRequest
from slipstream.app.tui.chat.message import MessageView, Question, Summary
from slipstream.app.tui.chat.reply import ReplyView
from slipstream.app.tui.parts.format import footnote

NEAR_END = 3  # rows below the screen up to which the newest text counts as seen
AT_ONCE = 12  # messages that are mounted at a time: Markdown takes about 20 ms per paragraph
MOST_SHOWN = 60  # maximum mounted messages; older ones are loaded on demand


class MoreMessages(Static):
    """Shows the number of older or newer messages that are not mounted; a click mounts some."""

    def __init__(self, later: bool) -> None:
        super().__init__(classes="later" if later else "earlier")
        self._later = later

    def show(self, count: int) -> None:
        mark, word = ("▼", "later") if self._later else ("▲", "earlier")
        self.display = count > 0
        self.update(Content(f"{mark} {plural(count, f'{word} message')}"))

    def on_click(self) -> None:
        self.post_message(CommandRequest("more", (self._later,)))


class ContextLine(Static):
    """A line between the messages that were dropped from the context and the rest."""

    def __init__(self, messages: int, tokens: int) -> None:
        counts = ", ".join([plural(messages, "message"), *([plural(tokens, "token")] if tokens else [])])
        super().__init__(Content(f"▲ above this line the model no longer reads: {counts}"))


class Transcript(VerticalScroll, can_focus=False):
    """Shows a range of a chat's messages; follows the end while scrolled there."""

    def __init__(self) -> None:
        super().__init__()
        self._earlier, self._later = MoreMessages(later=False), MoreMessages(later=True)
        self._above = self._below = 0  # numbers of messages that are not mounted, above and below
        self._writers = dict[int, str]()  # the names of the models, by the reply with which each begins
        self._forgotten: tuple[int, int, int] | None = None  # first message in the context; counts of dropped ones
        self._line: ContextLine | None = None
        self._line_at: tuple[Widget, int, int] | None = None  # the message below the line, and the counts on the line
        self._looked_at = (0, 0.0, 0)  # screen height, scroll position and column height at the last ``_look``
        self._looking = False
        self.newer = False  # whether there is newer text below the screen
        self.column = Vertical()  # at least as high as the screen: an anchored short one would stick to the bottom
        """The container of the messages."""
        self.coloured = False  # whether replies show the source of each word
        self.formulas = True  # whether replies show formulas in Unicode

    def compose(self) -> ComposeResult:
        yield self.column

    @property
    def said(self) -> list[MessageView]:
        return [child for child in self.column.children if isinstance(child, MessageView)]

    @property
    def whole(self) -> bool:
        return not self._below

    @property
    def selected(self) -> MessageView | None:
        focused = self.screen.focused
        return focused if isinstance(focused, MessageView) else None

    def find(self, message: int) -> MessageView | None:
        return next((said for said in self.said if said.message == message), None)

    @property
    def last_reply(self) -> ReplyView | None:
        return next((said for said in reversed(self.said) if isinstance(said, ReplyView)), None)

    async def fill(self, messages: list[StoredMessage], at: int | None = None) -> None:
        """Shows the messages of a chat, with ``at`` at the top of the screen, or scrolled to the end."""
        self._name_writers(messages)
        place = next((place for place, message in enumerate(messages) if message.id == at), None)
        start = max(len(messages) - AT_ONCE if place is None else min(place - 2, len(messages) - AT_ONCE), 0)
        shown = messages[start : start + AT_ONCE]
        self._above, self._below = start, len(messages) - start - len(shown)
        with self.app.batch_update():
            await self.column.remove_children()
            self._earlier, self._later = MoreMessages(later=False), MoreMessages(later=True)
            await self.column.mount(self._earlier, *map(self._widget_of, shown), self._later)
            await self._count()
        if place is None:
            self.to_end()
        elif widget := self.find(messages[place].id):
            self.show_message(widget, top=True)

    async def go_to(self, messages: list[StoredMessage], at: int | None = None) -> None:
        """Shows another branch from the message ``at`` on, or newer messages; keeps the common ones mounted."""
        widgets = self.said
        here = messages[self._above : self._above + len(widgets)]
        pairs = zip(widgets, here, strict=False)
        same = next((place for place, (said, kept) in enumerate(pairs) if said.message != kept.id), len(here))
        end = self._above + same
        if (widgets and not same) or (at is None and len(messages) - end > AT_ONCE):
            await self.fill(messages, at)
            return
        with self.app.batch_update():
            if same < len(widgets):  # removes the other branch's remarks, too
                children = list(self.column.children)
                first = children.index(widgets[same])
                await self.column.remove_children([child for child in children[first:] if child is not self._later])
            following = messages[end : end + AT_ONCE]
            if len(following) > 1:
                self._name_writers(messages)
            self._below = len(messages) - end - len(following)
            for widget in map(self._widget_of, following):
                await self._mount(widget)
            await self._count()

    def mark(self, forks: dict[int, list[int]]) -> None:
        for said in self.said:
            said.fork(forks.get(said.message, []))

    async def forget(self, first: int | None, messages: int = 0, tokens: int = 0) -> None:
        """Marks the beginning of the context: its first message, or None if no message was dropped."""
        now = (first, messages, tokens) if first is not None else None
        if now != self._forgotten:
            self._forgotten = now
            await self._draw_line()

    @property
    def shows_colours(self) -> bool:
        return any(said.coloured for said in self.said if isinstance(said, ReplyView))

    async def add(self, widget: Widget) -> None:
        """Adds a widget at the bottom; if scrolled to the end, unmounts the oldest messages beyond ``MOST_SHOWN``."""
        if isinstance(widget, ReplyView):
            widget.colour(self.coloured)
            widget.markdown.show_formulas(self.formulas)
        await self._mount(widget)
        spare = self.said[:-MOST_SHOWN]
        if spare and self.is_vertical_scroll_end:
            self._above += len(spare)
            await self.column.remove_children(spare)
            await self._count()

    async def show_earlier(self, messages: list[StoredMessage]) -> None:
        batch = messages[: self._above][-AT_ONCE:]
        if not batch:
            return
        self._above -= len(batch)
        self.release_anchor()
        first = self.said[0]
        await self.column.mount(*map(self._widget_of, batch), after=self._earlier)
        await self._count()
        self.call_after_refresh(self.scroll_to_widget, first, animate=False, top=True)

    async def show_later(self, messages: list[StoredMessage]) -> None:
        start = len(messages) - self._below
        batch = messages[start : start + AT_ONCE]
        self._below -= len(batch)
        await self.column.mount(*map(self._widget_of, batch), before=self._later)
        await self._count()

    def colour(self, on: bool) -> None:
        self.coloured = on
        for reply in self.query(ReplyView):
            reply.colour(on)

    def show_formulas(self, on: bool) -> None:
        self.formulas = on
        for reply in self.query(ReplyView):
            reply.markdown.show_formulas(on)

    async def _mount(self, widget: Widget) -> None:
        await self.column.mount(widget, before=self._later if self._later.is_attached else None)

    async def _count(self) -> None:
        self._earlier.show(self._above)
        self._later.show(self._below)
        await self._draw_line()

    async def _draw_line(self) -> None:
        widget = self.find(self._forgotten[0]) if self._forgotten else None
        wanted = (widget, *self._forgotten[1:]) if self._forgotten and widget else None
        line = self._line
        if line and line.is_attached and wanted == self._line_at:
            return
        self._line, self._line_at = None, wanted
        if line and line.is_attached:
            await line.remove()
        if wanted:
            self._line = ContextLine(*wanted[1:])
            await self.column.mount(self._line, before=wanted[0])

    def _name_writers(self, messages: list[StoredMessage]) -> None:
        writers = changes_of_writer(messages)
        self._writers = writers if len(writers) > 1 else {}

    def _widget_of(self, message: StoredMessage) -> MessageView:
        if message.summary:
            return Summary(message.id, message.content, message.keeps)
        if message.role == "user":
            return Question(message.id, message.content)
        speed = message.figures.speed if message.figures else None
        origins = message.figures.origins if message.figures else ()
        writer, interrupted = self._writers.get(message.id, ""), message.status == "interrupted"
        note = footnote(message.figures, message.drafter, message.reason, interrupted, writer)
        reply = ReplyView(message.id, message.content, note, speed, origins)
        reply.colour(self.coloured)
        reply.markdown.show_formulas(self.formulas)
        return reply

    def to_top(self) -> None:
        self.release_anchor()
        self.scroll_home(animate=False)

    def to_end(self) -> None:
        self.anchor()

    def show_message(self, said: MessageView, top: bool = False) -> None:
        self.release_anchor()
        self.call_after_refresh(self.scroll_to_widget, said, animate=False, top=top)

    def page(self, direction: int) -> None:
        if direction < 0 and self.scroll_y <= 0 and self._above:
            self.post_message(CommandRequest("more", (False,)))
        elif direction < 0:
            self.release_anchor()
            self.scroll_page_up(animate=False)
        elif self.is_vertical_scroll_end and self._below:
            self.post_message(CommandRequest("more", (True,)))
        else:
            self.scroll_page_down(animate=False)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self._moved()

    def watch_virtual_size(self) -> None:
        self._moved()

    def on_resize(self) -> None:
        self._look_soon()

    def _moved(self) -> None:
        follows = self._anchored and not self._anchor_released
        if (newer := not follows and self.max_scroll_y - self.scroll_y > NEAR_END) != self.newer:
            self.newer = newer
            self.post_message(CommandRequest("newer"))
        height, at, whole = self._looked_at
        way = max(abs(self.scroll_y - at), abs(self.virtual_size.height - whole))
        if height != self.size.height or 2 * way >= height:
            self._look_soon()

    def _look_soon(self) -> None:
        if not self._looking:
            self._looking = True
            self.call_after_refresh(self._look)

    async def _look(self) -> None:
        """Mounts parts of long replies near the screen, unmounts distant ones; the visible text stays in place."""
        self._looking = False
        self._looked_at = (self.size.height, self.scroll_y, self.virtual_size.height)
        with self.app.batch_update():
            for reply in [said for said in self.said if isinstance(said, ReplyView)]:
                for column in reply.columns:
                    moved = await column.look(self.region.y - column.region.y, self.size.height)
                    if moved and (self._anchor_released or not self._anchored):
                        self.scroll_to(y=self.scroll_y + moved, animate=False, immediate=True)

    def _on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        if self.scroll_y <= 0 and self._above:
            self.post_message(CommandRequest("more", (False,)))
        super()._on_mouse_scroll_up(event)

    def _on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        if self.is_vertical_scroll_end and self._below:
            self.post_message(CommandRequest("more", (True,)))
        super()._on_mouse_scroll_down(event)
