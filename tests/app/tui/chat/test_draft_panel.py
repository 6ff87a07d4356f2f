"""The panel that shows drafts as they come."""

import pytest
from tests.app.tui.conftest import Open
from tests.app.tui.driver import Driver
from tests.app.tui.scripted import Script

from slipstream.app.protocol.events import DraftTree, Piece, Stepped
from slipstream.app.tui.chat.draft_panel import MOST, DraftTreeLog
from slipstream.app.tui.engine_service import ReplyStreamed

TEXT = "The sea is wide and blue, and it is never quite still."


def tree(number: int) -> DraftTree:
    return DraftTree(number, [" a"], [-1], [0.5], ["draft"], [0], Piece(" b", "bonus"), 0, 1.0)


def shown(log: DraftTreeLog) -> str:
    return "\n".join(log.render_line(y).text.rstrip() for y in range(log.size.height))


async def drawn(chat: Driver, words: str) -> None:
    await chat.until(lambda: words in shown(chat.screen.drafts.trees))


@pytest.mark.slow
@pytest.mark.parametrize("size", [(80, 24), (140, 40)])
async def test_drafts_are_drawn_as_they_come(open_chat: Open, size: tuple[int, int]) -> None:
    async with open_chat(Script(TEXT, hold=20), size=size) as chat:
        panel, transcript = chat.screen.drafts, chat.screen.transcript
        assert not panel.display and "✓━ right" not in chat.shown()
        await chat.press("f4")
        await chat.until(lambda: chat.engine.watched)
        assert "Guesses appear here during the next reply" in chat.shown()
        assert "✓━ right ✗ wrong │ own word … left out 42 %" in chat.shown()
        beside = size[0] > 100
        assert (panel.region.y == transcript.region.y) == beside
        assert panel.region.x >= transcript.region.right if beside else panel.region.y >= transcript.region.bottom
        await chat.say("x", wait=False)
        await drawn(chat, "┯·sea 25━·is 25━·wide 25┯and·")
        assert "…" not in shown(panel.trees)
        assert chat.screen.reply.writing  # while it is being written
        assert "step 2  draft guessed 5, kept 3" in shown(panel.trees) and "·wrong 50" in shown(panel.trees)
        await chat.until(lambda: "% right in this chat" in chat.shown())
        chat.engine.go()
        await chat.until(chat.idle)
        await drawn(chat, "still.")
        assert chat.texts() == ["x", TEXT]
        await chat.until(lambda: "draft       70 %" in chat.shown() and "75  50" in chat.shown())


async def test_nothing_is_asked_of_the_engine_while_it_is_closed(open_chat: Open) -> None:
    async with open_chat(Script(TEXT)) as chat:
        await chat.say("x")
        await chat.press("f4")
        await chat.until(lambda: chat.engine.watched)
        assert "Guesses appear here during the next reply" in chat.shown()
        assert "70 %" in str(chat.screen.drafts.chart.render())  # known from the reply's own figures
        await chat.press("f4")
        await chat.until(lambda: not chat.engine.watched)
        await chat.say("y")
        steps = [m.event for m in chat.posted(ReplyStreamed) if isinstance(m.event, Stepped)]
        assert steps and not any(step.watched for step in steps)
        assert shown(chat.screen.drafts.trees).strip() == ""


async def test_it_is_a_command_too_and_a_new_reply_begins_anew(open_chat: Open) -> None:
    async with open_chat(Script(TEXT)) as chat:
        chat.screen.prompt.put("/trees")
        await chat.press("enter")
        await chat.until(lambda: chat.engine.watched and chat.screen.drafts.display)
        assert chat.screen.prompt.text == ""
        log = chat.screen.drafts.trees
        await chat.say("x")
        await chat.until(lambda: len(log.kept) > 2)
        before = len(log.kept)
        await chat.say("y")
        await chat.until(lambda: len(log.kept) == before)
        assert log.kept[0].step == 1
        await chat.press("ctrl+n")
        await chat.until(lambda: not log.kept)
        assert "Nothing was guessed yet" in str(chat.screen.drafts.chart.render())


async def test_one_scrolls_back_and_the_lines_stay(open_chat: Open) -> None:
    async with open_chat() as chat:
        await chat.press("f4")
        log = chat.screen.drafts.trees
        log.add([tree(number) for number in range(1, MOST + 1)])
        await drawn(chat, f"{MOST}  draft")
        log.focus()
        await chat.press("pageup", "pageup")
        await chat.until(lambda: log.scroll_y == log.max_scroll_y - 2 * log.size.height)
        before = shown(log)
        log.add([tree(number) for number in range(MOST + 1, MOST + 11)])
        await chat.until(lambda: log.kept[-1].step == MOST + 10)
        assert shown(log) == before  # although the first ten are gone
        assert log.kept[0].step == 11
        await chat.press("end")
        await drawn(chat, f"{MOST + 10}  draft")
        log.add([tree(MOST + 11)])
        await drawn(chat, f"{MOST + 11}  draft")
        await chat.press("escape")
        assert chat.screen.prompt.has_focus
