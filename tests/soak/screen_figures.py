"""Reads figures from the program's screens and its ``--json``, and compares those that must agree.

Figures stay the texts that are shown, so that a comparison knows what rounding may hide. A comparison is what
contradicts, in words, or an empty text.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from slipstream.app.bench.figures import ALL_KINDS
from slipstream.app.bench.prompts import BUILT_IN
from slipstream.app.library.format import rate
from slipstream.app.protocol.requests import AUTO, PLAIN
from slipstream.app.speed import LEAST_TOKENS

_NUMBER: Final = r"([\d,]+(?:\.\d+)?)"
_RATIO: Final = re.compile(rf"{_NUMBER}x (faster|as fast)")
_WITH: Final = re.compile(rf"^ *with drafter +█* +{_NUMBER} tok/s  (.*)$", re.MULTILINE)
_WITHOUT: Final = re.compile(rf"^ *without +█* +{_NUMBER} tok/s", re.MULTILINE)
_GAIN: Final = r"\d[\d.,]*x (?:faster|as fast)"
_PART: Final = rf" ?·(?:(?!\w+ {_GAIN})[^·])*"  # of a footnote, without the next reply
_FOOTNOTE: Final = re.compile(
    rf"(\w+) {_NUMBER}x (faster|as fast) · {_NUMBER} tok/s instead of {_NUMBER}((?:{_PART}){{0,3}})"
)
_INSTEAD: Final = re.compile(rf"{_NUMBER} tok/s instead of {_NUMBER}")
_EXAMPLE: Final = re.compile(
    r"(\d+) tokens \(words or parts of words\) were guessed, (\d+) of them right \((\d+) %\): "
    r"(\d+\.\d) tokens per step instead of 1\."
)
_TOKENS: Final = re.compile(rf"{_NUMBER} tokens?\b")
_WON: Final = re.compile(rf"{_NUMBER}x (faster) here: {_NUMBER} (s|tok/s) instead of {_NUMBER}")
_LOST: Final = re.compile(rf"loses {_NUMBER} s here: {_NUMBER} s instead of {_NUMBER}")
RACED: Final = re.compile(r" here: .*? instead of |guessed nothing here|Too short for a ratio")
FACTOR: Final = 1.5  # most by which an estimate of time may be off


def number(text: str) -> float:
    return float(text.replace(",", ""))


def step_of(shown: str) -> float:
    """Half of the last digit that is shown, which rounding may hide."""
    return 0.5 * 10.0 ** -len(shown.partition(".")[2])


def agree(one: str, other: str) -> bool:
    return abs(number(one) - number(other)) <= 1.001 * (step_of(one) + step_of(other))


def unfolded(shown: str) -> str:
    """A screen as one line, so that what is broken into lines stands together."""
    return " ".join(" ".join(lines_of(shown)).split())


# --- the chat -----------------------------------------------------------------------------------------------------


def quotient(over: str, under: str) -> tuple[float, float]:
    """The least and the greatest ratio of two figures before they were rounded."""
    top, bottom = number(over), number(under)
    return (
        (top - step_of(over)) / (bottom + step_of(under)),
        (top + step_of(over)) / max(bottom - step_of(under), 1e-9),
    )


def ratio_fault(where: str, ratio: str, word: str, over: str, under: str) -> str:
    """How a ratio or its word contradicts the figures that are divided; ``where`` is for people."""
    shown, (low, high) = number(ratio), quotient(over, under)
    if not low - step_of(ratio) <= shown <= high + step_of(ratio):
        return f"{where}: {ratio}x, but {over} against {under}"
    return "" if (shown >= 1.0 if word == "faster" else shown <= 1.0) else f"{where}: {ratio}x is called {word}"


def faults(shown: str) -> Iterator[str]:
    flat = unfolded(shown)
    ours, plain = _WITH.search(shown), _WITHOUT.search(shown)
    if ours and plain:
        yield "" if step_of(ours[1]) == step_of(plain[1]) else f"status bar: {ours[1]} above {plain[1]}"
    if ours and plain and (ratio := _RATIO.search(ours[2])):
        yield ratio_fault("status bar", ratio[1], ratio[2], ours[1], plain[1])
    for drafter, ratio, word, over, under, rest in _FOOTNOTE.findall(flat):
        yield ratio_fault(f"footnote of {drafter}", ratio, word, over, under)
        tokens = _TOKENS.search(rest)
        if tokens:
            few = number(tokens[1]) < LEAST_TOKENS
            yield f"footnote of {drafter}: {ratio}x of {tokens[0]}" if few else ""
    for over, under in _INSTEAD.findall(flat):
        same = over == under or step_of(over) != step_of(under)
        yield f"{over} instead of {under}" if same else ""
    for ratio, _ in _RATIO.findall(shown):
        yield f"{ratio}x is no gain and no loss" if number(ratio) == 1.0 else ""
    for ratio, word, drafted, unit, undrafted in _WON.findall(flat):
        figures = (drafted, undrafted) if unit == "tok/s" else (undrafted, drafted)
        yield ratio_fault("race", ratio, word, *figures)
    for lost, drafted, undrafted in _LOST.findall(flat):
        off = abs(number(drafted) - number(undrafted) - number(lost)) > step_of(lost) + 2 * step_of(drafted)
        yield f"race: {lost} s lost, but {drafted} against {undrafted}" if off else ""


def example_faults(shown: str) -> Iterator[str]:
    """Compares the words below the first example with the status bar and the footnote."""
    flat = " ".join(unfolded(shown).replace("█ ", "").replace("▎ ", "").split())
    told = _EXAMPLE.search(flat)
    if told is None:
        yield f"first example: no words about its guesses:\n{shown}"
        return
    guessed, right, share, per_step = told.groups()
    yield "" if abs(100 * int(right) / int(guessed) - int(share)) <= 1 else f"first example: {told[0]}"
    yield "" if f"{share} % right" in flat and f"{per_step} tokens per step" in flat else f"first example: {told[0]}"
    after = ("on this machine.", "Larger models gain more: ", "/race compares.")
    yield "" if any(words in flat for words in after) else "first example: not said whether it was faster"


def end_faults(shown: str) -> Iterator[str]:
    """Compares the status bar with the footnote of the reply that has just ended."""
    notes, ours, plain = _FOOTNOTE.findall(unfolded(shown)), _WITH.search(shown), _WITHOUT.search(shown)
    if notes and ours and plain and (bar := _RATIO.search(ours[2])):
        _, ratio, word, over, under, _ = notes[-1]
        figures = (ratio, word, over, under)
        if (bar[1], bar[2], ours[1], plain[1]) == figures:
            yield ""
        else:
            yield f"status bar: {ours[0].strip()}, {plain[0].strip()}; footnote: {' '.join(figures)}"


def json_faults(lines: Sequence[str]) -> Iterator[str]:
    *steps, done = [json.loads(line) for line in lines]
    if sum(len(step["tokens"]) for step in steps) != done["tokens"]:
        yield f"--json: the steps have other tokens than the summary's {done['tokens']}"
    drafted, accepted = (sum(step[key] for step in steps) for key in ("drafted", "accepted"))
    if drafted and abs(done["acceptance"] - accepted / drafted) > 1e-3:
        yield f"--json: acceptance {done['acceptance']}, but {accepted} of {drafted}"
    speedup, plain = done["speedup"], done["plain_tok_per_s"]
    if speedup is not None and done["tokens"] < LEAST_TOKENS:
        yield f"--json: {speedup}x of {done['tokens']} tokens"
    if speedup is not None and abs(speedup - done["tok_per_s"] / plain) > 0.01 * speedup:
        yield f"--json: {speedup}x, but {done['tok_per_s']} against {plain}"


# --- lists --------------------------------------------------------------------------------------------------------

_SCROLL_BAR: Final = re.compile(r" *[▁-█]? *$")


def lines_of(shown: str) -> list[str]:
    return [_SCROLL_BAR.sub("", line) for line in shown.splitlines()]


def panes(shown: str) -> tuple[list[str], list[str]]:
    """The lines of a list, and those of the details below it or, on a wide screen, beside it."""
    lines = lines_of(shown)
    columns = {at for line in lines for at, each in enumerate(line) if each == "│"}
    for at in sorted(columns, reverse=True):
        if sum(line[at : at + 1] == "│" for line in lines) > 0.8 * len(lines):
            return [_SCROLL_BAR.sub("", line[:at]) for line in lines], [
                line[at + 1 :] for line in lines if line[at : at + 1] == "│"
            ]
    rule = next((at for at, line in enumerate(lines) if re.fullmatch(r" *─{20,}", line)), len(lines))
    return lines[:rule], lines[rule + 1 :]


_BAR: Final = r"([━─│ ]*[━─│])"


def bar_fault(where: str, ratio: str, drawn: str) -> str:
    """How the length of a bar contradicts its ratio: the tick stands at 1x, and thin lines are the interval."""
    if "│" not in drawn:
        return f"{where}: no tick at 1x"
    tick, end = drawn.index("│"), drawn.rfind("━") + 1
    ends = {end, end + 1} if end == tick else {end}  # the tick may cover the bar's end
    shown, step = number(ratio), step_of(ratio)
    low, high = (shown - step) * (tick - 0.5) - 0.5, (shown + step) * (tick + 0.5) + 0.5
    fits = any(low <= each <= max(1.0, high) for each in ends)
    return "" if fits else f"{where}: {ratio}x, but a bar of {end} where 1x is {tick}"


# --- the benchmark ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Gain:
    """A speed-up and the ends of its interval, which may be missing."""

    value: str
    low: str = ""
    high: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    drafter: str
    kind: str  # of text
    tok_per_s: str  # "" but for plain decoding
    gain: Gain | None  # None where there is no ratio, as for plain decoding
    right: str  # percent of the guesses; "–" without any, "" where the column is not shown


@dataclass(frozen=True, slots=True)
class Bar:
    drafter: str
    kind: str  # "" if its heading is scrolled away
    gain: Gain
    drawn: str


Rows = Mapping[tuple[str, str], Row]
"""By kind of text and drafter."""

_KINDS: Final = (*BUILT_IN, ALL_KINDS)
_SPEED_UP: Final = r"(\d+\.\d+)x(?: \[(\d+\.\d+), (\d+\.\d+)\])?"
_NO_SPEED_UP: Final = r"guessed nothing|fewer than \d+ tokens"
_ROW: Final = re.compile(
    rf"^ *(\S+) +({'|'.join(_KINDS)}) +[\d.]+(?: +{_NUMBER}(?= |$))?(?: +(?:{_SPEED_UP}|{_NO_SPEED_UP}))?"
    r"(?: +\d+\.\d\d)?(?: +(?:(\d+) %|(–)))?(?: +[\d,]+ ms)?(?: +\d+/\d+)?$"
)
_DRAWN: Final = re.compile(rf"^ *(\S+) +{_SPEED_UP} +{_BAR}$")
_KIND: Final = re.compile(rf"^ *({'|'.join(_KINDS)})(?:, temperature [\d.]+)?$")
_LISTED: Final = re.compile(r"^ *\d\d \w{3} \d\d:\d\d .*?(?:(\d+\.\d+)x)? +(?:none|(\S+) (\d+\.\d+)x)(?:, rough)?$")
_ABOUT: Final = re.compile(r"About ([\d.]+) (s|min|h) \(")


def table_rows(lines: Iterable[str]) -> list[Row]:
    found = [row.groups("") for line in lines if (row := _ROW.match(line))]
    return [
        Row(drafter, kind, tok_per_s, Gain(value, low, high) if value else None, right or none)
        for drafter, kind, tok_per_s, value, low, high, right, none in found
    ]


def bars(lines: Iterable[str]) -> list[Bar]:
    kind, found = "", list[Bar]()
    for line in lines:
        if heading := _KIND.match(line):
            kind = heading[1]
        elif row := _DRAWN.match(line):
            found.append(Bar(row[1], kind, Gain(row[2], row[3] or "", row[4] or ""), row[5]))
    return found


def same_gain(one: Gain | None, other: Gain | None) -> bool:
    if one is None or other is None:
        return one is other
    pairs = ((one.value, other.value), (one.low, other.low), (one.high, other.high))
    return all(agree(first, second) for first, second in pairs if first and second)


def bench_faults(lines: Sequence[str], rows: Rows) -> Iterator[str]:
    """Compares the bars of one screen with the whole table, and each speed-up with its interval."""
    for row in table_rows(lines):
        if row.gain and row.gain.low:
            inside = number(row.gain.low) <= number(row.gain.value) <= number(row.gain.high)
            yield "" if inside else f"table, {row.drafter} on {row.kind}: {row.gain} is outside of its interval"
    for bar in bars(lines):
        where = f"bar, {bar.drafter} on {bar.kind or 'some text'}"
        yield bar_fault(where, bar.gain.value, bar.drawn)
        known = rows.get((bar.kind, bar.drafter))
        if known:
            yield "" if same_gain(bar.gain, known.gain) else f"{where}: {bar.gain}, but {known.gain} in the table"


def listed_faults(lines: Iterable[str], rows: Rows, kind: str) -> Iterator[str]:
    """Compares the newest row of the list of results, by kind of text, with the table of that result."""
    newest = next((found for line in lines if (found := _LISTED.match(line))), None)
    if newest is None:
        yield "list of results: its newest row cannot be read"
        return
    auto, drafter, value = newest[1], newest[2] or PLAIN, newest[3] or "1.00"
    told = {AUTO: auto, drafter: value} if auto else {drafter: value}
    of_kind = [row for row in rows.values() if row.kind == kind and row.gain and row.drafter != AUTO]
    better = [row for row in of_kind if row.gain and row.gain.low and number(row.gain.low) > 1.15]
    yield f"list of results: none, but {better} in the table" if better and drafter == PLAIN else ""
    for name, ratio in told.items():
        known = Gain("1.00") if name == PLAIN else rows[kind, name].gain if (kind, name) in rows else None
        good = known is not None and agree(ratio, known.value)
        yield "" if good else f"list of results: {name} {ratio}x, but {known} in the table"


def kept_faults(rows: Rows, kept: Mapping[str, Any]) -> Iterator[str]:
    for found in kept["drafters"]["rows"]:
        where = f"kept result, {found['drafter']} on {found['kind']}"
        row, ratio = rows.get((found["kind"], found["drafter"])), found["speedup"]
        if row is None:
            yield f"{where}: not in the table"
            continue
        if found["drafter"] == PLAIN:
            yield "" if rate(found["tok_per_s"]) == row.tok_per_s else f"{where}: {found['tok_per_s']}, but {row}"
            continue
        few = ratio is not None and found["tokens"] < LEAST_TOKENS
        yield f"{where}: a ratio of {found['tokens']} tokens" if few else ""
        texts = [f"{ratio[key]:.2f}" if ratio and ratio[key] is not None else "" for key in ("value", "low", "high")]
        known = Gain(*texts) if ratio and found["acceptance"] is not None else None
        yield "" if known == row.gain else f"{where}: {known}, but {row.gain} in the table"
        share = "–" if found["acceptance"] is None else f"{100 * found['acceptance']:.0f}"
        yield "" if row.right in ("", share) else f"{where}: {share} % right, but {row.right} in the table"


def estimated(shown: str) -> tuple[str, float, float]:
    """The time that the form says, in words, and the least and the greatest seconds that these words stand for."""
    said = _ABOUT.search(unfolded(shown))
    if said is None:
        return "", 0.0, float("inf")
    unit, half = {"s": (1.0, 2.5), "min": (60.0, 0.5), "h": (3600.0, 0.05)}[said[2]]
    return f"{said[1]} {said[2]}", unit * (float(said[1]) - half), unit * (float(said[1]) + half)


def estimate_fault(shown: str, took: float) -> str:
    """How the time that a benchmark took contradicts what the form said before."""
    words, low, high = estimated(shown)
    good = words and low / FACTOR <= took <= high * FACTOR
    return "" if good else f"form of the benchmark: about {words or '?'}, but it took {took:.0f} s"


def picks(shown: str) -> dict[str, bool]:
    """The drafters in the benchmark's form, and whether each is chosen."""
    lines = shown.splitlines()
    column = next((line.index("Drafters") for line in lines if "Drafters" in line and "Prompts" in line), None)
    if column is None:
        return {}
    found = [re.match(r" *([✓·]) (\S+)", line[column:]) for line in lines]
    return {each[2]: each[1] == "✓" for each in found if each}


