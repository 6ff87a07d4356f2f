"""The chat: its keys."""

from __future__ import annotations

import time
from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.widgets import Markdown

from slipstream.app.tui.keys import named
from slipstream.app.tui.screens.ahead import AheadTalk
from slipstream.app.tui.screens.bench_talk import BenchTalk
from slipstream.app.tui.screens.chat_prompt import PromptTalk
from slipstream.app.tui.screens.chats_walk import WalkTalk
from slipstream.app.tui.screens.context import ContextTalk
from slipstream.app.tui.screens.draft_talk import DraftTalk
from slipstream.app.tui.screens.help import HelpScreen
from slipstream.app.tui.widgets.reply import Reply
from slipstream.app.tui.widgets.transcript_edges import Earlier, Later
from slipstream.app.tui.widgets.welcome import Example

QUIT_WITHIN = 2.0
"""Seconds in which a second Ctrl-C quits."""


IN_THE_LIST = frozenset({"recall", "thoughts", "again", "page", "go_on", "top", "bottom", "select"})
"""Actions whose keys mean something else while the list of chats has the focus."""


class ChatScreen(BenchTalk, PromptTalk, WalkTalk, AheadTalk, DraftTalk, ContextTalk):
    """A talk and the keys that steer it."""

    BINDINGS: ClassVar[list[BindingType]] = named(
        [
            Binding("escape", "stop", "Stop", key_display="Esc"),
            Binding("escape", "leave_edit", "Leave it", key_display="Esc", id="stop"),
            Binding("ctrl+g", "go_on", "Go on", priority=True),
            Binding("f1", "help", "Help"),
            Binding("f2", "next_drafter", "Next drafter", show=False),
            Binding("ctrl+d", "drafters", "Drafters", priority=True),
            Binding("f3", "colours", "Colours"),
            Binding("f4", "trees", "Drafts"),
            Binding("f6", "offer", "Fetch a model", show=False),
            Binding("ctrl+l", "models", "Models", priority=True),
            Binding("ctrl+n", "new_chat", "New", priority=True),
            Binding("ctrl+o", "chats", "Chats", priority=True),
            Binding("ctrl+up,alt+up", "select(-1)", "Messages", show=False, priority=True, id="message-before"),
            Binding("ctrl+down,alt+down", "select(1)", "Next message", show=False, priority=True, id="message-after"),
            Binding("f9", "settings", "Settings", show=False),
            Binding("f5", "again", "Again", show=False, priority=True),
            Binding("f8", "bench", "Benchmark", show=False, priority=True),
            Binding("ctrl+r", "recall", "Search prompts", show=False, priority=True),
            Binding("ctrl+t", "thoughts", "Thoughts", show=False, priority=True),
            Binding("ctrl+y", "copy_reply", "Copy reply", show=False, priority=True),
            Binding("ctrl+q", "app.quit", "Quit", priority=True),
            Binding("ctrl+c", "interrupt", "Copy, stop or quit", show=False, priority=True),
            Binding("pageup", "page(-1)", "Page up", show=False, priority=True, id="page-up"),
            Binding("pagedown", "page(1)", "Page down", show=False, priority=True, id="page-down"),
            Binding("ctrl+home", "top", "Top", show=False, priority=True),
            Binding("ctrl+end", "bottom", "Newest", show=False, priority=True),
        ]
    )

    _interrupted = 0.0  # when Ctrl-C was pressed last

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offers what can be done now."""
        if action in IN_THE_LIST and self.sidebar.has_focus_within:
            return False
        if action == "page" and self.drafts.has_focus_within:
            return False
        selected = self.transcript.selected
        if action == "branch":
            return bool(selected and selected.beside)
        offered = {
            "stop": self._turn is not None,
            "deselect": self._turn is None,  # Esc stops first
            "leave_edit": self._turn is None and self._editing is not None,
            "go_on": self._unfinished,
            "offer": self._offer is not None,
        }
        return offered.get(action, True)

    def action_stop(self) -> None:
        """Ends the reply; what was written stays."""
        if self._turn and self._reply:
            self._room.stop()
            self._reply.note("stopping")

    def action_next_drafter(self) -> None:
        """Goes to the next drafter that this model can use."""
        if self._loaded is None:
            self._hint("The model is not loaded yet.")
            return
        usable = [offer.name for offer in self.offers(self._loaded) if offer.usable]
        if self._drafter in usable and len(usable) < 2:
            self._hint("No other drafter fits this model. Ctrl-D says why.")
            return
        at = usable.index(self._drafter) + 1 if self._drafter in usable else 0
        self.draft_with(usable[at % len(usable)])

    def action_colours(self) -> None:
        """Shows who wrote what, or Markdown."""
        on = not self.transcript.coloured
        self.show_colours(on)
        if on and self.transcript.last_reply and not any(reply.coloured for reply in self.query(Reply)):
            self._hint("Replies of earlier sessions have no colours; the next one will.")

    def action_interrupt(self) -> None:
        """Copies what is selected; else stops the reply; else quits when pressed twice."""
        selected = self.get_selected_text() or self.prompt.selected_text
        now = time.monotonic()
        if selected:
            self.app.copy_to_clipboard(selected)
        elif self._turn:
            self.action_stop()
        elif now - self._interrupted < QUIT_WITHIN:
            self.app.exit()
        else:
            self._interrupted = now
            self._hint("Ctrl-C once more quits.")

    def action_help(self) -> None:
        """Lists all keys."""
        self.app.push_screen(HelpScreen())

    def action_page(self, direction: int) -> None:
        """Scrolls what was said."""
        self.transcript.page(direction)

    async def action_top(self) -> None:
        """Goes to the first message that is shown."""
        self.transcript.release_anchor()
        self.transcript.scroll_home(animate=False)

    async def action_bottom(self) -> None:
        """Goes to the newest message."""
        if not self.transcript.whole:
            await self.transcript.fill(self._conversation.messages())
            self.transcript.mark(self._conversation.forks())
        self.transcript.to_end()

    @on(Earlier.Wanted)
    async def _earlier(self) -> None:
        await self.transcript.show_earlier(self._conversation.messages())
        self.transcript.mark(self._conversation.forks())

    @on(Later.Wanted)
    async def _later(self) -> None:
        await self.transcript.show_later(self._conversation.messages())
        self.transcript.mark(self._conversation.forks())

    @on(Reply.CodeWanted)
    def _code_clicked(self, message: Reply.CodeWanted) -> None:
        self._copy_code(message.code)

    @on(Example.Picked)
    def _picked(self, message: Example.Picked) -> None:
        self.prompt.put(message.text)
        self.prompt.focus()

    @on(Markdown.LinkClicked)
    def _link_clicked(self, message: Markdown.LinkClicked) -> None:
        """Copies an address; it is never opened from here."""
        self.app.copy_to_clipboard(message.href)
        self._hint("Copied the address; slipstream opens no links.")
