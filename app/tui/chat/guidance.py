"""The system prompt and the sampling of the chat, both stored with it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Final

from slipstream.app.platform.paths import Paths
from slipstream.app.platform.safe_text import one_line, plural
from slipstream.app.protocol.events import check_reasoning, reasoning_levels
from slipstream.app.protocol.requests import Sampling
from slipstream.app.settings.file import known
from slipstream.app.settings.presets import FIELDS, NONE, OLD_NAMES, Presets, values_of
from slipstream.app.tui.chat.conversation import SamplingChoice
from slipstream.app.tui.chat.model import ActiveModel
from slipstream.app.tui.chat.page import ChatPage
from slipstream.models.chat_template.marks import AUTO_LEVEL, LEVELS
from slipstream.models.errors import SlipstreamError, UsageError

LARGEST_SEED: Final = (1 << 63) - 1
LARGEST_BUDGET: Final = 1_000_000


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

    def use_preset(self, name: str = "") -> None:
        presets = self._presets.presets()
        if not name:
            now = self._sampling_name() or f"default{self._advised()}"
            self._page.hint(f"Presets: {', '.join(map(one_line, presets))}. Now: {now}.")
            return
        name = name if name in presets else OLD_NAMES.get(name, name)
        if name not in presets:
            raise UsageError(
                f"there is no preset {one_line(name)}.",
                f"There are {', '.join(map(one_line, presets))}; /keep-preset NAME keeps the present one.",
            )
        usual = self._sampling.default
        values = {field: getattr(usual, field) for field in FIELDS} | presets[name]
        self._sample(replace(self._sampling.effective, **values))
        self._page.hint(f"Preset: {one_line(name)}")

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
        if not (text.isascii() and text.isdigit()) or int(text) > LARGEST_SEED:
            raise UsageError(f"not a valid seed: {one_line(text)}.", "A seed is a whole number, 0 or more.")
        self._page.conversation.sampling = self._sampling.with_seed(int(text))
        self._page.hint(f"Seed of the next replies: {int(text)}")

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
            raise UsageError(
                f"not a valid level of reasoning: {one_line(text)}.",
                f"There are {', '.join((AUTO_LEVEL, *LEVELS))}, and a number of tokens.",
            )

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


def _reasoning_words(sampling: Sampling) -> str:
    level = sampling.reasoning if sampling.reasoning != AUTO_LEVEL else ""
    most = f"{sampling.reasoning_budget:,} tokens at most" if sampling.reasoning_budget >= 0 else ""
    return ", ".join(filter(None, (level, most)))
