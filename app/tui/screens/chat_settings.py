"""The talk and how it is led: its system prompt, and how tokens are drawn."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from slipstream.app.engine.requests import AUTO, Sampling
from slipstream.app.paths import Paths
from slipstream.app.safe_text import one_line
from slipstream.app.settings.reading import nearest
from slipstream.app.settings.values import Settings
from slipstream.app.tui.presets import FIELDS, NONE, Presets, led_by, values_of
from slipstream.app.tui.screens.talk import TalkScreen
from slipstream.models.errors import SlipstreamError, UsageError

if TYPE_CHECKING:
    from slipstream.app.tui.app import ChatApp

LARGEST_SEED = (1 << 63) - 1


class SettingsTalk(TalkScreen):
    """A talk whose system prompt and sampling can be changed; both are kept with the chat."""

    def settle(self, now: Settings, before: Settings | None) -> None:
        """Goes on as the settings say.

        Args:
            now: The settings.
            before: Those until now; None at the start.
        """
        self._settings = now
        self._room.ahead = now.ahead
        self._load = now.loading(self._load)
        if before and (before.sampling, before.reply) != (now.sampling, now.reply):
            self._conversation.settle(now.sampling.sampling(seed=0), led_by(now.reply))
            self._show_settings()
        if before is None or before.screen.sidebar != now.screen.sidebar:
            self.sidebar.begin(now.screen.sidebar)
        if now.screen.colours != (before.screen.colours if before else False):
            self.show_colours(now.screen.colours)

    def check_drafter(self, name: str) -> None:
        """Refuses a drafter that nobody knows, once the model has said which there are; joined ones are each looked at.

        Raises:
            UsageError: Names the nearest.
        """
        names = [AUTO, *(offer.name for offer in self._loaded.drafters)] if self._loaded else []
        for part in re.split(r"[+|]", name) if names else ():
            if part not in names:
                raise UsageError(f"there is no drafter {one_line(part)}.{nearest(part, names)}")

    def action_settings(self) -> None:
        """Opens the settings."""
        from slipstream.app.tui.screens.settings import SettingsScreen

        self.app.push_screen(SettingsScreen(cast("ChatApp", self.app).settled))

    def show_colours(self, on: bool) -> None:
        """Shows who wrote what, or Markdown."""
        self.transcript.colour(on)
        self.strip.explain(on)

    async def _show_chat(self, at: int | None = None) -> None:
        """Shows the conversation, and how it is led."""
        await super()._show_chat(at)
        self._show_settings()

    def use_system(self, text: str) -> None:
        """Gives the chat a system prompt: one of a name, or this text; ``none`` for none. Without a text, says it."""
        named = self._presets.systems()
        if not text:
            now = one_line(self._conversation.system)[:200] or NONE
            names = f" Kept: {', '.join(map(one_line, named))}." if named else ""
            self._hint(f"System prompt: {now}{'' if now.endswith('.') else '.'}{names}")
            return
        self._conversation.set_system("" if text == NONE else named.get(text, text))
        self._hint("No system prompt from now on." if text == NONE else "The next reply follows this system prompt.")
        self._show_settings()

    def use_preset(self, name: str) -> None:
        """Draws the next replies of this chat as a preset says; without a name, lists all."""
        presets = self._presets.presets()
        if not name:
            self._hint(f"Presets: {', '.join(map(one_line, presets))}. Now: {self._sampling_name() or 'usual'}.")
            return
        if name not in presets:
            raise UsageError(
                f"there is no preset {one_line(name)}.",
                f"There are {', '.join(map(one_line, presets))}; /keep-preset NAME keeps the present one.",
            )
        usual = self._conversation.usual
        values = {field: getattr(usual, field) for field in FIELDS} | presets[name]
        self._draw(replace(self._conversation.sampling, **values))
        self._hint(f"The next replies are drawn by the preset {one_line(name)}.")

    def keep_system(self, name: str) -> None:
        """Keeps the chat's system prompt under a name."""
        if not self._conversation.system:
            raise UsageError("this chat has no system prompt to keep.", "/system TEXT gives it one.")
        self._presets.keep_system(name, self._conversation.system)
        self._hint(f"Kept. /system {one_line(name)} takes it in any chat.")
        self._show_settings()

    def keep_preset(self, name: str) -> None:
        """Keeps how tokens are drawn now under a name."""
        self._presets.keep_preset(name, self._conversation.sampling, self._conversation.usual)
        self._hint(f"Kept. /preset {one_line(name)} takes it in any chat.")
        self._show_settings()

    def take_seed(self, text: str) -> None:
        """Draws the next replies with a seed."""
        if not (text.isascii() and text.isdigit()) or int(text) > LARGEST_SEED:
            raise UsageError(f"“{one_line(text)}” is no seed.", "A seed is a whole number, 0 or more.")
        self._conversation.sampling = replace(self._conversation.sampling, seed=int(text))
        self._hint(f"Seed of the next replies: {int(text)}")

    def take_temperature(self, text: str) -> None:
        """Draws the next replies of this chat at a temperature."""
        try:
            value = float(text.replace(",", "."))
        except ValueError:
            value = math.nan
        if not 0 <= value < math.inf:
            raise UsageError(f"“{one_line(text)}” is no temperature.", "It is a number, 0 or more; 0.8 is usual.")
        self._draw(replace(self._conversation.sampling, temperature=value))
        self._hint(f"Temperature of the next replies: {value:g}")

    @property
    def _presets(self) -> Presets:
        return Presets(Paths.default().presets)

    def _draw(self, sampling: Sampling) -> None:
        self._conversation.draw(sampling)
        self._show_settings()

    def _show_settings(self) -> None:
        """Says in the top bar how the chat is led, by the names where there are some."""
        words = []
        with suppress(SlipstreamError):  # a chat that cannot be read has said so already
            if text := self._conversation.system:
                named: dict[str, str] = {}
                with suppress(SlipstreamError):  # a broken file is said when it is used
                    named = self._presets.systems()
                words.append(next((name for name, kept in named.items() if kept == text), "system prompt"))
            words.append(self._sampling_name())
        self.top_bar.led = " · ".join(filter(None, words))

    def _sampling_name(self) -> str:
        """The preset that the next replies are drawn by, or what is set; empty for the usual."""
        usual = self._conversation.usual
        values = values_of(self._conversation.sampling, usual)
        if not values:
            return ""
        with suppress(SlipstreamError):
            for name, kept in self._presets.presets().items():
                if values_of(replace(usual, **kept), usual) == values:  # type: ignore[arg-type]
                    return name
        return f"temp {values['temperature']:g}" if set(values) == {"temperature"} else "own sampling"
