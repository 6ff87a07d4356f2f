"""The line at the top: which chat, which model, how much room is left."""

from __future__ import annotations

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from slipstream.app.engine.protocol import Loaded
from slipstream.app.safe_text import one_line
from slipstream.app.tui.figures import percent
from slipstream.app.tui.widgets.gauge import gauge

NAME = "slipstream"


class TopBar(Widget):
    """Title on the left, model and context on the right; the device gives way first, then the title."""

    chat = reactive("")
    """Title of the chat."""
    loaded: reactive[Loaded | None] = reactive(None)
    """The model, once there is one."""
    led = reactive("")
    """System prompt and preset, where they are not the usual."""
    used = reactive(0)
    """Tokens of the context that the chat takes, what is typed included."""
    fetching: reactive[float | None] = reactive(None)
    """How far the downloads are, 0 to 1; None while there are none."""

    def render(self) -> Content:
        """Draws the line for the width there is."""
        width = self.size.width
        left = Content.assemble(("◢ ", "$primary"), (NAME, "bold"))
        if self.fetching is not None:
            left = left.append(Content(f"  ↓ {percent(self.fetching)}").stylize("$primary"))
        title = Content(one_line(self.chat))
        right = self._model(width - left.cell_length - 2, title.cell_length + 2 if title else 0)
        room = width - left.cell_length - right.cell_length - 4
        if title and room >= 6:
            title = title.truncate(room, ellipsis=True)
            left = left.append(Content("  ")).append(title.stylize("$foreground 70%"))
        gap = max(width - left.cell_length - right.cell_length, 1)
        return left.append(Content(" " * gap)).append(right)

    def _model(self, width: int, title: int) -> Content:
        """What fits ``width``; the device only if so many columns are left for the title."""
        if self.loaded is None:
            return Content("")
        name = one_line(self.loaded.name)
        context = gauge(self.used, self.loaded.n_ctx)
        numbers = gauge(self.used, self.loaded.n_ctx, cells=0)
        device = one_line(self.loaded.device)
        led = one_line(self.led)
        for words, end in (
            ([led, name, device], context),
            ([led, name], context),
            ([name], context),
            ([name], numbers),
            ([], numbers),
        ):
            text = Content(" · ".join(filter(None, words))).stylize("$foreground 70%")
            text = text.append(Content(" · ")).append(end) if words else end
            if text.cell_length <= width - (title if device in words else 0):
                break
        return text.truncate(max(width, 0), ellipsis=True)
