"""Maps the chat's commands to actions, whether typed after a slash, chosen in the palette, or bound to a key."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from slipstream.app.tui.chat.benchmark import Benchmark
from slipstream.app.tui.chat.chat_list import ChatList
from slipstream.app.tui.chat.downloads import Downloads
from slipstream.app.tui.chat.drafter_work import DrafterWork
from slipstream.app.tui.chat.guidance import Guidance
from slipstream.app.tui.chat.model import ChatModel
from slipstream.app.tui.chat.page import ChatPage
from slipstream.app.tui.chat.race import Races
from slipstream.app.tui.chat.reply import Reply
from slipstream.app.tui.chat.replying import Replying
from slipstream.app.tui.chat.selection import Editing, Selection
from slipstream.app.tui.chat.slash import MARK, Command, parsed
from slipstream.app.tui.engine_service import EngineService
from slipstream.models.errors import SlipstreamError


class Commands:
    """Runs the commands; ``slash`` lists their names and purposes."""

    def __init__(
        self,
        page: ChatPage,
        engine: EngineService,
        editing: Editing,
        replying: Replying,
        model: ChatModel,
        chats: ChatList,
        selection: Selection,
        guidance: Guidance,
        downloads: Downloads,
        drafters: DrafterWork,
        benchmark: Benchmark,
        races: Races,
    ) -> None:
        self._page, self._engine, self._editing, self._replying = page, engine, editing, replying
        self._selection, self._model = selection, model
        app = page.screen.run_action
        self._actions: dict[str, Callable[[str], object]] = {
            "new": lambda _: replying.after(chats.begin),
            "chats": lambda _: chats.toggle(),
            "undelete": lambda _: chats.undo_delete(),
            "export": chats.export_as,
            "retry": lambda _: replying.again(),
            "go": lambda _: replying.go_on(),
            "copy": lambda _: selection.copy_reply(),
            "thoughts": lambda _: selection.fold_reasoning(),
            "search": lambda _: chats.recall(),
            "attach": page.prompt.attach,
            "system": guidance.use_system,
            "preset": guidance.use_preset,
            "keep-system": guidance.keep_system,
            "keep-preset": guidance.keep_preset,
            "think": guidance.use_reasoning,
            "answer-now": lambda _: replying.end_thoughts(),
            "seed": guidance.take_seed,
            "temp": guidance.take_temperature,
            "model": downloads.use_named,
            "compact": replying.compact,
            "context": self._take_context,
            "models": lambda _: downloads.open_manager(),
            "offer": lambda _: downloads.take_offer(),
            "drafter": drafters.use,
            "next": lambda _: drafters.use_next(),
            "race": races.open,
            "bench": lambda _: benchmark.open(),
            "colours": lambda _: self._switch_colours(),
            "trees": lambda _: self._switch_drafts(),
            "help": lambda _: app("app.help"),
            "settings": lambda _: app("app.settings"),
            "commands": lambda _: app("app.command_palette"),
            "light": lambda _: app("app.light_or_dark"),
            "theme": lambda _: app("app.change_theme"),
            "suspend": lambda _: app("app.suspend_job"),
            "quit": lambda _: app("app.quit"),
            # only bound to keys
            "stop": lambda _: replying.stop(),
            "next-thinking": lambda _: guidance.next_reasoning(),
            "page": lambda step: page.transcript.page(int(step)),
            "top": lambda _: page.transcript.to_top(),
            "bottom": lambda _: page.show_newest(),
            "select": lambda step: selection.move(int(step)),
            "deselect": lambda _: selection.leave(),
            "edit": lambda _: self._edit(),
            "leave-edit": lambda _: editing.leave(),
            "again": lambda _: replying.again(selection.message),
            "branch": lambda step: self._show_branch(int(step)),
            "copy-selected": lambda _: selection.copy(),
            "copy-code": lambda number: selection.copy_code(int(number)),
        }

    async def do(self, name: str, argument: str = "") -> bool:
        """Runs a command, and shows its error.

        Returns:
            Whether it succeeded.
        """
        try:
            done = self._actions[name](argument)
            if inspect.isawaitable(done):
                await done
        except SlipstreamError as error:
            self._page.tell_error(error)
            return False
        return True

    async def typed(self, text: str) -> None:
        """Runs a typed command; a failed one stays in the prompt."""
        prompt = self._page.prompt
        before = prompt.text
        with self._page.errors_told():
            command, argument = parsed(text)
            if await self.do(command.name, argument):
                prompt.remember_typed(text)
                if prompt.text == before:
                    prompt.put("")

    async def choose(self, command: Command) -> None:
        """Runs a command of the palette; puts one that needs an argument into the prompt."""
        if command.needs:
            self._page.prompt.begin(f"{MARK}{command.name} ")
        else:
            await self.do(command.name)

    async def _take_context(self, text: str) -> None:
        if not text or not self._replying.refuses():
            await self._model.take_context(text)

    def _edit(self) -> None:
        question = self._selection.question
        if question and not self._replying.refuses():
            self._editing.begin(question)

    async def _show_branch(self, step: int) -> None:
        """Switches to the previous (-1) or next (1) branch at the selected message."""
        if not self._replying.refuses():
            await self._selection.show_branch(step)

    def _switch_colours(self) -> None:
        transcript = self._page.transcript
        on = not transcript.coloured
        self._page.show_colours(on)
        if on and transcript.last_reply and not any(reply.coloured for reply in self._page.screen.query(Reply)):
            self._page.hint("Replies of earlier sessions have no colours; the next one will.")

    def _switch_drafts(self) -> None:
        """Toggles the draft panel; the engine sends draft trees only while it is open."""
        drafts = self._page.drafts
        shown = not drafts.display
        if not shown and drafts.has_focus_within:
            self._page.prompt.focus()
        drafts.display = shown
        self._engine.watch_drafts(shown)
