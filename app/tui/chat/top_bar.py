"""The top bar: chat title, model, and used context; and the meter that keeps the latter up to date."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from slipstream.app.chats.records import Figures, StoredMessage
from slipstream.app.platform.safe_text import one_line, plural
from slipstream.app.protocol.events import Counted, Done, Loaded, Prefilling, Stepped
from slipstream.app.tui.chat.conversation import Conversation
from slipstream.app.tui.chat.transcript import Transcript
from slipstream.app.tui.parts.format import bar, percent
from slipstream.app.tui.parts.notice import hint

NAME: Final = "slipstream"
CELLS: Final = 8
NEAR: Final = 0.8  # share of used context from which the bar warns
FULL: Final = 0.95
_FULL: Final = {
    "stop": "The context is full: a message would not be sent. /compact makes room.",
    "compact": "The context is full: the older messages are summarized before the next reply.",
}


def gauge(used: int, n_ctx: int, cells: int = CELLS) -> Content:
    """Draws the used context, the typed text included; with 0 cells, only the numbers."""
    share = used / max(n_ctx, 1)
    style = "$error" if share >= FULL else "$warning" if share >= NEAR else "$primary"
    done, rest = bar(share, cells)
    if used and cells and not done:
        done, rest = rest[:1].replace("─", "━"), rest[1:]
    drawn = Content.assemble((done, style), (rest, "$foreground 30%"), " " if cells else "")
    words = f"{used:,} / {n_ctx:,}{' too long' if used >= n_ctx else ''}"
    return drawn.append(Content(words).stylize(f"bold {style}" if share >= NEAR else "$foreground 70%"))


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


class ContextMeter:
    """Shows the used context, and marks the dropped messages."""

    def __init__(self, bar: TopBar, transcript: Transcript, conversation: Conversation) -> None:
        self._bar, self._transcript, self._conversation = bar, transcript, conversation
        self._prompt_tokens = 0  # prompt tokens of the current reply
        self._left_out = 0  # number of dropped messages
        self._full = False  # whether the hint that the context is full was shown

    async def clear(self) -> None:
        self._left_out = 0
        await self._transcript.forget(None)

    async def show(self, messages: Sequence[StoredMessage]) -> None:
        kept = next((message.figures for message in reversed(messages) if message.figures), Figures())
        self._bar.used = kept.prompt_tokens + kept.speed.tokens
        if kept.dropped_messages:
            self._left_out = kept.dropped_messages
            await self._leave_out(kept.dropped_messages, kept.dropped_tokens)
        elif any(message.summary for message in messages):
            await self._leave_out(0, 0)

    async def counted(self, counted: Counted) -> None:
        overflow = self._conversation.overflow
        if counted.dropped_messages and overflow != "drop":
            self._bar.used = counted.tokens + counted.dropped_tokens
            if not self._full:
                hint(self._transcript, _FULL[overflow])
            self._full = True
            return
        self._full = False
        self._bar.used = counted.tokens
        await self._leave_out(counted.dropped_messages, counted.dropped_tokens)

    def begin(self) -> None:
        """Starts a reply from the current count; a prompt that is already in the KV cache sends no ``Prefilling``."""
        self._prompt_tokens = self._bar.used

    def prefilling(self, event: Prefilling) -> None:
        self._bar.used = self._prompt_tokens = event.total + 1  # prefill leaves out the last token

    def stepped(self, step: Stepped) -> None:
        self._bar.used = self._prompt_tokens + step.speed.tokens

    async def done(self, done: Done) -> None:
        self._bar.used = done.prompt_tokens + done.speed.tokens
        await self._leave_out(done.dropped_messages, done.dropped_tokens)

    async def _leave_out(self, messages: int, tokens: int) -> None:
        first = self._conversation.first_read(messages) if messages else None
        summarized = self._conversation.summarized if first is None else None
        if messages > self._left_out:
            counts = f"{plural(messages, 'message')}, {plural(tokens, 'token')}"
            hint(self._transcript, f"To make room, the model no longer reads the oldest {counts}. The chat keeps them.")
        self._left_out = messages
        await self._transcript.forget(*(summarized or (first, messages)), tokens)
