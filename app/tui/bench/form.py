"""The benchmark form, its plan, the estimated time, and the command that runs it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, Final

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from slipstream.app.bench.estimate import about
from slipstream.app.bench.intervals import FEW
from slipstream.app.bench.prompts import BUILT_IN, read_prompts
from slipstream.app.platform.safe_text import one_line, plural, sentence
from slipstream.app.protocol.requests import PLAIN
from slipstream.app.tui.parts.dialogs import Dialog, PathSuggester, sheet
from slipstream.app.tui.parts.notice import run_in_thread
from slipstream.models.errors import SlipstreamError

SIZES: Final = MappingProxyType({"small": (FEW, 32), "medium": (FEW, 96), "large": (8, 160)})
"""Prompts of each set, and maximum tokens of a reply."""
GREEDY, SAMPLED = 0.0, 0.8
_START: Final = 5.0  # least seconds to load and to warm up
_LOADS: Final = 1.5  # the same, in loads of the model in the chat
_BESIDE: Final = 1.3  # factor on the decoding time, for prefill and drafting
ON, OFF, ONE = "✓ ", "· ", "● "
KINDS = MappingProxyType({"likeliest (T 0)": GREEDY, "usual (T 0.8)": SAMPLED})
"""Temperature by the label of the sampling."""
NARROW = 64  # width below which the columns are stacked


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """What to measure; ``size`` is one of ``SIZES``."""

    prompts: tuple[str, ...] = ("chat", "story", "copy")
    drafters: tuple[str, ...] = ()
    temperatures: tuple[float, ...] = (SAMPLED,)
    size: str = "small"

    @property
    def lacks(self) -> str:
        if not self.prompts:
            return "Choose some prompts."
        if not self.drafters:
            return "Choose at least one drafter."
        return "" if self.temperatures else "Choose how tokens are drawn."

    def seconds(self, tok_per_s: Mapping[str, float], load: float = 0.0) -> float:
        """Estimated time with a load of so many seconds; drafters without a speed count as plain decoding."""
        prompts, tokens = SIZES[self.size]
        turns = prompts * len(self.prompts) * len(self.temperatures)
        pace = {name: 1 / max(speed, 0.1) for name, speed in tok_per_s.items()}
        plain = pace[PLAIN]
        turn = plain + sum(plain + pace.get(name, plain) for name in self.drafters)
        return max(_START, _LOADS * load) + _BESIDE * turns * turn * tokens

    def arguments(self, model: str, more: Sequence[str], written: Path) -> list[str]:
        """The arguments of ``slipstream``; ``more`` are those for its draft model and heads."""
        prompts, tokens = SIZES[self.size]
        sets = [f"--prompts={name}" for name in self.prompts]
        temperatures = ",".join(f"{each:g}" for each in self.temperatures)
        measured = ["--drafters", ",".join(self.drafters), *sets, "--temp", temperatures]
        sized = ["--limit", str(prompts), "--tokens", str(tokens), "--no-memory"]
        return ["bench", "-m", model, *more, *measured, *sized, "--progress", "--json", str(written)]


class Picks(OptionList, inherit_bindings=False):
    """A list of check boxes; space or a click toggles one. The screen handles Enter."""

    DEFAULT_CSS = """
    Picks { height: auto; max-height: 100%; padding: 0; border: none; background: transparent; }
    Picks:focus { border: none; background-tint: transparent 0%; }
    Picks > .option-list--option { padding: 0 1; }
    Picks > .option-list--option-highlighted { background: transparent; color: $foreground; text-style: none; }
    Picks:focus > .option-list--option-highlighted {
        background: $block-cursor-background; color: $block-cursor-foreground; text-style: $block-cursor-text-style;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "select", "Switch", tooltip="switch it on or off"),
        Binding("left", "screen.go('#sets')", "to the other column (Tab: the next list)", key_display="←, →"),
        Binding("right", "screen.go('#drafting')", "Columns", show=False),
        Binding("down", "cursor_down", "Down", show=False),
        Binding("up", "cursor_up", "Up", show=False),
    ]

    @dataclass
    class Changed(Message):
        """The selection changed."""

    def __init__(self, names: Sequence[str], chosen: Sequence[str], one: bool = False, id: str | None = None) -> None:
        self._names, self._chosen, self._one = names, set(chosen), one
        super().__init__(*(Option(self._row(name)) for name in names), markup=False, id=id)

    @property
    def chosen(self) -> tuple[str, ...]:
        return tuple(name for name in self._names if name in self._chosen)

    def action_select(self) -> None:
        if self.highlighted is not None:
            self._switch(self.highlighted)

    async def _on_click(self, event: events.Click) -> None:
        event.prevent_default()
        clicked: int | None = event.style.meta.get("option")
        if clicked is not None:
            self.highlighted = clicked
            self._switch(clicked)

    def _switch(self, at: int) -> None:
        name = self._names[at]
        self._chosen = {name} if self._one else self._chosen ^ {name}
        for row, each in enumerate(self._names):
            self.replace_option_prompt_at_index(row, self._row(each))
        self.post_message(self.Changed())

    def _row(self, name: str) -> Content:
        on = name in self._chosen
        mark = Content((ONE if self._one else ON) if on else OFF)
        return mark.stylize("bold $success" if on else "$foreground 45%").append(Content(one_line(name)))


class BenchForm(Dialog[BenchPlan | None]):
    """Edits a plan. Closes with it, or None."""

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
    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "run", "Run", priority=True), ("f1", "app.help", "Help")]

    def __init__(
        self, drafters: Sequence[str], plan: BenchPlan, tok_per_s: Mapping[str, float], load: float = 0.0
    ) -> None:
        super().__init__()
        self._drafters, self._plan, self._speeds, self._load = drafters, plan, tok_per_s, load

    def compose(self) -> ComposeResult:
        plan = self._plan
        own = next((name for name in plan.prompts if name not in BUILT_IN), "")
        kinds = [name for name, value in KINDS.items() if value in plan.temperatures]
        with sheet(VerticalScroll(id="bench-form"), "New benchmark", "Space switches", "Enter runs", "Esc back"):
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
        self.query_one("#drafting").focus()
        self._changed()

    def on_resize(self) -> None:
        self.set_class(self.size.width < NARROW, "narrow")

    def chosen(self) -> BenchPlan:
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
        plan = self.chosen()
        prompts, tokens = SIZES[plan.size]
        size = f"{plural(prompts, 'prompt')} of each kind, {plural(tokens, 'token')} a reply"
        seconds = about(plan.seconds(self._speeds, self._load)).capitalize()
        time = f"{seconds} ({size}); the time left is shown as it runs."
        rest = "The benchmark has the model for itself: what you send meanwhile waits."
        self._say(plan.lacks or f"{time} {rest}")

    def action_go(self, to: str) -> None:
        self.query_one(to).focus()

    def action_run(self) -> None:
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

        run_in_thread(self, lambda: [read_prompts(path) for path in own], good, bad)

    def _say(self, words: str, wrong: bool = False) -> None:
        estimate = self.query_one("#estimate", Static)
        estimate.update(Content(sentence(words)))
        estimate.set_class(wrong, "wrong")
