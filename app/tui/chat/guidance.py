"""The system prompt and the sampling of the chat, both stored with it; and the panel that shows and changes them."""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, Static, TextArea

from slipstream.app.platform.paths import Paths
from slipstream.app.platform.safe_text import one_line, plural
from slipstream.app.protocol.events import check_reasoning, reasoning_levels
from slipstream.app.protocol.requests import Sampling
from slipstream.app.settings.file import known
from slipstream.app.settings.presets import FIELDS, NONE, OLD_NAMES, Presets, values_of
from slipstream.app.tui.chat.conversation import SamplingChoice
from slipstream.app.tui.chat.model import ActiveModel
from slipstream.app.tui.chat.page import ChatPage
from slipstream.app.tui.parts.dialogs import Dialog, sheet
from slipstream.models.chat_template import AUTO_LEVEL, LEVELS
from slipstream.models.errors import SlipstreamError, UsageError

LARGEST_SEED: Final = (1 << 63) - 1
LARGEST_BUDGET: Final = 1_000_000
CUSTOM: Final = "own values"  # shown for a sampling that is no preset
LABELS: Final = {  # the fields of the panel below the system prompt, by name
    "preset": "Preset",
    "temperature": "Temperature",
    "top_p": "Top-p",
    "seed": "Seed",
    "drafter": "Drafter",
    "context": "Context in tokens",
}
SETTINGS: Final = {"temperature": "sampling.temperature", "top_p": "sampling.top_p", "context": "model.context"}
WANTED: Final = {"seed": "a whole number, 0 or more", "context": "a number of tokens, or auto"}


class ChoiceLine(Static, can_focus=True):
    """One of several words; the left and right keys, and a click, change it."""

    BINDINGS: ClassVar[list[BindingType]] = [("left", "step(-1)", "Before"), ("right", "step(1)", "Next")]

    @dataclass
    class WordChosen(Message):
        """Another word was chosen."""

        value: str

    def __init__(self, words: Sequence[str], value: str, name: str) -> None:
        super().__init__(id=name)
        self._words, self.value = list(dict.fromkeys([*words, value])), value

    def on_mount(self) -> None:
        self._draw()

    def action_step(self, step: int) -> None:
        self.value = self._words[(self._words.index(self.value) + step) % len(self._words)]
        self._draw()
        self.post_message(self.WordChosen(self.value))

    def on_click(self) -> None:
        self.focus()
        self.action_step(1)

    def _draw(self) -> None:
        self.update(Content(f"‹ {one_line(self.value) or CUSTOM} ›"))


