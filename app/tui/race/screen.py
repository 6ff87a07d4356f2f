"""The race screen: the same reply with and without a drafter, side by side."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.screen import Screen
from textual.widget import Widget

from slipstream.app.bench.race_events import FRAMES, Event, Finish, Frame, Racer, Start
from slipstream.app.bench.race_picture import picture
from slipstream.app.tui.parts.key_bar import KeyBar

WIDEST: Final = 120
SHORT: Final = 2.0
"""Seconds after which a message shows the elapsed time."""
_LOADING: Final = "Loading the model …"
_WIDENING: Final = "Making the larger model …"
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


@dataclass(frozen=True, slots=True)
class RaceContext:
    """What the screen needs from the chat.

    Attributes:
        again: Begins another race; True widens the bundled model, so that it takes as long per token as a larger one.
        offer: Offers a race of the widened model, and shows the disk space and time that it takes.
        stop: Ends the race.
    """

    again: Callable[[bool], None]
    offer: Callable[[], None]
    stop: Callable[[], None]


class RacePicture(Widget):
    """Draws a race; a fast one is played back in slow motion."""

    DEFAULT_CSS = "RacePicture { height: 1fr; padding: 0 1; }"

    def __init__(self) -> None:
        super().__init__()
        self._words = _LOADING
        self._since: float | None = monotonic()
        self._start: Start | None = None
        self._frame = Frame(Racer(), Racer())
        self._waiting: deque[Frame | Finish] = deque()
        self._began = 0.0
        self.finish: Finish | None = None
        """The result; None until it is drawn."""

    def say(self, words: str, *, counts: bool = False) -> None:
        """Shows a message instead of a race, with the elapsed seconds if ``counts``."""
        self._start, self._words, self._since = None, words, monotonic() if counts else None
        self.refresh()

    def take(self, event: Event) -> None:
        """Queues an event of the race, to be drawn at its time."""
        if isinstance(event, Start):
            self._start, self._frame, self.finish = event, Frame(Racer(), Racer()), None
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
            frame = event.frame if isinstance(event, Finish) else event
            if frame.seconds > shown:
                break
            self._frame = frame
            if isinstance(event, Finish):
                self.finish = event
                self.screen.refresh_bindings()
            self._waiting.popleft()
        self.refresh()

    def render(self) -> Content:
        """Draws the race, or the message while there is none."""
        if self._start is None:
            waited = monotonic() - self._since if self._since is not None else 0.0
            clock = f" {waited:.0f} s" if waited >= SHORT else ""
            return Content(self._words + clock).stylize("$foreground 70%")
        width = max(min(self.size.width, WIDEST), 20)
        lines = picture(self._start, self._frame, self.finish, width, max(self.size.height, 8))
        drawn = (Content(text).stylize(_STYLES[kind]) if _STYLES[kind] else Content(text) for text, kind in lines)
        return Content("\n").join(drawn)


class RaceScreen(Screen[None]):
    """Shows a race; keys start another."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("r,enter", "again", "Race again", key_display="r"),
        Binding("w", "widened", "Race it as large as a 1B model"),
        Binding("escape,q", "leave", "Back", key_display="Esc"),
    ]

    def __init__(self, context: RaceContext, bundled: bool) -> None:
        """Creates the screen.

        Args:
            bundled: Whether the chat's model is the bundled one, which can be widened.
        """
        super().__init__()
        self._chat, self._bundled = context, bundled
        self.picture = RacePicture()
        self._widened = False  # whether the last race was of the larger model
        self.racing = True
        """Whether a race is running."""

    def compose(self) -> ComposeResult:
        yield self.picture
        yield KeyBar()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Enables another race only after this one."""
        widened = self._bundled and not self._widened and not self.racing
        return {"again": not self.racing, "widened": widened}.get(action, True)

    def ended(self, words: str = "") -> None:
        """Marks the race as over; ``words`` is the error to show, if it failed."""
        self.racing = False
        if words:
            self._widened = False  # the next race is of the small model, since the large one failed
            self.picture.say(words)
        self.refresh_bindings()

    def action_again(self) -> None:
        """Repeats the last race; a race of the larger model needs no second confirmation."""
        self._begin()
        self.picture.say(_WIDENING if self._widened else _LOADING, counts=True)
        self._chat.again(self._widened)

    def action_widened(self) -> None:
        self._begin()
        self._chat.offer()  # the finished race stays on the screen until the user confirms

    def _begin(self) -> None:
        self.racing = True
        self.refresh_bindings()

    def widening(self) -> None:
        """Shows that the larger model is being made."""
        self._widened = True
        self.picture.say(_WIDENING, counts=True)

    def action_leave(self) -> None:
        if self.racing:
            self._chat.stop()
        self.dismiss(None)
