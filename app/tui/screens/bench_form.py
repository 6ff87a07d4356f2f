"""Asks what to measure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, RadioButton, RadioSet, SelectionList, Static
from textual.widgets.selection_list import Selection

from slipstream.app.bench.prompt_files import read_prompts
from slipstream.app.bench.prompts import BUILT_IN
from slipstream.app.safe_text import clean, one_line
from slipstream.app.tui.behind import behind
from slipstream.app.tui.screens.bench_plan import GREEDY, SAMPLED, SIZES, BenchPlan, about
from slipstream.app.tui.screens.models_import import PathSuggester
from slipstream.models.errors import SlipstreamError

NARROW = 64
"""Columns below which the drafters stand under the rest."""


class BenchForm(ModalScreen[BenchPlan | None]):
    """Prompts, sampling, size and drafters. Closes with a plan, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "run", "Run", priority=True),
        Binding("escape", "dismiss", "Back"),
    ]

    def __init__(self, drafters: Sequence[str], plan: BenchPlan, plain_tok_per_s: float) -> None:
        """Keeps what can be chosen.

        Args:
            drafters: Those that serve the model.
            plan: What is chosen at first.
            plain_tok_per_s: Speed of the model alone.
        """
        super().__init__()
        self._drafters, self._plan, self._plain = drafters, plan, plain_tok_per_s

    def compose(self) -> ComposeResult:
        """What to write, beside who drafts."""
        plan = self._plan
        own = next((name for name in plan.prompts if name not in BUILT_IN), "")
        kinds = (("greedy, T 0", GREEDY), ("sampled, T 0.8", SAMPLED))
        with VerticalScroll(classes="sheet", id="bench-form") as sheet:
            sheet.border_title = "New benchmark"
            sheet.border_subtitle = "Space switches · Enter runs · Esc back"
            with Horizontal(classes="columns"):
                with Vertical(classes="choices"):
                    yield Static("Prompts", classes="label")
                    yield SelectionList(*(Selection(name, name, name in plan.prompts) for name in BUILT_IN), id="sets")
                    yield Input(own, placeholder="a file: ~/prompts.txt", suggester=PathSuggester(), id="file")
                    yield Static("Sampling", classes="label")
                    chosen = (Selection(name, value, value in plan.temperatures) for name, value in kinds)
                    yield SelectionList(*chosen, id="sampling")
                    yield Static("Size", classes="label")
                    yield RadioSet(*(RadioButton(name, value=name == plan.size) for name in SIZES), id="size")
                with Vertical(classes="choices"):
                    yield Static("Drafters", classes="label")
                    rows = (Selection(one_line(name), name, name in plan.drafters) for name in self._drafters)
                    yield SelectionList(*rows, id="drafting")
            yield Static(id="estimate")

    def on_mount(self) -> None:
        """Begins at the drafters: what is measured most depends on them."""
        self.query_one("#drafting").focus()

    def on_resize(self) -> None:
        """Puts the columns below each other where there is no room beside."""
        self.set_class(self.size.width < NARROW, "narrow")

    def chosen(self) -> BenchPlan:
        """What is chosen now."""
        file = self.query_one("#file", Input).value.strip()
        sets = self.query_one("#sets", SelectionList).selected
        names, marked = self._drafters, self.query_one("#drafting", SelectionList).selected
        size = self.query_one("#size", RadioSet).pressed_index
        return BenchPlan(
            (*(name for name in BUILT_IN if name in sets), *([file] if file else [])),
            tuple(name for name in names if name in marked),
            tuple(sorted(self.query_one("#sampling", SelectionList).selected)),
            list(SIZES)[max(size, 0)],
        )

    @on(SelectionList.SelectedChanged)
    @on(RadioSet.Changed)
    @on(Input.Changed)
    def _changed(self) -> None:
        """Says how long it will take, or what is missing."""
        plan = self.chosen()
        prompts, tokens = SIZES[plan.size]
        size = f"{prompts} prompts a set, {tokens} tokens a reply"
        time = f"{about(plan.seconds(self._plain)).capitalize()} at this model's plain speed ({size})."
        rest = "The model is loaded by the benchmark alone meanwhile: the chat's is put away, and its messages wait."
        self._say(plan.lacks or f"{time} {rest}")

    def action_run(self) -> None:
        """Closes with the plan, if there is all it needs and its file holds prompts."""
        plan = self.chosen()
        if plan.lacks:
            self._say(plan.lacks, wrong=True)
            return
        own = [Path(name).expanduser() for name in plan.prompts if name not in BUILT_IN]

        def good(_: object) -> None:
            if self.is_current:
                self.dismiss(plan)

        def bad(error: SlipstreamError) -> None:
            self._say(f"{error.title} {error.hint}", wrong=True)

        behind(self, lambda: [read_prompts(path) for path in own], good, bad)

    def _say(self, words: str, wrong: bool = False) -> None:
        estimate = self.query_one("#estimate", Static)
        estimate.update(Content(clean(words[:1].upper() + words[1:])))
        estimate.set_class(wrong, "wrong")
