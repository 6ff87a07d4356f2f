"""What the tabs of the model manager have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from textual.content import Content

from slipstream.app.safe_text import one_line, sentence
from slipstream.app.tui.widgets.models_table import Column, table

if TYPE_CHECKING:
    from slipstream.models.fit import Fit

VERDICTS = {
    "gpu": ("●", "GPU", "$success"),
    "split": ("◐", "GPU + memory", "$success"),
    "memory": ("○", "memory", "$warning"),
    "too big": ("✗", "too big", "$error"),
}
IN_USE = "● "
BEST = "★ "
NO_MARK = "  "


class View(ABC):
    """A list of models or of what belongs to them: rows, and details of one of them."""

    waiting = ""
    """What is shown while the list is being made."""
    nothing = ""
    """What is shown where there is nothing to list."""
    error = ""
    """Why there is nothing to list."""
    note = ""
    """What goes on meanwhile; it stands above the list."""
    ready = False
    """Whether the list has been made."""

    @abstractmethod
    def __len__(self) -> int:
        """How many rows there are."""

    @abstractmethod
    def key(self, at: int) -> str:
        """What names a row while others come and go."""

    @abstractmethod
    def lines(self, width: int) -> list[Content]:
        """The heading, which may be empty, then the rows; each may take several lines."""

    @abstractmethod
    def details(self, at: int) -> list[Content]:
        """More about a row: blocks, which stand apart where there is room; empty ones are left out."""

    def find(self, key: str | None) -> int | None:
        """The row of a name, or None."""
        return next((at for at in range(len(self)) if self.key(at) == key), None)

    @property
    def words(self) -> str:
        """What is said above the list, or in its place."""
        return self.error or self.note or (self.nothing if self.ready else self.waiting)


class TableView(View):
    """A list whose rows are cells in columns."""

    @property
    @abstractmethod
    def columns(self) -> Sequence[Column]:
        """The columns; the first is the name."""

    @abstractmethod
    def cells(self, at: int) -> list[Content]:
        """A row: a cell for each column."""

    def lines(self, width: int) -> list[Content]:
        """The heading, then a line a row."""
        return table(self.columns, [self.cells(at) for at in range(len(self))], width)


def text(words: str, style: str = "") -> Content:
    """Text from elsewhere on one line."""
    content = Content(one_line(words))
    return content.stylize(style) if style else content


def verdict(fit: Fit | None) -> Content:
    """Where a model runs, in a mark and a word."""
    if fit is None:
        return Content("")
    mark, word, colour = VERDICTS[fit.verdict]
    return Content(f"{mark} {word}").stylize(colour, 0, 1)


def fit_block(fit: Fit) -> Content:
    """Where a model runs and what it needs, for the details."""
    context = f" · {fit.n_ctx:,} tokens of context"
    return below(
        verdict(fit).stylize("bold").append(Content(context if fit.verdict != "too big" else "")),
        Content(sentence(fit.why)).stylize("$foreground 70%"),
    )


def heading(name: str, *facts: str) -> Content:
    """The first line of the details: a name, then facts; empty ones are left out."""
    said = [one_line(fact) for fact in facts if fact]
    return text(name, "bold $primary").append(Content("".join(f" · {fact}" for fact in said)))


def below(*lines: Content) -> Content:
    """Lines below each other; empty ones are left out."""
    return Content("\n").join([line for line in lines if line.plain])
