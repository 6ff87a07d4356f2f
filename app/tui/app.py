"""The chat program."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, ClassVar

from rich.console import Group, RenderableType
from rich.control import Control
from rich.text import Text
from textual import events, on
from textual.app import SystemCommand
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.notifications import Notify
from textual.screen import Screen
from textual.widgets import Markdown

from slipstream.app.chats.store import ChatStore
from slipstream.app.library.load_request import title_of
from slipstream.app.platform.paths import Paths
from slipstream.app.protocol.requests import Load, Sampling
from slipstream.app.settings.file import SettingsFile
from slipstream.app.tui.chat.commands import COMMANDS, HelpScreen
from slipstream.app.tui.chat.conversation import opened
from slipstream.app.tui.chat.screen import ChatScreen
from slipstream.app.tui.engine_service import EngineService
from slipstream.app.tui.guarded_app import GuardedApp
from slipstream.app.tui.keys import teach_alt_enter
from slipstream.app.tui.models.context import ModelsAccess, manager
from slipstream.app.tui.parts.dialogs import Palette, Sheet
from slipstream.app.tui.parts.notice import hint
from slipstream.app.tui.settings.apply_settings import DARK, LIGHT, Settled
from slipstream.models.errors import UsageError

if TYPE_CHECKING:  # slow imports: the chat is drawn first
    from slipstream.app.engine.process.client import Engine
    from slipstream.app.library.manager import ModelManager

SMALLEST = Size(20, 5)  # the smallest window that the chat is drawn in
LAST_WORDS = 0.5  # seconds to wait for a reply to end when the chat is closed


class ChatApp(GuardedApp):
    """A chat with one model. ``run`` returns the exit code."""

    CSS_PATH: ClassVar = ["app.tcss", "chats.tcss", "settings.tcss"]
    TITLE = "slipstream"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+d", "delete_right", show=False, priority=True)]
    COMMAND_PALETTE_BINDING = "alt+p"  # in the prompt, Ctrl-P recalls earlier prompts, as in a shell

    def __init__(
        self,
        engine: Engine,
        load: Load,
        store: ChatStore,
        chat: str | None = None,
        sampling: Sampling | None = None,
        *,
        models: Callable[[], ModelManager] = manager,
        settings: SettingsFile | None = None,
        notes: Sequence[str] = (),
        shown: Callable[[], None] | None = None,
    ) -> None:
        """Prepares the chat; the engine starts once the screen is shown. ``shown`` is called after the first frame."""
        super().__init__()
        teach_alt_enter()
        self._engine = engine
        file = settings or SettingsFile(Paths.default().settings)
        now = file.settings
        self._engine_room = EngineService(engine, store, now.ahead)
        self.models_access = ModelsAccess(models)
        conversation = opened(store, load, sampling or now.sampling.sampling(seed=0), file, chat)
        name = title_of(Path(load.model))
        self.chat = ChatScreen(self._engine_room, load, store, conversation, model=name, models=self.models_access)
        self.settled = Settled(self, file, self.chat, self.models_access)
        self.chat.notes = [*notes, *self.settled.problems]
        self._shown = shown
        self._too_small, self._window = False, Size(0, 0)
        self.stylesheet.set_variables(self.get_css_variables())  # the theme's variables, before any style is parsed
        self._styled = self.theme

    def get_default_screen(self) -> Screen[None]:
        """Starts with the chat, so that the first frame shows it."""
        return self.chat

    def on_mount(self) -> None:
        self.settled.begin()
        if self._shown:
            self.call_after_refresh(self._shown)
        if sys.platform != "win32" and not self.is_headless:
            from slipstream.app.tui.terminal import leave_cleanly

            leave_cleanly(self)  # at once: a callback after the first frame may wait for long where frames are many

    def refresh_css(self, animate: bool = True) -> None:
        """Parses the styles again only if the theme changed; Textual would also do so for the first theme."""
        if self.theme != self._styled:
            self._styled = self.theme
            super().refresh_css(animate)

    async def on_event(self, event: events.Event) -> None:
        """Drops resizes to too small a window: Textual cannot wrap text at a width of zero."""
        if isinstance(event, events.Resize):
            self._too_small = event.size.width < SMALLEST.width or event.size.height < SMALLEST.height
            if self._too_small:
                self._window = event.size
                self._display(self.screen, None)
                self.call_later(self._display, self.screen, None)  # a running batch of updates drops the first call
                return
            self.screen.refresh()
        await super().on_event(event)

    def _display(self, screen: Screen[Any], renderable: RenderableType | None) -> None:
        if self._too_small:
            lines = wrap("too small", self._window.width)[: self._window.height]
            renderable = Group(Control.clear(), Control.home(), Text("\n".join(lines), end=""))
        super()._display(screen, renderable)

    def action_suspend_job(self) -> None:
        """Suspends the chat; the shell's ``fg`` continues it. Raises ``UsageError`` if no shell can continue it."""
        if sys.platform != "win32" and not self.is_headless:
            from slipstream.app.tui.terminal import suspend

            suspend()
        else:
            raise UsageError("this system suspends no programs.", "Ctrl-Q quits.")

    async def on_unmount(self) -> None:
        """Ends the engine: a thread that waits for it would keep the program alive."""
        self.chat.page.keep_prompt()
        if self.chat.reply.writing:
            await self._engine_room.end_reply(LAST_WORDS)
        await self.chat.jobs.end()
        if self.models_access.made:
            await asyncio.to_thread(self.models_access.made.close)
        await asyncio.to_thread(self._engine.close)

    def action_command_palette(self) -> None:
        if not isinstance(self.screen, Palette):
            self.push_screen(Palette(id="--command-palette"))

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        for command in COMMANDS:
            if command.plain or isinstance(screen, ChatScreen):
                shown = replace(command, key=self.settled.keys.now(command.key))
                yield SystemCommand(command.title, shown.help, partial(self.chat.choose, command))

    @on(Markdown.LinkClicked)
    def _link_clicked(self, message: Markdown.LinkClicked) -> None:
        self.copy_to_clipboard(message.href)
        hint(self.screen, "Copied the address; slipstream opens no links.")

    def on_notify(self, event: Notify) -> None:
        """Before a toast is shown, removes all others but the newest, and that one too if its text is the same."""
        before = list(self._notifications)
        for shown in before:
            if shown is not before[-1] or shown.message == event.notification.message:
                self._unnotify(shown, refresh=False)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return action != "delete_right" or (self.focused is self.chat.prompt and self.chat.prompt.text_follows)

    def action_delete_right(self) -> None:
        self.chat.prompt.action_delete_right()

    def action_help(self) -> None:
        active = self.screen.active_bindings.values() if not isinstance(self.screen, ChatScreen) else ()
        shown = {each.binding.description: each.binding for each in active if each.binding.show and each.enabled}
        here = [(self.get_key_display(each), each.tooltip or words) for words, each in shown.items()]
        terms = self.screen.terms if isinstance(self.screen, Sheet) else ()
        self.push_screen(HelpScreen(self.settled.keys, [*here, *terms]))

    def action_settings(self) -> None:
        from slipstream.app.tui.settings.screen import SettingsScreen

        self.push_screen(SettingsScreen(self.settled))

    def action_light_or_dark(self) -> None:
        self.theme = DARK.name if self.theme == LIGHT.name else LIGHT.name
