"""The talk and its prompt: commands, files, and what was said before."""

from __future__ import annotations

import inspect
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from textual import on

from slipstream.app.safe_text import one_line
from slipstream.app.tui.behind import behind
from slipstream.app.tui.screens.chat_settings import SettingsTalk
from slipstream.app.tui.screens.chats_shelf import ShelfTalk, file_name
from slipstream.app.tui.screens.models_talk import ModelsTalk
from slipstream.app.tui.screens.recall import RecallScreen
from slipstream.app.tui.slash import MARK, Command, parsed
from slipstream.app.tui.widgets.prompt import Prompt
from slipstream.models.errors import SlipstreamError, UsageError

if TYPE_CHECKING:
    from slipstream.app.engine.requests import Load
    from slipstream.app.tui.screens.chat import ChatScreen
    from slipstream.models.store_types import Installed

MOST_RECALLED = 100_000
"""Prompts that are searched."""


class PromptTalk(SettingsTalk, ModelsTalk, ShelfTalk):
    """A talk that takes commands."""

    @on(Prompt.Commanded)
    async def _commanded(self, message: Prompt.Commanded) -> None:
        """Does what was typed behind a slash; what cannot be done stays in the prompt."""
        typed = self.prompt.text
        try:
            command, argument = parsed(message.text)
            await self._do(command, argument)
        except SlipstreamError as error:
            self._tell_error(error)
            return
        self.prompt.remember_typed(message.text)
        if self.prompt.text == typed:
            self.prompt.put("")

    async def choose_command(self, command: Command) -> None:
        """Does a command of the palette, or begins it in the prompt where something must follow."""
        if command.needs:
            self.prompt.begin(f"{MARK}{command.name} ")
            return
        try:
            await self._do(command, "")
        except SlipstreamError as error:
            self._tell_error(error)

    async def _do(self, command: Command, argument: str) -> None:
        done = command.run(cast("ChatScreen", self), argument)
        if inspect.isawaitable(done):
            await done

    # --- what was said before -------------------------------------------------------------------------------------

    def action_recall(self) -> None:
        """Searches what was said in all chats."""
        try:
            prompts = self._store.prompts(MOST_RECALLED)
        except SlipstreamError as error:
            self._tell_error(error)
            return
        self.app.push_screen(RecallScreen(prompts), lambda text: self.prompt.put_message(text) if text else None)

    # --- files ----------------------------------------------------------------------------------------------------

    def attach(self, file: str) -> None:
        """Puts a text file into the message."""
        self.prompt.attach(file)

    @on(Prompt.Attached)
    def _attached(self, message: Prompt.Attached) -> None:
        room = self._loaded.n_ctx if self._loaded else 0
        if room and message.attachment.tokens > room:
            self._hint(f"{message.attachment.label}: more than the {room:,} that this model takes.")

    # --- commands -------------------------------------------------------------------------------------------------

    def export_as(self, file: str) -> None:
        """Writes the chat to a file, by default in the current folder."""
        chat = self._conversation.chat
        if chat is None:
            raise UsageError("nothing was said yet; there is nothing to export.", "")
        self._export(chat, file or str(Path.cwd() / file_name(chat)))

    def use_model(self, name: str) -> None:
        """Goes on with the installed model of a name."""

        def find() -> tuple[Load, Installed]:
            models = self._desk.open()
            installed = models.installed()
            found = [model for model in installed if model.name.casefold() == name.casefold()]
            if not found:
                names = ", ".join(one_line(model.name) for model in installed)
                raise UsageError(f"no model is called {one_line(name)}.", f"There are: {names}." if names else "")
            return models.load_of(found[0]), found[0]

        def use(found: tuple[Load, Installed]) -> None:
            self.call_later(self._after_reply, partial(self._use, *found))

        behind(self, find, use, self._tell_error)

    def use_drafter(self, name: str) -> None:
        """Takes a drafter for the next reply; without a name, lists all."""
        chat = cast("ChatScreen", self)
        if not name or self._loaded is None:
            chat.action_drafters()
            return
        offer = next((offer for offer in chat.offers(self._loaded) if offer.name == name.casefold()), None)
        if offer is None or not offer.usable:
            why = one_line(offer.why_not) if offer else "there is no such drafter"
            raise UsageError(f"{one_line(name)} cannot draft for this model: {why}.", "Ctrl-D lists all.")
        chat.draft_with(offer.name)
