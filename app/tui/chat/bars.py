"""The bars around the chat: its speed with and without the drafter, title, model and context; keys: ``tui.keys``."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from slipstream.app.chats.records import Figures, StoredMessage
from slipstream.app.library.format import rate, rates
from slipstream.app.platform.safe_text import one_line, plural
from slipstream.app.protocol.events import Choice, Counted, Done, Loaded, Prefilling, Stepped
from slipstream.app.protocol.requests import AUTO, PLAIN
from slipstream.app.speed import Speed, compared, judged
from slipstream.app.tui.chat.authorship import legend
from slipstream.app.tui.chat.conversation import Conversation
from slipstream.app.tui.chat.transcript import Transcript
from slipstream.app.tui.parts.format import SHORT_MS, UNKNOWN, bar, percent
from slipstream.app.tui.parts.notice import hint

MARGIN: Final = 1
LABEL: Final = 14  # columns of "with drafter", so that both bars are aligned
RATE: Final = 14  # columns of "12,345 tok/s"
NOTE: Final = 15  # columns of the note after a speed
WIDEST: Final = 60  # columns of the longest bar
NAME, RIGHT, PER_STEP, OUTPUT = 21, 10, 20, 16  # columns of the third line's parts, without the two spaces after each
DEAR: Final = 1.3  # cost of checking two tokens, in plain passes, from which it is why nothing is guessed
BUSY: Final = "machine is busy"
OFF: Final = "not guessing: "
PAUSED: Final = "paused: "  # in place of ``OFF`` where the reply has guesses
FAINT: Final = "$foreground 55%"
VERDICTS: Final = {"gain": "$success", "loss": "$warning", "even": "$primary"}  # styles
PROMISES: Final = {"same text": "text identical ✓", "same distribution": "same odds"}
PROGRAM: Final = "slipstream"
CELLS: Final = 8
NEAR: Final = 0.8  # share of used context from which the bar warns
FULL: Final = 0.95
_FULL: Final = {
    "stop": "The context is full: a message would not be sent. /compact makes room.",
    "compact": "The context is full: the older messages are summarized before the next reply.",
}


@dataclass(frozen=True, slots=True)
class _Bar:
    label: str
    tok_per_s: float | None
    note: str
    style: str
    note_style: str = FAINT


class StatusBar(Widget):
    """Live figures of the current or last reply; the layout stays the same for all values."""

    def __init__(self, next_drafter: Callable[[], str], exact: bool = True) -> None:
        super().__init__()
        self.speed = Speed()
        self._next, self._exact = next_drafter, exact
        self._drafter = next_drafter()  # of the current or last reply
        self._guesser = ""  # the drafter of the last drafted step; one part of a combination
        self._choice: Choice | None = None  # the autopilot's latest choice
        self._promise = ""
        self._writing = False
        self._read: float | None = None  # prefilled share of the prompt; None if it is not being prefilled
        self.explains = False  # whether the legend of the colours is shown
        self._seen: dict[str, None] = {}  # drafters whose text is on the screen
        self._once = False  # whether the drafter was chosen for this reply alone

    def begin(self, drafter: str, once: bool = False) -> None:
        self.speed = Speed()
        self._drafter, self._once = drafter, once
        self._guesser, self._choice = "", None
        self._writing, self._read = True, None
        self.refresh()

    def prefilling(self, event: Prefilling) -> None:
        self._read = event.done / max(event.total, 1)
        self.refresh()

    def step(self, stepped: Stepped) -> None:
        self.speed, self._read = stepped.speed, None
        if stepped.drafter != PLAIN:
            self._guesser = stepped.drafter
        self._choice = stepped.choice or self._choice
        for piece in stepped.pieces:
            if piece.source:
                self._seen[piece.source] = None
        self.refresh()

    def end(self, speed: Speed) -> None:
        self.speed = speed
        self.idle()

    def idle(self) -> None:
        self._writing, self._read = False, None
        self.refresh()

    def clear(self) -> None:
        self.begin(self._next())
        self._seen.clear()
        self.idle()

    def switch(self) -> None:
        if not self._writing and not self.speed.tokens:
            self._drafter = self._next()
        self.refresh()

    def promise(self, promise: str) -> None:
        self._promise = one_line(promise)
        self.refresh()

    def explain(self, on: bool) -> None:
        self.explains = on
        self.set_class(on, "explaining")
        self.refresh(layout=True)

    def render(self) -> Content:
        width = max(self.size.width - 2 * MARGIN, 1)
        low = self.size.height - self.explains <= 1
        lines = [self._line(width)] if low else [*self._bars(width), self._about(width)]
        if self.explains:
            lines.append(legend(width, self._seen))
        pad = Content(" " * MARGIN)
        return Content("\n").join([pad.append(line.truncate(width)) for line in lines])

    def _bars(self, width: int) -> list[Content]:
        speed = self.speed
        room = min(max(width - LABEL - RATE - NOTE, 0), WIDEST)
        if not speed.drafted:
            length = room if speed.tokens else 0
            off = self._off()
            off = off if len(off) <= width else off.removeprefix(OFF)
            return [_drawn(self._with(), length, room, speed.tok_per_s), Content(off).stylize("$foreground 80%")]
        bars = [self._with(), self._without()]
        known = [bar.tok_per_s for bar in bars if bar.tok_per_s]
        most, least = max(known, default=0.0), min(known, default=0.0)
        return [_drawn(bar, round(room * (bar.tok_per_s or 0.0) / (most or 1.0)), room, least) for bar in bars]

    def _with(self) -> _Bar:
        speed = self.speed
        label, tok_per_s = "with drafter" if speed.drafted else "speed", speed.tok_per_s if speed.tokens else None
        if self._read is not None:
            return _Bar(label, tok_per_s, f"reading {percent(self._read)}", "")
        if not speed.drafted:
            return _Bar(label, tok_per_s, BUSY if speed.busy else "", "$primary", "$warning")
        if (gain := speed.gain) is None:
            return _Bar(label, tok_per_s, "measuring" if self._writing else "", "$primary")
        style = VERDICTS[judged(gain, speed.noise)]
        return _Bar(label, tok_per_s, compared(gain, speed.noise), style, f"bold {style}")

    def _without(self) -> _Bar:
        speed, known = self.speed, self.speed.plain_tok_per_s
        note = BUSY if speed.busy else "measured here" if known else "unsteady" if speed.unsteady_tok_per_s else ""
        return _Bar("without", known or speed.unsteady_tok_per_s, note, FAINT, "$warning" if speed.busy else FAINT)

    def _about(self, width: int) -> Content:
        following = self._next()
        next_reply = following != self._drafter and not self._once
        if next_reply:
            words = f"next reply: {one_line(following)}"
        elif not self.speed.drafted:
            words = self._guesses()[:NAME]
        elif not (words := self._off()):
            words = f"{self._guesses()[:NAME]:<{NAME}}  {self._right():<{RIGHT}}  {self._per_step()}"
        else:
            words = words.replace(OFF, PAUSED)
        words = words.ljust(NAME + RIGHT + PER_STEP + 4)
        about = Content(words).stylize("$accent" if next_reply else "$foreground 80%")
        return about.append("  ").append(self._output()) if about.cell_length + 2 + OUTPUT <= width else about

    def _guesses(self) -> str:
        name = self._guesser or self._drafter
        name = name if name.isalnum() else one_line(name)
        if not self._guesser:
            return name
        if not self._writing:
            return f"{name} guessed"
        trial = self._choice is not None and self._choice.trial and self._choice.drafter == self._guesser
        return f"trying {name}" if trial else f"{name} is guessing"

    def _off(self) -> str:
        """Why nothing is drafted, in one short sentence; empty if something is, or nothing is known yet."""
        if self._drafter == PLAIN:
            return f"{OFF}no drafter is chosen (Ctrl-D)"
        if not self.speed.tokens:
            return ""
        if self._drafter == AUTO:
            if (short := self.short_step_ms) is not None:
                return f"{OFF}a token takes only {short:.0f} ms"
            if self._idle and self._choice and self._choice.check >= DEAR:
                cost = f"{min(self._choice.check, 2.0):.1f}".removesuffix(".0")
                return f"{OFF}checking 2 tokens costs as much as writing {cost}"
            if self._idle:
                return f"{OFF}no drafter is right often enough now"
        elif not self.speed.drafted:
            return f"{one_line(self._drafter)} found nothing to guess yet"
        return ""

    @property
    def _idle(self) -> bool:
        """Whether the autopilot drafts nothing in the current reply now, or drafted nothing in the last."""
        plain = self._drafter == AUTO and self._choice is not None and self._choice.drafter == PLAIN
        return plain and bool(self.speed.tokens) and (self._writing or not self.speed.drafted)

    @property
    def short_step_ms(self) -> float | None:
        """Milliseconds of a plain step, if it is so short that the autopilot drafts nothing; None otherwise."""
        plain = self.speed.plain_tok_per_s or self.speed.unsteady_tok_per_s
        return 1000 / plain if self._idle and plain and 1000 / plain < SHORT_MS else None

    def _right(self) -> str:
        return f"{percent(self.speed.acceptance)} right" if self.speed.drafted else ""

    def _per_step(self) -> str:
        return f"{self.speed.tokens_per_step:.1f} tokens per step" if self.speed.drafted else ""

    def _output(self) -> Content:
        if not self._exact:
            return Content("changes the text").stylize("bold $warning")
        return Content("" if not self.speed.tokens else PROMISES.get(self._promise, self._promise)).stylize(FAINT)

    def _line(self, width: int) -> Content:
        speed, bar, name = self.speed, self._with(), one_line(self._guesser or self._drafter)
        parts = [
            (f"{rate(speed.tok_per_s)} tok/s" if speed.tokens else f"{UNKNOWN} tok/s", "bold $primary"),
            *([] if self._exact else [("changes the text", "bold $warning")]),
            (bar.note, bar.note_style),
            ("" if self.speed.drafted else self._off(), ""),
            (name if self._once or self._next() == self._drafter else f"next: {one_line(self._next())}", ""),
            (self._right(), ""),
            (self._per_step(), ""),
            (self._output().plain if self._exact else "", FAINT),
        ]
        line = Content("")
        for text, style in parts:
            between = " · " if line else ""
            if text and line.cell_length + len(between + text) <= width:
                line = line.append(between).append(Content(text).stylize(style) if style else Content(text))
        return line


def _drawn(bar: _Bar, length: int, room: int, least: float) -> Content:
    """A bar; its figure has as many digits as that of the ``least`` speed beside it."""
    figure = f"{rates(bar.tok_per_s, least)[0] if bar.tok_per_s else UNKNOWN} tok/s"
    filled = Content("█" * length).stylize(bar.style) if bar.style else Content("█" * length)
    line = Content(bar.label.ljust(LABEL)).stylize("$foreground 80%").append(filled).append(" " * (room - length))
    line = line.append(Content(figure.rjust(RATE - 2)).stylize("bold")).append("  ")
    return line.append(Content(bar.note).stylize(bar.note_style))


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
        left = Content.assemble(("◢ ", "$primary"), (PROGRAM, "bold"))
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
        full, bare = gauge(self.used, self.loaded.n_ctx), gauge(self.used, self.loaded.n_ctx, cells=0)
        where, led = one_line(self.loaded.device), one_line(self.led)
        for words, end in (([led, name, where], full), ([led, name], full), ([name], full), ([name], bare), ([], bare)):
            text = Content(" · ".join(filter(None, words))).stylize("$foreground 70%")
            text = text.append(Content(" · ")).append(end) if words else end
            if text.cell_length <= width - (title if where in words else 0):
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
