"""The status bar: the speed with and without the drafter as two bars, or why nothing is guessed, and its figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from textual.content import Content
from textual.widget import Widget

from slipstream.app.library.format import rate
from slipstream.app.platform.safe_text import one_line
from slipstream.app.protocol.events import Choice, Prefilling, Stepped
from slipstream.app.protocol.requests import AUTO, PLAIN
from slipstream.app.speed import Speed, compared, judged
from slipstream.app.tui.chat.authorship import legend
from slipstream.app.tui.parts.format import UNKNOWN, percent

MARGIN: Final = 1
LABEL: Final = 14  # columns of "with drafter", so that both bars are aligned
RATE: Final = 14  # columns of "12,345 tok/s"
NOTE: Final = 15  # columns of the note after a speed
WIDEST: Final = 60  # columns of the longest bar
NAME, RIGHT, PER_STEP, OUTPUT = 21, 10, 20, 16  # columns of the third line's parts, without the two spaces after each
SHORT_MS: Final = 10.0  # milliseconds of a plain step below which drafting gains almost nothing
DEAR: Final = 1.3  # cost of checking two tokens, in plain passes, from which it is why nothing is guessed
BUSY: Final = "machine is busy"
OFF: Final = "not guessing: "
FAINT: Final = "$foreground 55%"
VERDICTS: Final = {"gain": "$success", "loss": "$warning", "even": "$primary"}  # styles
PROMISES: Final = {"same text": "text identical ✓", "same distribution": "same odds"}


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
            return [_drawn(self._with(), length, room), Content(off).stylize("$foreground 80%")]
        bars = [self._with(), self._without()]
        most = max(speed.tok_per_s, *(bar.tok_per_s or 0.0 for bar in bars))
        return [_drawn(bar, round(room * (bar.tok_per_s or 0.0) / most) if most else 0, room) for bar in bars]

    def _with(self) -> _Bar:
        """The speed now: with the drafter, or the only one if nothing is guessed."""
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
        return Content(PROMISES.get(self._promise, self._promise)).stylize(FAINT)

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
            *([(PROMISES.get(self._promise, self._promise), FAINT)] if self._exact else []),
        ]
        line = Content("")
        for text, style in parts:
            between = " · " if line else ""
            if text and line.cell_length + len(between + text) <= width:
                line = line.append(between).append(Content(text).stylize(style) if style else Content(text))
        return line


def _drawn(bar: _Bar, length: int, room: int) -> Content:
    figure = "" if not bar.label else f"{rate(bar.tok_per_s)} tok/s" if bar.tok_per_s else f"{UNKNOWN} tok/s"
    filled = Content("█" * length).stylize(bar.style) if bar.style else Content("█" * length)
    line = Content(bar.label.ljust(LABEL)).stylize("$foreground 80%").append(filled).append(" " * (room - length))
    line = line.append(Content(figure.rjust(RATE - 2)).stylize("bold")).append("  ")
    return line.append(Content(bar.note).stylize(bar.note_style))
