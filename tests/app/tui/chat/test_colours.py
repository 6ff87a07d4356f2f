"""The colours of a reply's words are kept with the chat: they survive another session."""

from __future__ import annotations

from tests.app.tui.conftest import Open
from tests.app.tui.driver import Driver
from tests.app.tui.scripted import Script
from textual.widgets import Static

from slipstream.app.chats.records import joined_runs
from slipstream.app.chats.store import ChatStore
from slipstream.app.tui.chat.authorship import Pieces
from slipstream.app.tui.chat.reply import Reply

TEXT = "The sea is wide and blue, and it is never quite still."


def styled(chat: Driver) -> list[tuple[str, str]]:
    """The styled stretches of the last reply's pieces."""
    reply = [*chat.screen.query(Reply)][-1]
    found = [*reply.query_one(Pieces).query(Static)]
    if not found:
        return []
    content = found[0].content
    return [(content.plain[span.start : span.end], str(span.style)) for span in content.spans]


async def test_colours_come_back_with_the_chat(open_chat: Open, store: ChatStore) -> None:
    async with open_chat(Script(TEXT)) as chat:
        await chat.say("x")
        await chat.press("f3")
        live = styled(chat)
        assert len({style for _, style in live}) == 3  # guessed, corrected, and free
    (kept,) = store.list_chats()
    async with open_chat(chat=kept.id) as chat:
        await chat.press("f3")
        await chat.until(lambda: [*chat.screen.query(Reply)][-1].coloured)
        assert styled(chat) == live


def test_neighbours_alike_are_one_run() -> None:
    runs = joined_runs([(3, "plain", ""), (2, "plain", ""), (0, "bonus", ""), (4, "accepted", "lookup")])
    assert runs == [(5, "plain", ""), (4, "accepted", "lookup")]