class ChatPanel(Dialog[Mapping[str, str] | None]):
    """What the next replies of this chat are written with. Closes with the changed values by name, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+s", "keep", "Keep", priority=True),
        Binding("down", "app.focus_next", show=False),
        Binding("up", "app.focus_previous", show=False),
    ]

    def __init__(
        self,
        values: Mapping[str, str],
        presets: Mapping[str, Mapping[str, str]],  # the temperature and top-p of each
        drafters: Sequence[str],
        check: Callable[[str, str], object],  # raises ``UsageError`` if a value of a name cannot be used
    ) -> None:
        super().__init__()
        self._values, self._presets, self._drafters, self._check = values, presets, drafters, check
        self._wrong: dict[str, str] = {}  # the errors of fields, by name

    def compose(self) -> ComposeResult:
        with sheet(Vertical(classes="dialog", id="chat-panel"), "This chat", "^s keeps", "Tab next", "Esc back"):
            yield Static(Content("System prompt"), classes="question")
            yield TextArea(self._values["system"], id="system", tab_behavior="focus", compact=True)
            choices = {"preset": list(self._presets), "drafter": self._drafters}
            for name, label in LABELS.items():
                value = self._values[name]
                with Horizontal():
                    yield Static(Content(label), classes="label")
                    if name in choices:
                        yield ChoiceLine(choices[name], value, name)
                    else:
                        yield Input(value, id=name, compact=True, max_length=40)
            yield Static(classes="detail")

    @on(ChoiceLine.WordChosen)
    def _preset_chosen(self, message: ChoiceLine.WordChosen) -> None:
        for name, value in self._presets.get(message.value, {}).items():
            self.query_one(f"#{name}", Input).value = value

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        name = str(event.input.id)
        self._wrong.pop(name, None)
        try:
            self._check(name, event.value.strip())
        except UsageError:
            self._wrong[name] = f"{LABELS[name]} must be {WANTED.get(name) or known(SETTINGS[name]).wanted}."
        event.input.set_class(name in self._wrong, "-invalid")
        self.query_one(".detail", Static).update(Content(next(iter(self._wrong.values()), "")))

    @on(Input.Submitted)
    def action_keep(self) -> None:
        if self._wrong:
            return
        now = {"system": self.query_one(TextArea).text.strip()}
        now |= {str(line.id): line.value.strip() for line in self.query(Input)}
        now |= {str(choice.id): choice.value for choice in self.query(ChoiceLine)}
        self.dismiss({name: value for name, value in now.items() if value != self._values[name]})


class Guidance:
    """Changes the system prompt and the sampling of the open chat, and shows both in the top bar."""

    def __init__(self, page: ChatPage, model: ActiveModel) -> None:
        self._page, self._model = page, model

    def use_system(self, text: str = "") -> None:
        """Sets the system prompt to a stored one or to ``text``; ``none`` removes it. Without a text, shows it."""
        named = self._presets.systems()
        conversation = self._page.conversation
        if not text:
            now = one_line(conversation.system)[:200] or NONE
            names = f" Kept: {', '.join(map(one_line, named))}." if named else ""
            self._page.hint(f"System prompt: {now}{'' if now.endswith('.') else '.'}{names}")
            return
        conversation.set_system("" if text == NONE else named.get(text, text))
        said = "No system prompt from now on." if text == NONE else "The next reply follows this system prompt."
        self._page.hint(said)
        self.show()

    def open_panel(self, take_context: Callable[[str], Coroutine[Any, Any, None]]) -> None:
        """Opens the panel of this chat; ``take_context`` loads the model with another context."""
        presets = self._presets.presets()
        sampling, default, model = self._sampling.effective, self._sampling.default, self._model

        def shown(name: str, values: Mapping[str, object]) -> str:
            return f"{values.get(name, getattr(default, name)):g}"

        name = self._sampling_name()
        context = str(model.loaded.n_ctx) if model.loaded else ""
        values = {
            "system": self._page.conversation.system,
            "preset": name if name in presets else "" if name else "default",
            "temperature": f"{sampling.temperature:g}",
            "top_p": f"{sampling.top_p:g}",
            "seed": str(self._sampling.settings.seed),
            "drafter": model.drafter,
            "context": context,
        }
        numbers = {name: {key: shown(key, own) for key in ("temperature", "top_p")} for name, own in presets.items()}
        drafters = [offer.name for offer in model.offers() if offer.usable]

        def closed(changed: Mapping[str, str] | None) -> None:
            if changed:
                self._page.screen.run_worker(self._take(changed, take_context))

        self._page.screen.app.push_screen(ChatPanel(values, numbers, drafters, self._check), closed)

    async def _take(self, changed: Mapping[str, str], take_context: Callable[[str], Coroutine[Any, Any, None]]) -> None:
        with self._page.errors_told():
            if "system" in changed:
                self.use_system(changed["system"] or NONE)
            if changed.get("preset"):
                self.use_preset(changed["preset"])
            sampled = [name for name in ("temperature", "top_p") if name in changed]
            own = {name: float(known(SETTINGS[name]).read(changed[name])) for name in sampled}
            if own:
                self._sample(replace(self._sampling.effective, **own))  # type: ignore[arg-type]
            if "seed" in changed:
                self.take_seed(changed["seed"])
            if "drafter" in changed:
                self._model.use_drafter(changed["drafter"])
            self._page.hint("Holds from the next reply on.")
            if changed.get("context"):
                await take_context(changed["context"])

    def _check(self, name: str, text: str) -> None:
        if name == "seed":
            _seed(text)
        elif name != "context" or text not in ("", "auto"):
            known(SETTINGS[name]).read(text)

    def use_preset(self, name: str = "") -> None:
        presets = self._presets.presets()
        if not name:
            now = self._sampling_name() or f"default{self._advised()}"
            self._page.hint(f"Presets: {', '.join(map(one_line, presets))}. Now: {now}.")
            return
        name = name if name in presets else OLD_NAMES.get(name, name)
        if name not in presets:
            there = f"There are {', '.join(map(one_line, presets))}; /keep-preset NAME keeps the present one."
            raise UsageError(f"there is no preset {one_line(name)}.", there)
        usual = self._sampling.default
        values = {field: getattr(usual, field) for field in FIELDS} | presets[name]
        self._sample(replace(self._sampling.effective, **values))
        self._page.hint(f"Preset: {one_line(name)}")

    def named_presets(self) -> dict[str, str]:
        """The presets, each with its values in words; none if the file is broken, which using one reports."""
        found: dict[str, str] = {}
        with suppress(SlipstreamError):
            for name, values in self._presets.presets().items():
                found[name] = ", ".join(f"{field.replace('_', ' ')} {value}" for field, value in values.items())
        return found

    def named_systems(self) -> dict[str, str]:
        with suppress(SlipstreamError):
            return {**self._presets.systems(), NONE: "no system prompt"}
        return {}

    def keep_system(self, name: str) -> None:
        system = self._page.conversation.system
        if not system:
            raise UsageError("this chat has no system prompt to keep.", "/system TEXT gives it one.")
        self._presets.keep_system(name, system)
        self._page.hint(f"Kept. /system {one_line(name)} takes it in any chat.")
        self.show()

    def keep_preset(self, name: str) -> None:
        self._presets.keep_preset(name, self._sampling.effective, self._sampling.default)
        self._page.hint(f"Kept. /preset {one_line(name)} takes it in any chat.")
        self.show()

    def take_seed(self, text: str) -> None:
        seed = _seed(text)
        self._page.conversation.sampling = self._sampling.with_seed(seed)
        self._page.hint(f"Seed of the next replies: {seed}")

    def take_temperature(self, text: str) -> None:
        setting = known("sampling.temperature")
        try:
            value = float(setting.read(text))
        except UsageError as error:
            hint = f"It is {setting.wanted}; 0.8 is usual."
            raise UsageError(f"not a valid temperature: {one_line(text)}.", hint) from error
        self._sample(replace(self._sampling.effective, temperature=value))
        self._page.hint(f"Temperature of the next replies: {value:g}")

    def use_reasoning(self, text: str = "") -> None:
        sampling, word = self._sampling.effective, text.casefold()
        if not word:
            loaded = self._model.loaded
            now = _reasoning_words(sampling) or "as the model does by itself"
            self._page.hint(f"Thinking: {now}. {reasoning_levels(loaded.reasoning) if loaded else ''}".rstrip())
        elif word.isascii() and word.isdigit():
            self._sample(replace(sampling, reasoning_budget=min(int(word), LARGEST_BUDGET)))
            self._page.hint(f"Its thoughts end after {plural(int(word), 'token')} from the next reply on.")
        elif word in (AUTO_LEVEL, *LEVELS):
            if loaded := self._model.loaded:
                check_reasoning(word, loaded)
            budget = -1 if word == AUTO_LEVEL else sampling.reasoning_budget
            self._sample(replace(sampling, reasoning=word, reasoning_budget=budget))
            self._page.hint(f"Thinking, from the next reply on: {word}")
        else:
            there = f"There are {', '.join((AUTO_LEVEL, *LEVELS))}, and a number of tokens."
            raise UsageError(f"not a valid level of reasoning: {one_line(text)}.", there)

    def next_reasoning(self) -> None:
        loaded = self._model.loaded
        if loaded is None:
            self._page.hint(self._model.not_loaded)
            return
        efforts = not {"on", "off"}.issuperset(loaded.reasoning)
        levels = [level for level in loaded.reasoning if level != "on" or not efforts]
        if not levels:
            self._page.hint(reasoning_levels(levels))
            return
        level = self._sampling.effective.reasoning
        level = loaded.reasoning_default if level == AUTO_LEVEL else level
        at = levels.index(level) + 1 if level in levels else 0
        self.use_reasoning(levels[at % len(levels)])

    def show(self) -> None:
        words = []
        with suppress(SlipstreamError):  # an unreadable chat was already reported
            if text := self._page.conversation.system:
                named: dict[str, str] = {}
                with suppress(SlipstreamError):  # a broken file is reported when it is used
                    named = self._presets.systems()
                words.append(next((name for name, kept in named.items() if kept == text), "system prompt"))
            words.append(self._sampling_name())
        self._page.top_bar.led = " · ".join(filter(None, words))

    @property
    def _presets(self) -> Presets:
        return Presets(Paths.default().presets)

    @property
    def _sampling(self) -> SamplingChoice:
        return self._page.conversation.sampling

    def _sample(self, sampling: Sampling) -> None:
        self._page.conversation.sample(sampling)
        self.show()

    def _advised(self) -> str:
        loaded = self._model.loaded
        named = [f"{name.replace('_', ' ')} {value:g}" for name, value in self._sampling.advised.items()]
        return f" ({', '.join(named)} from {loaded.sampling_source})" if named and loaded else ""

    def _sampling_name(self) -> str:
        usual = self._sampling.default
        values = values_of(self._sampling.effective, usual)
        if not values:
            return ""
        with suppress(SlipstreamError):
            for name, kept in self._presets.presets().items():
                if values_of(replace(usual, **kept), usual) == values:  # type: ignore[arg-type]
                    return name
        reasoning = {values.pop(name, None) for name in ("reasoning", "reasoning_budget")} != {None}
        words = [f"thinking {_reasoning_words(self._sampling.effective) or AUTO_LEVEL}"] if reasoning else []
        if values:
            words.append(f"temp {values['temperature']:g}" if set(values) == {"temperature"} else "own sampling")
        return " · ".join(words)


def _seed(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) > LARGEST_SEED:
        raise UsageError(f"not a valid seed: {one_line(text)}.", "A seed is a whole number, 0 or more.")
    return int(text)


def _reasoning_words(sampling: Sampling) -> str:
    level = sampling.reasoning if sampling.reasoning != AUTO_LEVEL else ""
    most = f"{sampling.reasoning_budget:,} tokens at most" if sampling.reasoning_budget >= 0 else ""
    return ", ".join(filter(None, (level, most)))
