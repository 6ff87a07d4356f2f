"""The chat program."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from textual.app import App, SystemCommand
from textual.driver import Driver
from textual.notifications import Notify
from textual.screen import Screen

from slipstream.app.chats.store import ChatStore
from slipstream.app.engine.requests import Load, Sampling
from slipstream.app.paths import Paths
from slipstream.app.settings.file import SettingsFile
from slipstream.app.tui.conversation import Conversation
from slipstream.app.tui.engine import ChatEngine
from slipstream.app.tui.engine_room import EngineRoom
from slipstream.app.tui.keys import teach_alt_enter
from slipstream.app.tui.models import Desk, Models, manager
from slipstream.app.tui.presets import led_by, values_of
from slipstream.app.tui.screens.chat import ChatScreen
from slipstream.app.tui.settled import Settled
from slipstream.app.tui.slash import COMMANDS
from slipstream.app.tui.theme import DARK, LIGHT

LAST_WORDS = 0.5
"""Seconds that a reply has to end by itself when the chat is closed."""


class ChatApp(App[int]):
    """A chat with one model. ``run`` returns the exit code."""

    CSS_PATH: ClassVar = ["app.tcss", "chats.tcss", "settings.tcss"]
    TITLE = "slipstream"

    def __init__(
        self,
        engine: ChatEngine,
        load: Load,
        store: ChatStore,
        chat: str | None = None,
        sampling: Sampling | None = None,
        model: str = "",
        models: Callable[[], Models] = manager,
        settings: SettingsFile | None = None,
        notes: Sequence[str] = (),
        shown: Callable[[], None] | None = None,
    ) -> None:
        """Prepares the chat; the engine is asked only once the screen is up.

        Args:
            engine: The engine; it is closed when the chat ends.
            load: The model, and the drafter to begin with.
            store: All chats; whoever opened it closes it after ``run``.
            chat: A chat to continue, or None for a new one.
            sampling: How tokens are drawn.
            model: What to call the model while it loads; its file's name if empty.
            models: Makes who knows the models, when they are first needed.
            settings: What its owner has settled; None for what the usual file says.
            notes: What to say at the start.
            shown: Called once the first picture is on the screen.

        Raises:
            UsageError: If there is no such chat.
        """
        super().__init__()
        teach_alt_enter()
        self._engine = engine
        file = settings or SettingsFile(Paths.default().settings)
        now = file.settings
        self._room = EngineRoom(engine, store, now.ahead)
        self._desk = Desk(models)
        drawn = sampling or now.sampling.sampling(seed=0)
        asked = bool(values_of(drawn, file.kept.sampling.sampling(seed=0)))  # just now, for this chat
        conversation = Conversation(store, drawn, chat, led_by(now.reply), asked)
        self._chat = ChatScreen(self._room, load, store, conversation, model or Path(load.model).stem, self._desk)
        self.settled = Settled(self, file, self._chat, self._desk)
        self._chat.notes = [*notes, *self.settled.problems]
        self._shown = shown
        self.stylesheet.set_variables(self.get_css_variables())  # those of the theme, before anything is read
        self._styled = self.theme

    def get_default_screen(self) -> Screen[None]:
        """The chat is the first screen, so that the first picture is already it."""
        return self._chat

    def on_mount(self) -> None:
        """Ends cleanly, with the terminal restored, when the system asks to or nobody waits for it any more."""
        self.settled.begin()
        if self._shown:
            self.call_after_refresh(self._shown)
        if sys.platform != "win32" and not self.is_headless:
            from slipstream.app.tui.terminal import leave_cleanly

            leave_cleanly(self)

    def refresh_css(self, animate: bool = True) -> None:
        """Reads the styles again for another theme; Textual would do so for the first one, too, which they know."""
        if self.theme != self._styled:
            self._styled = self.theme
            super().refresh_css(animate)

    def get_driver_class(self) -> type[Driver]:
        """A driver that gives back a terminal whatever became of it."""
        usual = super().get_driver_class()
        if sys.platform != "win32":
            from slipstream.app.tui.terminal import chat_driver

            return chat_driver(usual)
        return usual

    async def on_unmount(self) -> None:
        """Ends the engine: a thread that waits for it would keep the program alive."""
        if self._chat.replying:
            await self._room.end_reply(LAST_WORDS)
        await self._chat.jobs.end()
        if self._desk.made:
            await asyncio.to_thread(self._desk.made.close)
        await asyncio.to_thread(self._engine.close)

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """The commands of the palette."""
        for command in COMMANDS:
            if command.plain or isinstance(screen, ChatScreen):
                shown = replace(command, key=self.settled.keys.now(command.key))
                yield SystemCommand(command.title, shown.help, partial(self._chat.choose_command, command))

    def on_notify(self, event: Notify) -> None:
        """Takes a toast away that is still shown, before it is shown again."""
        for shown in list(self._notifications):
            if shown.message == event.notification.message:
                self._unnotify(shown, refresh=False)

    def action_light_or_dark(self) -> None:
        """Switches between the two themes."""
        self.theme = DARK.name if self.theme == LIGHT.name else LIGHT.name
