"""Output of the commands: tables and JSON on standard output, progress on standard error."""

import json
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, fields, is_dataclass
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Any, Final, Self

from slipstream.app.cli.streams import notice
from slipstream.app.library import format as models_words
from slipstream.app.library.offers import CONTEXTS, CatalogOffer, QuantOffer
from slipstream.app.platform.safe_text import one_line, shortened
from slipstream.models.heads.matching_heads import MTP
from slipstream.models.hub.types import RepoSummary
from slipstream.models.library.pairing import PairOffer, unserved
from slipstream.models.library.records import InstalledModel
from slipstream.models.memory.fit import Fit
from slipstream.models.memory.speed import Prediction

_UNKNOWN: Final = "-"
_NOTE: Final = 90
_WHERE: Final = {"ours": "slipstream", "hf-cache": "hub cache", "lmstudio": "LM Studio", "ollama": "Ollama"}
_FITS: Final = {"gpu": "on the GPU", "split": "partly on the GPU", "memory": "in memory", "too big": "too big"}
_MEMORY: Final = f"GB AT {' / '.join(f'{n_ctx // 1024}K' for n_ctx in CONTEXTS)}"
_LEAST_FIRST: Final = (_MEMORY, "HERE IT RUNS", "METHOD", "SIZE")
"""Columns of the catalogue that may be left out, the least important first."""
_NAMES: Final = (0, 1)  # the columns that are left with names: the target and the drafter
_SHORTEST: Final = 12  # columns that a shortened name keeps
_STEP: Final = 10  # per cent between two lines of progress if the output is not a terminal


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Aligns cells in columns; cells may hold untrusted text."""
    lines = [tuple(headings), *(tuple(map(one_line, row)) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    return "\n".join("  ".join(f"{cell:<{w}}" for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines)


def models_table(models: Sequence[InstalledModel], usual: str) -> str:
    rows = [
        (
            one_line(model.name),
            models_words.size(model.size),
            models_words.parameters(model.params) or _UNKNOWN,
            models_words.context(model.context) or _UNKNOWN,
            _WHERE.get(model.origin, model.origin),
            _state(model, usual),
        )
        for model in models
    ]
    notes = [f"{model.problem} {model.hint}" if model.problem else "" for model in models]
    return _noted(("NAME", "SIZE", "PARAMETERS", "CONTEXT", "WHERE", ""), rows, notes)


def _noted(headings: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str]) -> str:
    """A table with a line below each row that has a note."""
    head, *lines = table(headings, rows).split("\n")
    below = (f"\n    {one_line(note)}" if note else "" for note in notes)
    return "\n".join([head, *(line + note for line, note in zip(lines, below, strict=True))])


def _state(model: InstalledModel, usual: str) -> str:
    if model.problem:
        return "broken"
    if model.role != "chat":
        return "only drafts"
    return "chosen" if model.name == usual else ""


def search_table(found: Sequence[RepoSummary]) -> str:
    rows = [
        (
            one_line(repo.id),
            models_words.parameters(repo.total_params) or _UNKNOWN,
            models_words.context(repo.context) or _UNKNOWN,
            models_words.number(repo.downloads),
            models_words.number(repo.likes),
            one_line(repo.license) or _UNKNOWN,
            "licence to accept" if repo.gated else "",
        )
        for repo in found
    ]
    return table(("REPOSITORY", "PARAMETERS", "CONTEXT", "DOWNLOADS", "LIKES", "LICENCE", ""), rows)


def quants_table(offers: Sequence[QuantOffer]) -> str:
    rows = [
        (
            one_line(offer.quant.label),
            models_words.size(offer.quant.size),
            "" if offer.quant.drafts else shown_fit(offer.fit),
            _limit(offer.speed),
            f"{offer.drafting:.1f}x" if offer.drafting else "",
            "only drafts" if offer.quant.drafts else "best here" if offer.best else "",
            f"here: {one_line(offer.installed)}" if offer.installed else "",
        )
        for offer in offers
    ]
    return table(("QUANTIZATION", "SIZE", "HERE IT RUNS", "TOK/S", "DRAFTING", "", ""), rows)


def catalog_table(offers: Sequence[CatalogOffer], width: int = 0) -> str:
    """The catalogue, and how sure its speeds are; a narrow one has fewer columns and shorter names; 0 for no limit."""
    rows = []
    for offer in offers:
        pair, memory = offer.pair, offer.memory
        size = pair.target.about
        about = "" if pair.target.size else "about "
        rows.append(
            (
                pair.target.model + (f":{pair.target.quant}" if pair.target.quant else ""),
                f"{about}{models_words.size(size)}" if size else _UNKNOWN,
                pair.drafter.model if pair.drafter else _without_file(offer),
                pair.method,
                " / ".join(f"{memory[n] / 1e9:.1f}" for n in sorted(memory)) or _UNKNOWN,
                shown_fit(offer.fit) if offer.fit else _UNKNOWN,
                _limit(offer.speed),
                _remark(offer),
            )
        )
    headings = ["TARGET", "SIZE", "DRAFTER", "METHOD", _MEMORY, "HERE IT RUNS", "TOK/S", ""]
    lines = [headings, *map(list, rows)]
    for name in _LEAST_FIRST:
        if not width or _width(lines) <= width:
            break
        at = lines[0].index(name)
        lines = [line[:at] + line[at + 1 :] for line in lines]
    cut, longest = lines, max(len(line[at]) for line in lines for at in _NAMES)
    while width and _width(cut) > width and longest > _SHORTEST:
        longest -= 1
        cut = [[shortened(cell, longest) if at in _NAMES else cell for at, cell in enumerate(line)] for line in lines]
    shown = table(cut[0], cut[1:])
    busy = any(offer.speed and offer.speed.basis == "busy" for offer in offers)
    return f"{shown}\nThe speed was measured while the machine was busy." if busy else shown


def _without_file(offer: CatalogOffer) -> str:
    if offer.pair.first:
        return f"{offer.heads} that ship with Slipstream" if offer.heads else _UNKNOWN
    return f"its own {MTP} layers" if offer.pair.method == MTP else _UNKNOWN


def _width(lines: Sequence[Sequence[str]]) -> int:
    widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
    return sum(widths) + 2 * (len(widths) - 1)


def _limit(speed: Prediction | None) -> str:
    return models_words.speed(speed) if speed else _UNKNOWN


def _remark(offer: CatalogOffer) -> str:
    if offer.installed:
        return f"here: {one_line(offer.installed)}"
    if offer.pair.own:
        return "your own"
    return "drafter not supported yet" if unserved(offer.pair) else ""


def pairs_table(offers: Sequence[PairOffer]) -> str:
    rows = [
        (
            one_line(offer.name),
            offer.method,
            models_words.size(offer.size) if offer.size else _UNKNOWN,
            offer.source,
            f"{offer.gain:.2f}x" if offer.gain else _UNKNOWN,
            "no" if offer.why_not else "to fetch" if offer.fetch else "ready",
        )
        for offer in offers
    ]
    notes = []
    for offer in offers:
        instead = f"; instead: {offer.instead}" if offer.instead else ""
        note = one_line(offer.note)
        short = note if len(note) <= _NOTE else note[:_NOTE] + "…"
        notes.append(offer.why_not + instead if offer.why_not else short)
    return _noted(("DRAFTER", "METHOD", "SIZE", "WHY", "GAIN", ""), rows, notes)


def shown_fit(fit: Fit) -> str:
    return _FITS[fit.verdict]


def print_json(value: object) -> None:
    """Prints dataclasses, and lists and dicts of them, as one line of JSON; a terminal gets only ASCII, to be safe."""
    print(json.dumps(_plain(value), ensure_ascii=sys.stdout.isatty()))


def _plain(value: object) -> Any:
    if isinstance(value, Prediction):  # a prediction is an upper limit, and nothing is predicted with a drafter
        low = value.tok_per_s if value.basis == "replies" else None
        return {"plain": {"low": low, "high": value.tok_per_s}, "drafted": None, "basis": value.basis}
    if isinstance(value, QuantOffer | CatalogOffer):
        return _plain({field.name: getattr(value, field.name) for field in fields(value)})
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, Path):
        return str(value)
    return value.isoformat() if isinstance(value, datetime) else value


class Bar:
    """Shows progress, and turns the first Ctrl-C into ``cancelled``; a second one ends the program at once.

    Rewrites one line on a terminal; elsewhere prints a line every ten per cent.
    """

    def __init__(self, doing: str) -> None:
        self._doing = doing
        self._tty = sys.stderr.isatty()
        self._shown = 0
        self._width = 0
        self._stopped = False
        self._before: Callable[[int, FrameType | None], Any] | int | None = None

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGINT, self._interrupted)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)
        if self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()

    def cancelled(self) -> bool:
        return self._stopped

    def bytes(self, done: int, size: int) -> None:
        self.line(f"{self._doing}: {models_words.size(done)} of {models_words.size(size)}", done, size)

    def line(self, text: str, done: int, size: int) -> None:
        share = 100 * done // max(1, size)
        if self._tty:
            text = f"{text}, {share} %"[: shutil.get_terminal_size().columns - 1]
            sys.stderr.write("\r" + text.ljust(self._width))
            self._width = len(text)
            sys.stderr.flush()
        elif share >= self._shown + _STEP:
            self._shown = share - share % _STEP
            print(f"slipstream: {text}, {share} %", file=sys.stderr, flush=True)

    def note(self, words: str) -> None:
        if self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            self._width = 0
        notice(words)

    def _interrupted(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)
        self._stopped = True