# --- the drafters' screen -----------------------------------------------------------------------------------------

_GAINED: Final = re.compile(rf"^ *(?:● )?(\S+) +(\d+\.\d+)x {_BAR}(?: +(chats|bench|auto)\b(, busy)?)?")
_BUSY: Final = " (machine busy)"
_AGAINST: Final = re.compile(rf"Against no drafter: ((?:[\d.]+x [a-z ]+(?:{re.escape(_BUSY)})?(?: · )?)+)\.")
_SOURCES: Final = {"in your chats": "chats", "in the last benchmark": "bench", "as the autopilot measured": "auto"}


@dataclass(frozen=True, slots=True)
class Gained:
    drafter: str
    value: str
    drawn: str
    source: str  # "chats", "bench" or "auto"; "" for plain decoding
    busy: bool  # whether it was measured while the machine was busy


def gained(lines: Iterable[str]) -> list[Gained]:
    found = [_GAINED.match(line) for line in lines]
    return [Gained(row[1], row[2], row[3], row[4] or "", bool(row[5])) for row in found if row]


def against(lines: Sequence[str]) -> tuple[str, dict[str, tuple[str, bool]]]:
    """The drafter of the details, and by source its speed-ups, each with whether the machine was busy."""
    first = next((line.split() for line in lines if line.strip()), [])
    said = _AGAINST.search(unfolded("\n".join(lines)))
    parts = [part.partition("x ") for part in said[1].split(" · ")] if said else []
    found = {_SOURCES[where.removesuffix(_BUSY)]: (value, where.endswith(_BUSY)) for value, _, where in parts}
    return first[0] if first else "", found


