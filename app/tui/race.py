"""The race screen: the same reply with and without a drafter, side by side."""

import textwrap
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.screen import Screen
from textual.widget import Widget

from slipstream.app.bench.race_events import FRAMES, RaceEvent, RaceFrame, Racer, RaceResult, RaceStart
from slipstream.app.library.format import rate, rates
from slipstream.app.platform.safe_text import clean, one_line, plural, sentence, shortened
from slipstream.app.protocol.requests import AUTO
from slipstream.app.speed import GAIN, LOSS, compared, judged, times
from slipstream.app.tui.keys import KeyBar
from slipstream.app.tui.parts.format import FEW_GAINED, SHORT_MS, no_gain

WIDEST: Final = 120
SHORT: Final = 2.0  # seconds after which a message shows the elapsed time
_LOADING: Final = "Loading the model for the race, then warming up …"
BOLD, FAINT, TEXT = "bold", "$foreground 60%", ""  # the styles of lines
OURS, GOOD, BAD = "$success", "bold $success", "bold $warning"
Line = tuple[str, str]  # text and style
_NOTE: Final = 15
_TALL: Final = 18  # minimum height for blank lines between the parts
_COPYING: Final = ("lookup", "retrieval")  # drafters that guess only what stands in a text


class RacePicture(Widget):
    """Draws a race; a fast one is played back in slow motion."""

    DEFAULT_CSS = "RacePicture { height: 1fr; padding: 0 1; }"

    def __init__(self, larger: str) -> None:
        super().__init__()
        self._words, self._larger = _LOADING, larger
        self._since: float | None = monotonic()
        self._start: RaceStart | None = None
        self._frame = RaceFrame(Racer(), Racer())
        self._waiting: deque[RaceFrame | RaceResult] = deque()
        self._began = 0.0
        self.finish: RaceResult | None = None  # the result; None until it is drawn

    def say(self, words: str, *, counts: bool = False) -> None:
        self._start, self._words, self._since = None, words, monotonic() if counts else None
        self.refresh()

    def take(self, event: RaceEvent) -> None:
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
        lines = picture(self._start, self._frame, self.finish, width, max(self.size.height, 8), larger=self._larger)
        drawn = (Content.styled(text, style) for text, style in lines)
        return Content("\n").join(drawn)


