"""The help screen: all keys, and the meaning of the figures."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.content import Content, Span
from textual.widgets import Static

from slipstream.app.tui.chat.authorship import legend
from slipstream.app.tui.chat.commands import COMMANDS, MARK
from slipstream.app.tui.keys import KeyMap, sheet_keys
from slipstream.app.tui.parts.dialogs import Dialog

KEYS = (
    ("Enter", "send; while a reply is written, after it"),
    ("Ctrl-J, Alt-Enter", "new line (also Shift-Enter, if the terminal tells it apart)"),
    ("Alt-E", "write the prompt in $EDITOR; read a selected message there"),
    ("Esc", "stop the reply; what was written stays"),
    ("Up, Down", "in an empty prompt: earlier prompts"),
    ("Ctrl-P, Ctrl-N", "in the prompt: earlier prompts, later ones"),
    ("Ctrl-R", "search earlier prompts, in all chats"),
    ("/, //", "a command; a message that begins with a slash"),
    ("@", "attach a text file"),
    ("Tab", "on pasted or attached text: put it into the prompt"),
    ("Tab", "in an empty prompt: something to try"),
    ("F2", "next drafter, from the next reply on"),
    ("Ctrl-D", "drafters: choose, train, import, index"),
    ("F8", "benchmark: what drafting gains on this machine"),
    ("F3", "colours: guessed, copied words"),
    ("F4", "guesses of each step, and how often they are right"),
    ("/guess", "one reply with guesses shown, and what they gained"),
    ("Ctrl-L", "models: use, find, fetch, remove"),
    ("F6", "take the model that is suggested: fetch or load it"),
    ("F5", "reply again, with another seed"),
    ("Alt-R", "reply again, with a penalty for repeats (DRY)"),
    ("Ctrl-T", "open or fold the thoughts of the last reply"),
    ("Alt-T", "how much the model thinks before it answers"),
    ("Alt-A", "stop thinking now: the model answers at once"),
    ("Ctrl-Y", "copy the last reply"),
    ("Ctrl-G", "continue a stopped reply"),
    ("Ctrl-Up, Ctrl-Down", "select a message (also with Alt), then:"),
    ("  e, r", "edit it, reply again; the old version is kept"),
    ("  Left, Right", "the other versions of it, where it says 2/3"),
    ("  c, 1 to 9", "copy it, or a code block of it"),
    ("  f", "fork: a new chat that ends with it"),
    ("  d, u", "delete it, bring it back"),
    ("Ctrl-N, Alt-N", "new chat"),
    ("Ctrl-O", "all chats; type to search, then:"),
    ("  Enter, Ctrl-R", "open it, rename it"),
    ("  Ctrl-T, Ctrl-X", "pin it, delete it (Ctrl-Z brings it back)"),
    ("  Ctrl-S", "export it"),
    ("PgUp, PgDn", "scroll; the mouse wheel does too"),
    ("Ctrl-Home, Ctrl-End", "to the top, to the newest"),
    ("Ctrl-C", "copy what is selected, else stop, clear, quit"),
    ("F1", "this help"),
    ("Alt-S", "this chat: system prompt, sampling, drafter, context"),
    ("F9", "settings: all of them, explained"),
    ("Alt-P", "all commands, and light or dark"),
    ("Ctrl-Z", "undo typing; /suspend goes back to the shell"),
    ("Ctrl-Q", "quit"),
)
SECTIONS = {  # the first key of a section to its title
    "Enter": "Writing",
    "F2": "Guesses",
    "Ctrl-L": "Models",
    "F5": "Replies",
    "Ctrl-Up, Ctrl-Down": "Messages",
    "Ctrl-N, Alt-N": "Chats",
    "PgUp, PgDn": "Screen and program",
}
FIGURES = (
    ("tok/s", "tokens per second over the reply, once it began"),
    ("with drafter", "the speed now; a drafter guesses, the model checks"),
    ("without", "this model without a drafter, measured just now"),
    ("unsteady", "its steps differ too much for a comparison"),
    ("machine is busy", "other programs use much of the processor"),
    ("1.8x faster", "speed-up: with drafter over without"),
    ("68 % right", "acceptance: share of guesses that the model took"),
    ("tokens per step", "how many tokens one pass of the model yields"),
    ("text identical", "same text: a drafter changes no word"),
    ("same odds", "same distribution: single words may differ; Ctrl-D says why"),
    ("corrected", "recovered: the model's word where a guess was wrong"),
    ("free extra token", "bonus: the model's own, after right guesses"),
)

WIDTH = 80  # largest width of the sheet, as in ``app.tcss``
FRAME = 7  # cells of its border, its padding and its scrollbar
NARROW = 70  # screen width below which a meaning is on the line below its key


class HelpScreen(Dialog[None]):
    """Lists the keys, the figures and the colours."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,f1,q,enter", "dismiss", "Close")]

    def __init__(self, keys: KeyMap, here: Sequence[tuple[str, str]] = ()) -> None:
        """Lists the chat's keys, and before them ``here``, the keys of another screen that is open."""
        super().__init__()
        self._keys, self._here = keys, here

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="sheet", id="help") as sheet:
            sheet.border_title = "Keys"
            sheet.border_subtitle = sheet_keys("Esc closes")
            screen = self.app.size.width
            narrow, room = screen < NARROW, min(screen, WIDTH) - FRAME
            sections: dict[str, list[tuple[str, str]]] = {}
            for usual, meaning in KEYS:
                title = SECTIONS.get(usual) or next(reversed(sections))
                rows = sections.setdefault(title, [])
                if name := with_command(usual, self._keys):
                    rows.append((name, meaning))
            every = [*FIGURES, *(row for rows in sections.values() for row in rows)]
            width = 0 if narrow else max(len(name) for name, _ in every)
            if self._here:
                yield Static(_rows(self._here, width, room))
                yield Static(Content("In the chat"), classes="heading")
            for title, rows in sections.items():
                yield Static(Content(title), classes="heading")
                yield Static(_rows(rows, width, room))
            yield Static(Content("Status bar"), classes="heading")
            yield Static(_rows(FIGURES, width, room))
            yield Static(Content("Colours (F3)"), classes="heading")
            yield Static(legend(room))


def with_command(usual: str, keys: KeyMap) -> str:
    """The current keys of a row, and the command with the same action; empty if there is neither."""
    command = next((each for each in COMMANDS if each.key and each.key == usual.split(", ")[0]), None)
    return ", ".join(filter(None, (keys.now(usual), f"{MARK}{command.name}" if command else "")))


def _rows(rows: Sequence[tuple[str, str]], width: int, room: int) -> Content:
    """The rows in at most ``room`` cells, with keys of ``width`` cells; 0 puts a meaning below its key."""
    indent = "\n" + " " * (width + 2)
    lines = []
    for name, meaning in rows:
        column = indent.join(wrap(meaning, max(room - width - 2, 1)))
        between = "  " if width else indent
        lines.append(Content(f"{name:<{width}}{between}{column}", [Span(0, len(name), "bold $primary")]))
    return Content("\n").join(lines)