def drafters_faults(shown: str, benched: Mapping[str, Gain]) -> Iterator[str]:
    """Compares the drafters' screen with itself and with the speed-ups of the last benchmark over all of its texts."""
    above, beside = panes(shown)
    rows, (name, details) = gained(above), against(beside)
    for before, row in pairwise(rows):
        sorted_so = number(before.value) >= number(row.value)
        yield "" if sorted_so else f"drafters: {row.drafter} {row.value}x below {before.drafter} {before.value}x"
    for row in rows:
        yield bar_fault(f"drafters, {row.drafter}", row.value, row.drawn)
        if row.source == "bench":
            known = benched.get(row.drafter)
            good = known is not None and agree(row.value, known.value)
            yield "" if good else f"drafters: {row.drafter} {row.value}x, but {known} in the benchmark"
        if row.drafter == name and row.source:
            same = details.get(row.source) == (row.value, row.busy)
            yield "" if same else f"drafters: {name} {row} in the list, but {details} below it"
    if "bench" in details:
        known = benched.get(name)
        good = known is not None and agree(details["bench"][0], known.value)
        yield "" if good else f"drafters, details of {name}: {details}, but {known} in the benchmark"


# --- the models' screen -------------------------------------------------------------------------------------------

_LIMIT: Final = r"(?:up to|about) ([\d,.]+)"
_OFFERED: Final = re.compile(rf"^ *[★●✗]? ?(\S.*?)  .*? {_LIMIT}(?= |$)")
_EXPECTED: Final = re.compile(rf"Expected here: {_LIMIT} tokens a second")


