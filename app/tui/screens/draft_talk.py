"""The talk and its drafts: a panel that shows them as they come."""

from __future__ import annotations

from textual import on

from slipstream.app.tui.conversation import Turn
from slipstream.app.tui.messages import ReplyDone, ReplyFailed, ReplyStreamed
from slipstream.app.tui.screens.talk import TalkScreen
from slipstream.app.tui.widgets.draft_tree_panel import DraftPanel
from slipstream.models.errors import SlipstreamError


class DraftTalk(TalkScreen):
    """A talk whose drafts can be seen; the engine tells of them only while the panel is open."""

    def action_trees(self) -> None:
        """Opens or closes the panel."""
        shown = not self.drafts.display
        if not shown and self.drafts.has_focus_within:
            self.prompt.focus()
        self.drafts.display = shown
        self._room.watch_drafts(shown)

    async def _show_chat(self, at: int | None = None) -> None:
        """Shows the conversation, and how the drafts of its replies fared."""
        await super()._show_chat(at)
        try:
            said = self._conversation.messages()
        except SlipstreamError:
            said = []  # the transcript says why
        self.drafts.fill(message.figures for message in said if message.figures)

    async def _begin(self, turn: Turn) -> None:
        self.drafts.begin()
        await super()._begin(turn)

    @on(ReplyStreamed)
    def _drafted(self, message: ReplyStreamed) -> None:
        self.drafts.hear(message.steps)

    @on(ReplyDone)
    def _drafts_done(self, message: ReplyDone) -> None:
        self.drafts.end(message.done)

    @on(ReplyFailed)
    def _drafts_failed(self) -> None:
        self.drafts.end(None)

    @on(DraftPanel.Left)
    def _drafts_left(self) -> None:
        self.prompt.focus()
