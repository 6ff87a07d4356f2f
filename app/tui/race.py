"""The race screen: the same reply with and without a drafter, side by side."""

from __future__ import annotations

import textwrap
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import ClassVar, Final, Literal

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.screen import Screen
from textual.widget import Widget

from slipstream.app.bench.race_events import FRAMES, RaceEvent, RaceFrame, Racer, RaceResult, RaceStart
from slipstream.app.platform.safe_text import clean, one_line, shortened
from slipstream.app.speed import GAIN, LOSS, compared
from slipstream.app.tui.keys import KeyBar

WIDEST: Final = 120
SHORT: Final = 2.0
"""Seconds after which a message shows the elapsed time."""
_LOADING: Final = "Loading the model …"
_STYLES: Final = {
    "title": "bold",
    "faint": "$foreground 60%",
    "head": "bold",
    "ours": "$success",
    "plain": "$foreground 60%",
    "text": "",
    "good": "bold $success",
    "bad": "bold $warning",
}
LineKind = Literal["title", "faint", "head", "ours", "plain", "text", "good", "bad"]
Line = tuple[str, LineKind]
_NOTE: Final = 15
_TALL: Final = 18  # minimum height for blank lines between the parts
_BUSY: Final = " · machine was busy"
_SHORT_MS: Final = 10.0  # if a plain step takes fewer milliseconds, drafting gains next to nothing


class RacePicture(Widget):
    """Draws a race; a fast one is played back in slow motion."""

    DEFAULT_CSS = "RacePicture { height: 1fr; padding: 0 1; }"

    def __init__(self) -> None:
        super().__init__()
        self._words = _LOADING
        self._since: float | None = monotonic()
        self._start: RaceStart | None = None
        self._frame = RaceFrame(Racer(), Racer())
        self._waiting: deque[RaceFrame | RaceResult] = deque()
        self._began = 0.0
        self.finish: RaceResult | None = None
        """The result; None until it is drawn."""

    def say(self, words: str, *, counts: bool = False) -> None:
        """Shows a message instead of a race, with the elapsed seconds if ``counts``."""
        self._start, self._words, self._since = None, words, monotonic() if counts else None
        self.refresh()

    def take(self, event: RaceEvent) -> None:
        """Queues an event of the race, to be drawn at its time."""
        if isinstance(event, RaceStart):
            self._start, self._frame, self.finish = event, RaceFrame(Racer(), Racer()), None
            self._waiting.clear()
            self._began = monotonic()
        else:
            self._waiting.append(event)

    def on_mount(self) -> None:
        self.set_interval(1 / FRAMES, self._draw)

    def _draw(self) -> None:
        if self._start is None and self._since is not None:
            self.refresh()
        if self._start is None or not self._waiting:
            return
        shown = (monotonic() - self._began) / self._start.slower
        while self._waiting:
            event = self._waiting[0]
            frame = event.frame if isinstance(event, RaceResult) else event
            if frame.seconds > shown:
                break
            self._frame = frame
            if isinstance(event, RaceResult):
                self.finish = event
                self.screen.refresh_bindings()
            self._waiting.popleft()
        self.refresh()

    def render(self) -> Content:
        if self._start is None:
            waited = monotonic() - self._since if self._since is not None else 0.0
            clock = f" {waited:.0f} s" if waited >= SHORT else ""
            return Content(self._words + clock).stylize("$foreground 70%")
        width = max(min(self.size.width, WIDEST), 20)
        lines = picture(self._start, self._frame, self.finish, width, max(self.size.height, 8))
        drawn = (Content(text).stylize(_STYLES[kind]) if _STYLES[kind] else Content(text) for text, kind in lines)
        return Content("\n").join(drawn)