@dataclass(frozen=True, slots=True)
class Expected:
    """The predicted limit of a model's tokens a second."""

    model: str
    limit: str
    in_use: bool = False  # whether the row is marked as the loaded model's

    def fits(self, model: str) -> bool:
        """Whether it is of a model, whose name may be cut off in the list."""
        cut = self.model.removesuffix("…").strip()
        return model.startswith(cut) if self.model.endswith("…") else model == cut


def expected_rows(lines: Iterable[str]) -> list[Expected]:
    found = [(line, _OFFERED.match(line)) for line in lines]
    return [Expected(row[1], row[2], line.lstrip().startswith("●")) for line, row in found if row]


def expected_details(lines: Sequence[str]) -> Expected | None:
    flat = unfolded("\n".join(lines))
    told = _EXPECTED.search(flat)
    return Expected(flat.partition(" · ")[0], told[1]) if told else None


def models_faults(shown: str, offers: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Compares predictions in a list of models with those in the details and, unless empty, of ``models pairs
    --json``."""
    above, beside = panes(shown)
    rows, details = expected_rows(above), expected_details(beside)
    shown_too = [row for row in rows if details and row.fits(details.model)]  # several where names are cut off
    for row in rows:
        if details and shown_too == [row]:
            same = row.limit == details.limit
            yield "" if same else f"models: {row} in the list, but {details} in the details"
        if told := [
            offer["speed"]["plain"]["high"]
            for offer in offers
            if row.fits(offer["pair"]["target"]["model"]) and offer["speed"]
        ]:
            least = number(row.limit) - max(step_of(row.limit), 0.05 * number(row.limit))  # later ones are only faster
            yield "" if least <= max(told) else f"models: {row}, but {told} by models pairs --json"


def measured_note(rows: Iterable[Expected], plain: str) -> str:
    """Whether the measured speed of the loaded model, without a drafter, exceeds its predicted limit, if it has one."""
    for row in rows:
        if row.in_use and number(plain) > number(row.limit) + step_of(row.limit):
            return f"{row.model} was expected to write at most {row.limit} tok/s without a drafter and writes {plain}"
    return ""


def plain_speed(shown: str) -> str:
    found = _WITHOUT.search(shown)
    return found[1] if found else ""
