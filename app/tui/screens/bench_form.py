"""Asks what to measure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from slipstream.app.bench.prompt_files import read_prompts
from slipstream.app.bench.prompts import BUILT_IN
from slipstream.app.safe_text import sentence
from slipstream.app.tui.behind import behind
from slipstream.app.tui.screens.bench_plan import GREEDY, SAMPLED, SIZES, BenchPlan, about
from slipstream.app.tui.screens.models_import import PathSuggester
from slipstream.app.tui.widgets.bench_picks import Picks
from slipstream.app.tui.widgets.sheet_keys import sheet_keys
from slipstream.models.errors import SlipstreamError

KINDS = MappingProxyType({"greedy, T 0": GREEDY, "sampled, T 0.8": SAMPLED})
"""How tokens may be drawn, and the temperature of it."""
NARROW = 64
"""Columns below which the drafters stand under the rest."""


class BenchForm(ModalScreen[BenchPlan | None]):
    """Prompts, sampling, size and drafters. Closes with a plan, or None."""

    DEFAULT_CSS = """
    #bench-form .columns { height: auto; }
    #bench-form .choices { width: 1fr; height: auto; margin: 0 2 0 0; }
    #bench-form .label { color: $foreground 60%; }
    #bench-form Picks { margin: 0 0 1 0; }
    #bench-form Input { margin: 0 0 1 1; }
    #bench-form #sets { margin: 0; }
    #bench-form #estimate.wrong { color: $error; }
    BenchForm.narrow .columns { layout: vertical; }
    """
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
        kinds = [name for name, value in KINDS.items() if value in plan.temperatures]
        with VerticalScroll(classes="sheet", id="bench-form") as sheet:
            sheet.border_title = "New benchmark"
            sheet.border_subtitle = sheet_keys("Space switches", "Enter runs", "Esc back")
            with Horizontal(classes="columns"):
                with Vertical(classes="choices"):
                    yield Static("Prompts", classes="label")
                    yield Picks(BUILT_IN, plan.prompts, id="sets")
                    yield Input(own, placeholder="a file: ~/prompts.txt", suggester=PathSuggester(), id="file")
                    yield Static("Sampling", classes="label")
                    yield Picks(list(KINDS), kinds, id="sampling")
                    yield Static("Size", classes="label")
                    yield Picks(list(SIZES), [plan.size], one=True, id="size")
                with Vertical(classes="choices"):
                    yield Static("Drafters", classes="label")
                    yield Picks(self._drafters, plan.drafters, id="drafting")
            yield Static(id="estimate")

    def on_mount(self) -> None:
        """Begins at the drafters: what is measured most depends on them."""
        self.query_one("#drafting").focus()
        self._changed()

    def on_resize(self) -> None:
        """Puts the columns below each other where there is no room beside."""
        self.set_class(self.size.width < NARROW, "narrow")

    def chosen(self) -> BenchPlan:
        """What is chosen now."""
        file = self.query_one("#file", Input).value.strip()
        sets, kinds, sizes, drafters = (
            self.query_one(f"#{name}", Picks).chosen for name in ("sets", "sampling", "size", "drafting")
        )
        return BenchPlan(
            (*sets, *([file] if file else [])), drafters, tuple(KINDS[kind] for kind in kinds), "".join(sizes)
        )

    @on(Picks.Changed)
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
        estimate.update(Content(sentence(words)))
        estimate.set_class(wrong, "wrong")