class RaceScreen(Screen[None]):
    """Shows a race; a key starts another."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("r,enter", "again", "Race again", key_display="r"),
        Binding("escape,q", "leave", "Back", key_display="Esc"),
    ]

    def __init__(self, again: Callable[[], None], stop: Callable[[], None]) -> None:
        super().__init__()
        self._again, self._stop = again, stop
        self.picture = RacePicture()
        self.racing = True
        """Whether a race is running."""

    def compose(self) -> ComposeResult:
        yield self.picture
        yield KeyBar()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return not self.racing if action == "again" else True

    def ended(self, words: str = "") -> None:
        self.racing = False
        if words:
            self.picture.say(words)
        self.refresh_bindings()

    def action_again(self) -> None:
        self.racing = True
        self.refresh_bindings()
        self.picture.say(_LOADING, counts=True)
        self._again()

    def action_leave(self) -> None:
        if self.racing:
            self._stop()
        self.dismiss(None)


def picture(start: RaceStart, frame: RaceFrame, finish: RaceResult | None, width: int, height: int) -> list[Line]:
    """Draws a race; the number of lines is constant, so that nothing jumps."""
    gap: list[Line] = [("", "faint")] if height >= _TALL else []
    slower = f" · shown {start.slower:.0f}x slower" if start.slower >= 2 else ""
    most = max(frame.ours.tokens, frame.plain.tokens) if finish and not finish.stopped else start.limit
    ratio = frame.speedup
    warm = f" · after {start.warm_up} other tokens" if start.warm_up else ""
    heading: list[Line] = [
        (f"RACE · same prompt, same seed{slower}{warm}", "title"),
        (_title(start, width), "faint"),
        *gap,
    ]
    end = _end(finish, width)
    room = height - len(heading) - 4 - 2 * len(gap) - len(end)
    note = compared(ratio) if ratio else "measuring"
    ours: LineKind = "bad" if ratio and ratio < LOSS else "ours"
    with_drafter = f"with drafter ({one_line(start.drafter)})"
    lines = [
        *heading,
        *_lane(with_drafter, frame.ours, (width, room - room // 2), most=most, kind=ours, note=note),
        *gap,
        *_lane("without", frame.plain, (width, room // 2), most=most, kind="plain"),
        *gap,
        *end,
    ]
    return [(shortened(text, width), kind) for text, kind in lines][:height]


def _title(start: RaceStart, width: int) -> str:
    model, prompt = one_line(start.model), one_line(start.prompt)
    return f"{model} · “{shortened(prompt, max(width - len(model) - len(' · “”'), 1))}”"


def _lane(label: str, racer: Racer, size: tuple[int, int], *, most: int, kind: LineKind, note: str = "") -> list[Line]:
    width, room = size
    rate = f" · {_rate(racer.tokens / racer.seconds)} tok/s" if racer.seconds else ""
    figures = f"{racer.tokens} tokens · {racer.seconds:.2f} s{rate}"
    columns = max(width - _NOTE - 2, 8)
    done = round(columns * min(racer.tokens / max(most, 1), 1.0))
    text = clean(racer.text).strip("\n")
    cursor = "" if racer.over else "▌"
    wrapped = [line for part in (text + cursor).split("\n") for line in textwrap.wrap(part, width) or [""]]
    shown = wrapped[-room:] if room > 0 else []
    return [
        (f"{label:<{max(width - len(figures), len(label) + 1)}}{figures}", "head"),
        (f"{'█' * done}{'░' * (columns - done)}  {note}", kind),
        *((line, "text") for line in shown),
        *(("", "text") for _ in range(max(room, 0) - len(shown))),
    ]


def _end(finish: RaceResult | None, width: int) -> list[Line]:
    if finish is None:
        return [("", "faint")] * 3
    frame, ratio = finish.frame, finish.frame.speedup
    if finish.stopped:
        first: Line = ("Stopped before the end.", "faint")
    elif ratio is None:
        first = ("Both replies are too short for a ratio.", "faint")
    else:
        result = f"{compared(ratio)}: {_compared_figures(frame)}"
        result += _BUSY if finish.busy and len(result + _BUSY) <= width else ""
        first = (result, "good" if ratio >= GAIN else "bad" if ratio < LOSS else "head")
    if finish.differs_at is None:
        second: Line = ("Text identical ✓", "good")
    else:
        second = (
            f"The texts differ from token {finish.differs_at + 1} on: same odds, single words may differ.",
            "faint",
        )
    third: Line = ("", "faint")
    plain_ms = 1e3 * frame.plain.seconds / max(frame.plain.tokens, 1)
    if ratio is not None and ratio < GAIN and plain_ms < _SHORT_MS:
        third = (f"This model needs only {plain_ms:.1f} ms a token: a larger one gains more.", "faint")
    elif finish.acceptance is not None:
        third = (f"{100 * finish.acceptance:.0f} % right · {finish.tokens_per_step:.1f} tokens per step", "faint")
    return [first, second, third]


def _compared_figures(frame: RaceFrame) -> str:
    """The two figures behind the ratio: times if the numbers of tokens are equal, else speeds."""
    ours, plain = frame.ours, frame.plain
    if ours.tokens == plain.tokens:
        return f"{ours.seconds:.2f} s instead of {plain.seconds:.2f} s"
    return f"{_rate(ours.tokens / ours.seconds)} tok/s instead of {_rate(plain.tokens / plain.seconds)}"


def _rate(tok_per_s: float) -> str:
    return f"{tok_per_s:.1f}" if tok_per_s < 20 else f"{tok_per_s:,.0f}"