class RaceScreen(Screen[None]):
    """Shows a race; a key starts another."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("r,enter", "again", "Race again", key_display="r"),
        Binding("escape,q", "leave", "Back", key_display="Esc", priority=True),
        Binding("f1", "app.help", "Help"),
    ]

    def __init__(self, again: Callable[[], None], stop: Callable[[], None], larger: str) -> None:
        """``larger`` says what to try where nothing is gained."""
        super().__init__()
        self._again, self._stop = again, stop
        self.picture = RacePicture(larger)
        self.racing = True  # whether a race is running

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


def picture(
    start: RaceStart, frame: RaceFrame, finish: RaceResult | None, width: int, height: int, larger: str = ""
) -> list[Line]:
    """Draws a race in a constant number of lines: bars of the tokens so far, at the end of each reply's seconds."""
    gap: list[Line] = [("", FAINT)] if height >= _TALL else []
    slower = f" · shown {start.slower:.0f}x slower" if start.slower >= 2 else ""
    heading: list[Line] = [(f"RACE · same prompt, same seed{slower}", BOLD), (_title(start, width), FAINT), *gap]
    end = _end(start, finish, larger, width)
    room = height - len(heading) - 4 - 2 * len(gap) - len(end)
    ratio = None if finish and finish.acceptance is None else frame.speedup
    note = compared(ratio, frame.noise) if ratio else "" if finish else "measuring"
    ours = {"loss": BAD, "even": TEXT}.get(judged(ratio, frame.noise), OURS) if ratio else OURS
    label = f"with guesses by {one_line(start.drafter)}"
    slowest = frame.seconds if finish and not finish.stopped else None
    bars = "(bars: seconds)" if slowest else "(bars: tokens)"
    plain = _share(frame.plain, start, slowest)
    lines = [
        *heading,
        *_lane(label, frame.ours, (width, room - room // 2), _share(frame.ours, start, slowest), ours, note=note),
        *gap,
        *_lane("without guesses", frame.plain, (width, room // 2), plain, FAINT, note=bars),
        *gap,
        *end,
    ]
    return [(shortened(text, width), style) for text, style in lines][:height]


def _title(start: RaceStart, width: int) -> str:
    model, prompt = one_line(start.model), one_line(start.prompt)
    after = f" · after {plural(start.earlier, 'message')} of this chat" if start.earlier else ""
    return f"{model} · “{shortened(prompt, max(width - len(model) - len(after) - len(' · “”'), 1))}”{after}"


def _share(racer: Racer, start: RaceStart, slowest: float | None) -> float:
    """The filled share of a bar: of the tokens while the race runs, of the slower reply's seconds at its end."""
    return racer.seconds / slowest if slowest else min(racer.tokens / max(start.limit, 1), 1.0)


def _lane(label: str, racer: Racer, size: tuple[int, int], share: float, style: str, note: str = "") -> list[Line]:
    width, room = size
    speed = f" · {rate(racer.tokens / racer.seconds)} tok/s" if racer.seconds else ""
    figures = f"{racer.tokens} tokens · {racer.seconds:.2f} s{speed}"
    columns = max(width - _NOTE - 2, 8)
    done = round(columns * share)
    text = clean(racer.text).strip("\n")
    cursor = "" if racer.over else "▌"
    wrapped = [line for part in (text + cursor).split("\n") for line in textwrap.wrap(part, width) or [""]]
    shown = wrapped[-room:] if room > 0 else []
    return [
        (f"{label:<{max(width - len(figures), len(label) + 1)}}{figures}", BOLD),
        (f"{'█' * done}{'░' * (columns - done)}  {note}", style),
        *((line, TEXT) for line in shown),
        *(("", TEXT) for _ in range(max(room, 0) - len(shown))),
    ]


def _end(start: RaceStart, finish: RaceResult | None, larger: str, width: int) -> list[Line]:
    """The verdict, why it is so, whether the texts are equal, and the figures behind it."""
    if finish is None:
        return [("", FAINT)] * 5
    if finish.differs_at is None:
        same: Line = ("Text identical ✓", GOOD)
    else:
        promised = start.promise == "same text"
        why = "against the promise." if promised else "rounding turned a near tie. Both are the model's."
        same = (f"The texts part at token {finish.differs_at + 1}: {why}", FAINT)
    right = "" if finish.acceptance is None else f"{100 * finish.acceptance:.0f} % of guesses right"
    figures = [
        right,
        f"{finish.tokens_per_step:.1f} tokens per step" if right else "",
        f"cut at {start.limit} tokens" if finish.frame.plain.tokens >= start.limit else "",
        "busy machine" if finish.busy else "",
    ]
    verdict = _verdict(start, finish)
    why = "" if verdict[1] in (GOOD, FAINT) else _why(start, finish, larger)
    why_lines = [(line, FAINT) for line in textwrap.wrap(why, width)]
    lines = [verdict, *why_lines, same, (" · ".join(filter(None, figures)), FAINT), *[("", FAINT)] * 2]
    return lines[:5]


def _verdict(start: RaceStart, finish: RaceResult) -> Line:
    frame, ratio, name = finish.frame, finish.frame.speedup, one_line(start.drafter)
    if finish.stopped:
        return "Stopped before the end.", FAINT
    if finish.acceptance is None:
        return f"{name} guessed nothing here: a difference is chance.", BOLD
    if ratio is None:
        return "Too short for a ratio.", FAINT
    found = judged(ratio, frame.noise)
    if found == "gain":
        return f"{name} is {times(ratio)} faster here: {_compared_figures(frame)}.", GOOD
    if found == "even":
        chance = "" if LOSS <= ratio < GAIN else ", which may be chance"
        return f"Same speed with {name} here: {_compared_figures(frame)}{chance}.", BOLD
    lost = frame.ours.seconds - frame.plain.seconds
    loses = f"loses {lost:.1f} s" if frame.ours.tokens == frame.plain.tokens else "loses"
    return f"{name} {loses} here: {_compared_figures(frame)}.", BAD


def _why(start: RaceStart, finish: RaceResult, larger: str) -> str:
    plain_ms = 1e3 * finish.frame.plain.seconds / max(finish.frame.plain.tokens, 1)
    if plain_ms >= SHORT_MS and finish.tokens_per_step < FEW_GAINED:
        if start.drafter in _COPYING:
            return "There is little to copy: try a prompt that asks to repeat or change a text."
        if start.drafter == AUTO and judged(finish.frame.speedup or 1, finish.frame.noise) != "loss":
            return "auto guesses only where that should pay, and here that was seldom."
    return sentence(no_gain(finish.tokens_per_step, plain_ms, finish.frame.speedup or 1, larger))


def _compared_figures(frame: RaceFrame) -> str:
    ours, plain = frame.ours, frame.plain
    if ours.tokens == plain.tokens:
        return f"{ours.seconds:.2f} s instead of {plain.seconds:.2f} s"
    own, other = ours.tokens / ours.seconds, plain.tokens / plain.seconds
    return "{} tok/s instead of {}".format(*rates(own, other))
