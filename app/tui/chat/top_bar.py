"""The top bar: chat title, model, and used context."""

from __future__ import annotations

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from slipstream.app.platform.safe_text import one_line
from slipstream.app.protocol.events import Loaded
from slipstream.app.tui.parts.format import bar, percent

CELLS = 8
NEAR = 0.8  # share of used context from which the bar warns
FULL = 0.95


def gauge(used: int, n_ctx: int, cells: int = CELLS) -> Content:
    """Draws the used context.

    Args:
        used: Tokens of the chat and the typed text.
        cells: Columns of the bar; 0 for numbers only.
    """
    share = used / max(n_ctx, 1)
    style = "$error" if share >= FULL else "$warning" if share >= NEAR else "$primary"
    done, rest = bar(share, cells)
    if used and cells and not done:
        done, rest = rest[:1].replace("─", "━"), rest[1:]
    drawn = Content.assemble((done, style), (rest, "$foreground 30%"), " " if cells else "")
    words = f"{used:,} / {n_ctx:,}{' too long' if used >= n_ctx else ''}"
    return drawn.append(Content(words).stylize(f"bold {style}" if share >= NEAR else "$foreground 70%"))


NAME = "slipstream"


class TopBar(Widget):
    """Title on the left, model and context on the right; on a narrow screen drops the device, then the title."""

    chat = reactive("")  # title of the chat
    loaded: reactive[Loaded | None] = reactive(None)  # the loaded model
    led = reactive("")  # system prompt and preset, unless they are the defaults
    used = reactive(0)  # tokens of the chat and the typed text
    fetching: reactive[float | None] = reactive(None)  # progress of the downloads, 0 to 1; None without downloads

    def render(self) -> Content:
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
        """The parts that fit ``width``; includes the device only if ``title`` columns are left."""
        if self.loaded is None:
            return Content("")
        name = one_line(self.loaded.title)
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
