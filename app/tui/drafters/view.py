"""Lists the drafters of a model as rows, with details of the selected one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from textual.content import Content

from slipstream.app.library.format import rate, size
from slipstream.app.platform.safe_text import one_line, plural
from slipstream.app.protocol.events import DrafterOffer
from slipstream.app.protocol.requests import AUTO, PLAIN
from slipstream.app.speed import GAIN, LEAST_OF_CHATS, judged, times
from slipstream.app.tui.parts.browser import GAP, View, below, heading
from slipstream.app.tui.parts.format import STYLES, gain_bar
from slipstream.models.outside import shown_path

if TYPE_CHECKING:
    from slipstream.app.library.drafter_status import Standing
    from slipstream.app.library.heads_files import HeadsFile

IN_USE, NO_MARK = "● ", "  "
MEASURED, FRESH, CANNOT = "Speed against no drafter", "No speed measured yet", "Not for this model"
TRAINED_ON: Final = {"answers": "this model's own answers", "corpus": "public texts"}
_NARROWEST: Final = 10
_WIDEST: Final = 24
_ROOMY: Final = 70  # width from which bars may be longer, and the source of each gain is shown
_SOURCE: Final = 5  # least columns of a gain's source: "chats"
NO_TEXT: Final = "it needs indexed text"  # begins the reason of ``retrieval`` while nothing is indexed
_LEAST_WORDS: Final = 12
_WIDTHS: Final = (2, 4, 8, 16)  # batch sizes whose cost is shown
WOULD: Final = {  # how to make a drafter usable
    "draft": "Ctrl-L, then d: fetch or choose a smaller model.",
    "medusa": "t trains heads here, i imports published ones.",
    "kangaroo": "t trains an adapter here, i imports a published one.",
    "space": "t trains it here.",
    "retrieval": "f indexes a folder; chats are indexed by themselves.",
    "dflash": "t trains a head here; Ctrl-L, then d fetches one, where there are some.",
    **dict.fromkeys(("eagle3", "mtp", "dspark"), "Ctrl-L, then d: fetch heads, where there are some."),
}


class DraftersView(View[DrafterOffer | str]):
    """All drafters: measured ones and plain decoding by gain, then those without a gain, then unusable ones."""

    ready = True

    def __init__(self, offers: Sequence[DrafterOffer], current: str, plain_tok_per_s: float | None) -> None:
        super().__init__()
        self.current = current
        self._offers, self._plain = offers, plain_tok_per_s
        self._folded = True  # whether the drafters that this model cannot use are one row
        self.take(None)

    def take(self, found: Standing | None) -> None:
        self.standing = found
        usable = [offer for offer in self._offers if offer.usable]
        tried = [offer for offer in usable if offer.name == PLAIN or self._gain_of(offer.name) is not None]
        tried.sort(key=lambda offer: -(self._gain_of(offer.name) or 1.0))
        fresh = [offer for offer in self._offers if (offer.usable or self.text_came(offer)) and offer not in tried]
        self._cannot = [offer for offer in self._offers if not (offer.usable or self.text_came(offer))]
        self.rows = []
        for title, offers in ((MEASURED, tried), (FRESH, fresh), (CANNOT, self._cannot)):
            self.rows += [title, *([] if self._folded and title == CANNOT else offers)] if offers else []

    def unfold(self, name: str) -> bool:
        """Shows the drafters that this model cannot use if ``name`` is their row, or one of them."""
        if not self._folded or name not in (CANNOT, *(offer.name for offer in self._cannot)):
            return False
        self._folded = False
        self.take(self.standing)
        return True

    def key(self, row: DrafterOffer | str) -> str:
        return row if isinstance(row, str) else row.name

    def is_heading(self, row: DrafterOffer | str) -> bool:
        return isinstance(row, str) and not (self._folded and row == CANNOT)

    def lines(self, width: int) -> list[Content]:
        names = max(len(one_line(offer.name)) for offer in self._offers)
        gains = [gain for offer in self._offers if (gain := self._gain_of(offer.name)) is not None]
        room = min(_WIDEST, max(_NARROWEST, (width - names) // 4)) if width >= _ROOMY else _NARROWEST
        return [
            Content(self._advice).truncate(width, ellipsis=True),
            *(self._line(row, names, room, max([1.4, *gains]), width) for row in self.rows),
        ]

    @property
    def _advice(self) -> str:
        if self.standing is None:
            return ""
        names = [offer.name for offer in self._offers if offer.usable and offer.name != PLAIN]
        if not any(name in self.standing.gains.known for name in names):
            return "Nothing is measured yet: v races a drafter, F8 in the chat measures all."
        known, proven = self.standing.gains, self.standing.gains.proven
        gain, name = max(((proven[name], name) for name in names if name in proven), default=(1.0, ""))
        if known.advice and (gain < GAIN or name in known.sure):
            return known.advice
        if gain >= GAIN:
            where = "in your chats" if name in known.chats and name not in known.sure else "here"
            return f"{'Use auto: it' if name == AUTO else one_line(name)} was {times(gain)} faster {where}."
        use = PLAIN if judged(proven.get(AUTO, 1.0)) == "loss" else f"{AUTO} or {PLAIN}"
        nothing = f"Use {use}: nothing" if AUTO in known.known else "Nothing"
        return f"{nothing} that was measured gains on this model here."

    def _line(self, row: DrafterOffer | str, names: int, room: int, most: float, width: int) -> Content:
        if isinstance(row, str):
            hidden = ", ".join(one_line(offer.name) for offer in self._cannot)
            row = f"▸ {row}: {hidden}" if self._folded and row == CANNOT else row
            return Content(row).truncate(width, ellipsis=True).stylize("$foreground 55%")
        current, gain = row.name == self.current, self._gain_of(row.name)
        mark = Content(IN_USE if current else NO_MARK).stylize("$primary" if current else "")
        name = Content(f"{one_line(row.name):<{names}}").stylize("bold" if row.usable else "")
        words = one_line(row.about) if row.usable else self._why_not(row)
        words = f"Enter loads it: {one_line(row.about)}" if self.text_came(row) else words
        words = f"off: {words}" if self.is_off(row.name) else words
        gains = self.standing.gains if self.standing else None
        used = gain is None and gains and row.name in gains.tried - gains.uncompared
        words = f"used by auto: {words}" if used else words
        line = mark.append(name).append(Content("  "))
        if gain is not None:
            chance = gains and row.name in gains.known.keys() - gains.proven
            style = STYLES["even" if chance else judged(gain)]
            bar = gain_bar(gain, most, room, style)
            value = Content(f"{times(gain):>5} ").stylize(style)
            line = line.append(value).append(bar).append(Content(" " * (room + GAP - bar.cell_length)))
            if width >= _ROOMY:
                most_wide = max([_SOURCE, *(len(self._source_of(offer.name)) for offer in self._offers)])
                source = f"{self._source_of(row.name):<{most_wide + GAP}}"
                line = line.append(Content(source).stylize("$foreground 55%"))
        left = width - line.cell_length
        said = Content(words).truncate(left, ellipsis=True) if left >= _LEAST_WORDS else Content("")
        line = line.append(said.stylize("$foreground 75%"))
        return line if row.usable else line.stylize("$foreground 45%")

    def _gain_of(self, name: str) -> float | None:
        if name == PLAIN:
            return 1.0 if self._plain or (self.standing and self.standing.gains.known) else None
        return self.standing.gains.known.get(name) if self.standing else None

    def _source_of(self, name: str) -> str:
        return self.standing.gains.sources.get(name, "") if self.standing and name != PLAIN else ""

    def text_came(self, offer: DrafterOffer) -> bool:
        """Whether text was indexed since the model was loaded without any; loading it again makes it usable."""
        known = self.standing
        lacked = not offer.usable and offer.why_not.startswith(NO_TEXT)
        return lacked and known is not None and known.index_on and known.tokens > 0

    def _why_not(self, offer: DrafterOffer) -> str:
        return "text was indexed since the model was loaded" if self.text_came(offer) else one_line(offer.why_not)

    def is_off(self, name: str) -> bool:
        return bool(self.standing and name in self.standing.left_out)

    def details(self, offer: DrafterOffer | str) -> list[Content]:
        standing = self.standing
        if isinstance(offer, str):
            named = ((each, f"{one_line(each.name)} ({one_line(each.about)})") for each in self._cannot)
            reasons = [Content(f"{name}: {self._why_not(each)}.") for each, name in named]
            return [below(heading(CANNOT, "Enter lists them"), *reasons)]
        marks = ("in use" if offer.name == self.current else "", "off for auto" if self.is_off(offer.name) else "")
        said = Content(one_line(offer.about)).stylize("$foreground 80%")
        blocks = [below(heading(offer.name, *marks), said)]
        if not offer.usable:
            came, why = self.text_came(offer), self._why_not(offer).rstrip(".")
            would = "There is text now: Enter loads the model again, with it." if came else WOULD.get(offer.name, "")
            lead = Content(f"{'Not usable yet' if came else 'Not for this model'}: {why}.")
            blocks.append(below(lead, Content(would).stylize("$primary")))
        if standing is None:
            return [*blocks, Content("Looking …").stylize("$foreground 55%")]
        if offer.usable:
            blocks.append(self._gains(offer.name, standing))
        blocks += [_file(file) for file in standing.of(offer.name)]
        if offer.name == "retrieval":
            blocks.append(_index(standing))
        return blocks

    def _gains(self, name: str, standing: Standing) -> Content:
        if name == PLAIN:
            return Content(f"{rate(self._plain)} tok/s now." if self._plain else "The next reply measures its speed.")
        all_gains = standing.gains
        found = [
            f"{times(gains[name])} {where}{' (machine busy)' if busy else ''}"
            for gains, where, busy in (
                (all_gains.chats, "in your chats", name in all_gains.busy_chats),
                (all_gains.benchmark, "in the last benchmark", all_gains.busy_benchmark),
                (all_gains.autopilot, "as the autopilot measured", False),
            )
            if name in gains
        ]
        fresh = f"No speed measured yet: v races it; or write {LEAST_OF_CHATS} tokens with it in a chat."
        if name in all_gains.uncompared:
            fresh = "It wrote in your chats, but the speed without it was too unsteady to compare: v races it."
        elif name in all_gains.tried:
            fresh = f"auto used it at some steps, too few for a speed of its own. {fresh}"
        chance = "The benchmark's figure may be chance." if name in all_gains.chance else ""
        lines = [Content(f"Against no drafter: {' · '.join(found)}." if found else fresh), Content(chance)]
        if name == AUTO:
            lines.append(Content(costs_words(standing.costs)))
            lines.append(Content(standing.advice).stylize("$warning"))
            off = sorted(standing.left_out)
            lines.append(Content(f"Automatic does not use: {', '.join(map(one_line, off))}." if off else ""))
        return below(*lines)


def costs_words(costs: Mapping[int, float]) -> str:
    """The cost of checking several tokens at once, in words; a cost above that of writing them was disturbed."""
    known = [(rows, costs[rows]) for rows in _WIDTHS if rows in costs and costs[rows] <= rows]
    if known:
        (rows, cost), *more = known
        others = "".join(f", {rows} as writing {cost:.1f}" for rows, cost in more)
        return f"Checking {rows} tokens at once costs as much as writing {cost:.1f}{others}; drafting comes on top."
    return "What checking several tokens costs was not measured on a quiet machine yet." if costs else ""


def _file(file: HeadsFile) -> Content:
    facts = [
        f"trained on {TRAINED_ON.get(file.trained_on, one_line(file.trained_on))}" if file.trained_on else "",
        "" if file.first_depth is None else f"first guess right {100 * file.first_depth:.0f} % of the time",
        "" if file.size is None else size(file.size),
    ]
    first = Content(" · ".join(fact for fact in facts if fact))
    verdict = "" if not file.why_not else f"Not supported: {file.why_not}."
    return below(
        first,
        Content(verdict).stylize("$foreground 65%"),
        Content(f"Stale: {file.stale}." if file.stale else "").stylize("$warning"),
        Content(shown_path(file.path)).stylize("$foreground 55%"),
    )


def _index(standing: Standing) -> Content:
    if not standing.index_on:
        return Content("The index is off: slipstream drafters index --on switches it on.").stylize("$warning")
    texts = plural(standing.documents, "chat or file", "chats and files")
    return Content(f"Indexed: {plural(standing.tokens, 'token')} of {texts}.")
