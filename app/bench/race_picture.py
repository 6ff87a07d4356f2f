"""Draws a race as lines of text: two bars, two texts, and the result."""

from __future__ import annotations

import textwrap
from typing import Final, Literal

from slipstream.app.bench.race_events import Finish, Frame, Racer, Start
from slipstream.app.platform.safe_text import clean, one_line, shortened
from slipstream.app.speed import GAIN, LOSS, compared

Kind = Literal["title", "faint", "head", "ours", "plain", "text", "good", "bad"]
Line = tuple[str, Kind]
_NOTE: Final = 15
_TALL: Final = 18  # minimum height for blank lines between the parts
_BUSY: Final = " · machine was busy"
SHORT_MS: Final = 10.0  # if a plain step takes fewer milliseconds, drafting gains next to nothing


def picture(start: Start, frame: Frame, finish: Finish | None, width: int, height: int) -> list[Line]:
    """Draws a race; the number of lines is constant, so that nothing jumps.

    Args:
        finish: The result; None while it runs.
    """
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
    ours: Kind = "bad" if ratio and ratio < LOSS else "ours"
    lines = [
        *heading,
        *_lane(f"with drafter ({one_line(start.drafter)})", frame.ours, most, note, ours, width, room - room // 2),
        *gap,
        *_lane("without", frame.plain, most, "", "plain", width, room // 2),
        *gap,
        *end,
    ]
    return [(shortened(text, width), kind) for text, kind in lines][:height]


def _title(start: Start, width: int) -> str:
    """The model and the prompt; the prompt is cut if both are too long."""
    model, prompt = one_line(start.widened) or one_line(start.model), one_line(start.prompt)
    return f"{model} · “{shortened(prompt, max(width - len(model) - len(' · “”'), 1))}”"


def _lane(label: str, racer: Racer, most: int, note: str, kind: Kind, width: int, room: int) -> list[Line]:
    rate = f" · {_rate(racer.tokens / racer.seconds)} tok/s" if racer.seconds else ""
    figures = f"{racer.tokens} tokens · {racer.seconds:.2f} s{rate}"
    columns = max(width - _NOTE - 2, 8)
    done = round(columns * min(racer.tokens / max(most, 1), 1.0))
    text = clean("".join(racer.text)).strip("\n")
    cursor = "" if racer.over else "▌"
    wrapped = [line for part in (text + cursor).split("\n") for line in textwrap.wrap(part, width) or [""]]
    shown = wrapped[-room:] if room > 0 else []
    return [
        (f"{label:<{max(width - len(figures), len(label) + 1)}}{figures}", "head"),
        (f"{'█' * done}{'░' * (columns - done)}  {note}", kind),
        *((line, "text") for line in shown),
        *(("", "text") for _ in range(max(room, 0) - len(shown))),
    ]


def _end(finish: Finish | None, width: int) -> list[Line]:
    """The result; blank lines until it is known."""
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
    if ratio is not None and ratio < GAIN and plain_ms < SHORT_MS:
        third = (f"This model needs only {plain_ms:.1f} ms a token: a larger one gains more.", "faint")
    elif finish.acceptance is not None:
        third = (f"{100 * finish.acceptance:.0f} % right · {finish.tokens_per_step:.1f} tokens per step", "faint")
    return [first, second, third]


def _compared_figures(frame: Frame) -> str:
    """The two figures behind the ratio: times if the numbers of tokens are equal, else speeds."""
    ours, plain = frame.ours, frame.plain
    if ours.tokens == plain.tokens:
        return f"{ours.seconds:.2f} s instead of {plain.seconds:.2f} s"
    return f"{_rate(ours.tokens / ours.seconds)} tok/s instead of {_rate(plain.tokens / plain.seconds)}"


def _rate(tok_per_s: float) -> str:
    return f"{tok_per_s:.1f}" if tok_per_s < 20 else f"{tok_per_s:,.0f}"
