"""Formats the figures of the status bar and of a reply's footnote; draws a speed-up as a bar."""

from typing import Final

from textual.content import Content

from slipstream.app.chats.records import Figures
from slipstream.app.library.format import rates
from slipstream.app.platform.safe_text import one_line, plural
from slipstream.app.protocol.requests import PLAIN
from slipstream.app.speed import GAIN, LEAST_TOKENS, Speed, compared, judged

STYLES: Final = {"gain": "$success", "loss": "$error", "even": "$foreground 70%", "idle": "$foreground 45%"}
"""The styles of verdicts on a speed-up."""
SHORT_MS: Final = 10.0  # milliseconds of a plain step below which drafting gains almost nothing
FEW_GAINED: Final = 1.3  # below so many tokens a step, few guesses helped
UNKNOWN = "–"
NO_ANSWER = "no answer, only thoughts"
BARS = "▁▂▃▄▅▆▇█"
ENDINGS = {"length": "cut at the token limit", "context": "the context is full", "cancelled": "stopped"}


def gain_bar(value: float, most: float, width: int, style: str, high: float | None = None) -> Content:
    """A bar from 0 to a speed-up; a tick marks 1x, plain decoding; a thin line ends at ``high``, the interval's end."""
    scale = width / most
    tick, end = min(width - 1, round(scale)), min(width, max(1, round(value * scale)))
    far = end if high is None else min(width, max(end, round(high * scale)))
    bar = Content("━" * end + "─" * (far - end)).stylize(style)
    if far <= tick:
        return bar.append(Content(" " * (tick - far))).append(Content("│").stylize("$foreground 55%"))
    return bar[:tick].append(Content("│").stylize("$foreground")).append(bar[tick + 1 :])


def percent(share: float | None) -> str:
    return UNKNOWN if share is None else f"{100 * share:.0f} %"


def duration(milliseconds: float) -> str:
    """A short duration: "85 ms", "1.2 s"."""
    return f"{milliseconds:.0f} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.1f} s"


def spent(milliseconds: float) -> str:
    """A duration, in whole seconds from 10 s on: "0.4 s", "12 s", "2 min 5 s"."""
    seconds = milliseconds / 1000
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def ago(seconds: float) -> str:
    """A past time, in the largest unit: "just now", "5 min", "3 h", "2 days"."""
    minutes = seconds / 60
    if minutes < 1:
        return "just now"
    if minutes < 60:
        return f"{minutes:.0f} min"
    if minutes < 24 * 60:
        return f"{minutes / 60:.0f} h"
    days = minutes / (24 * 60)
    return "1 day" if days < 1.5 else f"{days:.0f} days"


def bar(share: float, width: int) -> tuple[str, str]:
    done = round(min(max(share, 0.0), 1.0) * width)
    return "━" * done, "─" * (width - done)


def footnote(figures: Figures | None, drafter: str, reason: str, interrupted: bool = False, writer: str = "") -> str:
    """The line below a reply; ``writer`` is its model's name, if it is another than before."""
    words = []
    if figures and not figures.speed.tokens:
        words = ["no words came"]
    elif figures:
        speed, gain = figures.speed, figures.speed.gain
        ours, plain = rates(speed.tok_per_s, speed.plain_tok_per_s or speed.tok_per_s)
        words = [f"{ours} tok/s"]
        if drafter == PLAIN or not speed.drafted:
            words += ["no drafter" if drafter == PLAIN else "nothing guessed"]
        elif gain is None or not speed.plain_tok_per_s:
            words = [drafter, *words]
        else:
            verdict = judged(gain, speed.noise)
            words = [f"{drafter} {compared(gain, speed.noise)}", *words]
            if verdict != "even":
                words[1] += f" instead of {plain}"
            if verdict == "gain" and speed.saved_seconds:
                words.append(f"saved {spent(1000 * speed.saved_seconds)}")
        words.append(plural(speed.tokens, "token"))
        if figures.promise == "changed":
            words.append("typical: changes the text")
        if figures.thoughts_closed >= 0:
            words.append(f"thoughts ended at {plural(figures.thoughts_closed, 'token')}")
        if figures.ttft_ms:
            words.append(f"first token {duration(figures.ttft_ms)}")
    if reason in ENDINGS:
        words.append(ENDINGS[reason])
    if interrupted:
        words.append("interrupted")
    if figures and figures.dropped_messages:
        words.append(f"older messages left out: {figures.dropped_messages}")
    return " · ".join([f"by {one_line(writer)}", *words] if writer else words)


def no_gain(per_step: float, plain_ms: float, gain: float, larger: str) -> str:
    """Why guessing gained nothing, and what to try: ``larger``, or another drafter."""
    if plain_ms >= SHORT_MS and per_step < FEW_GAINED:
        return f"right guesses gave only {per_step:.1f} tokens per step. Ctrl-D lists other drafters."
    longer = per_step / gain
    why = f"a step with guesses takes {longer:.1f} times as long"
    if plain_ms < SHORT_MS:
        slower = f", and a step with them {longer:.1f} times as long" if per_step >= GAIN and longer >= 1.1 else ""
        why = f"a token takes only {plain_ms:.{0 if plain_ms >= 0.95 else 1}f} ms without guesses{slower}"
    return f"{why}. Larger models gain more: {larger}"


def guesses_in_words(speed: Speed, larger: str, drafter: str = "") -> tuple[str, str]:
    """How many tokens of a reply were guessed, and what that gained, in words that need no knowledge of drafting.

    ``larger`` says what to try where nothing is gained, ``drafter`` what guessed, and how.
    """
    if not speed.drafted:
        return "Nothing was guessed in this reply.", "Ctrl-D lists the drafters, and what each needs."
    words = (
        f"{speed.drafted} tokens (words or parts of words) were guessed, {speed.accepted} of them right "
        f"({percent(speed.acceptance)}): {speed.tokens_per_step:.1f} tokens per step instead of 1. "
        f"A step is one run of the model; {drafter} guesses for it."
    )
    gain, plain = speed.gain, speed.plain_tok_per_s or speed.unsteady_tok_per_s
    verdict = "even" if gain is None else judged(gain, speed.noise)
    if gain is not None and verdict == "gain":
        return words, f"That is {compared(gain, speed.noise)} on this machine."
    short = plain is not None and 1000 / plain < SHORT_MS
    if plain and (gain is not None or (short and speed.tok_per_s <= plain)):
        why = no_gain(speed.tokens_per_step, 1000 / plain, gain or speed.tok_per_s / plain, larger)
        return words, f"{'Slower' if verdict == 'loss' else 'No faster'} here: {why}"
    why = "Other programs keep this machine too busy" if speed.busy else "Speeds vary too much now"
    why = "The reply is too short" if speed.timed < LEAST_TOKENS else why
    return words, f"{why} to say whether that is faster; /race compares."
