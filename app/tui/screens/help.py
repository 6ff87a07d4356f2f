"""All keys, and what the figures mean."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.content import Content, Span
from textual.screen import ModalScreen
from textual.widgets import Static

from slipstream.app.tui.origins import legend

KEYS = (
    ("Enter", "send"),
    ("Ctrl-J, Alt-Enter", "new line"),
    ("Esc", "stop the reply; what was written stays"),
    ("Up, Down", "in an empty prompt: what you said before"),
    ("Ctrl-R", "search what you said before, in all chats"),
    ("/, //", "a command; a message that begins with a slash"),
    ("@", "attach a text file"),
    ("Tab", "on pasted or attached text: put it into the prompt"),
    ("Tab", "in an empty prompt: something to try"),
    ("F2", "next drafter, from the next reply on"),
    ("Ctrl-D", "drafters: choose, see why not, train, import, index"),
    ("F8", "benchmark: what drafting gains on this machine"),
    ("Ctrl-L", "models: use, find, fetch, remove"),
    ("F3", "colours: who wrote which words"),
    ("F5", "reply again, with another seed"),
    ("Ctrl-Y", "copy the last reply"),
    ("Ctrl-G", "let a reply that was stopped go on"),
    ("Ctrl-Up, Ctrl-Down", "select a message (also with Alt), then:"),
    ("  e, r", "edit it, reply again; what was there stays"),
    ("  Left, Right", "the other versions of it, where it says 2/3"),
    ("  c, 1 to 9", "copy it, or a code block of it"),
    ("Ctrl-N", "new chat"),
    ("Ctrl-O", "all chats: search, open, pin, delete, export"),
    ("PgUp, PgDn", "scroll; the mouse wheel does too"),
    ("Ctrl-Home, Ctrl-End", "to the top, to the newest"),
    ("Ctrl-C", "copy what is selected, else stop, else quit"),
    ("Ctrl-P", "all commands, light and dark"),
    ("Ctrl-Q", "quit"),
)
FIGURES = (
    ("tok/s", "tokens a second, reading the prompt left out"),
    ("acceptance", "share of the drafted tokens that the model accepted"),
    ("tokens/step", "tokens that one pass of the model yields"),
    ("vs plain", "speed against this model without a drafter, here"),
    ("first token", "time from Enter to the first token"),
    ("promise", "same text: a drafter changes the speed alone"),
)

NAME_WIDTH = max(len(name) for name, _ in KEYS + FIGURES)
NARROW = 70
"""Columns below which a meaning stands under its key."""


class HelpScreen(ModalScreen[None]):
    """A sheet over the chat; any of its keys closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,f1,q,enter", "dismiss", "Close")]

    def compose(self) -> ComposeResult:
        """Keys, figures, colours."""
        with VerticalScroll(classes="sheet", id="help") as sheet:
            sheet.border_title = "Keys"
            sheet.border_subtitle = "Esc closes"
            narrow = self.app.size.width < NARROW
            yield Static(_rows(KEYS, narrow))
            yield Static(Content("The strip"), classes="heading")
            yield Static(_rows(FIGURES, narrow))
            yield Static(Content("Colours (F3)"), classes="heading")
            yield Static(legend(self.app.size.width - 8))


def _rows(rows: tuple[tuple[str, str], ...], narrow: bool) -> Content:
    between = "\n  " if narrow else "  "
    width = 0 if narrow else NAME_WIDTH
    lines = [
        Content(f"{name:<{width}}{between}{meaning}", [Span(0, len(name), "bold $primary")]) for name, meaning in rows
    ]
    return Content("\n").join(lines)
