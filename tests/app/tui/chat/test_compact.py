"""``/compact`` on the screen: streams, stops, fails, is undone, and comes by itself where the settings say so."""

from pathlib import Path

import pytest
from tests.app.tui.chat.test_slash import command
from tests.app.tui.conftest import Open
from tests.app.tui.driver import Driver
from tests.app.tui.scripted import Script, ScriptedEngine

from slipstream.app.chats.compaction import ASKED
from slipstream.app.chats.recording import LEAD
from slipstream.app.chats.store import ChatStore
from slipstream.app.tui.chat.message import Summary
from slipstream.models.errors import ContextFullError, EngineDiedError, SlipstreamError

SUMMARY = "They talked of the sea."


async def talk(chat: Driver, turns: int = 8) -> None:
    for number in range(turns):
        await chat.say(f"question {number}")


def summaries(chat: Driver) -> list[str]:
    return [summary.text for summary in chat.screen.query(Summary)]


def sent(chat: Driver) -> list[str]:
    return [message.content for message in chat.engine.asked[-1].messages]


@pytest.mark.parametrize("size", [(80, 24), (140, 40)])
async def test_it_is_written_shown_and_undone(open_chat: Open, store: ChatStore, size: tuple[int, int]) -> None:
    async with open_chat(size=size) as chat:
        await talk(chat)
        before = chat.texts()
        chat.engine.scripts = [Script(SUMMARY, hold=5)]
        await command(chat, "/compact")
        await chat.until(lambda: "summarizing 12 messages" in chat.shown() or "writing" in chat.shown())
        await chat.until(lambda: "They" in chat.shown())
        assert sent(chat)[-1] == ASKED and sent(chat)[0] == "question 0"
        assert chat.engine.asked[-1].overflow == "stop" and not summaries(chat)
        chat.screen.prompt.put("too soon")
        await chat.press("enter")
        assert chat.screen.prompt.text == "too soon"
        chat.screen.prompt.put("")
        chat.engine.go()
        await chat.until(lambda: summaries(chat) == [SUMMARY])
        assert chat.idle() and chat.texts() == before and "Esc stops" not in chat.shown()
        await chat.until(lambda: chat.toasts()[-1:] == ["12 messages summarized; /compact undo brings them back."])
        assert "summary: the model reads this" in chat.shown()
        chat.engine.scripts = [Script()]
        await chat.say("question 9")
        assert sent(chat)[0] == f"{LEAD}{SUMMARY}\n\nquestion 6" and len(sent(chat)) == 5
    number = store.list_chats()[0].id
    async with open_chat(chat=number, size=size) as chat:
        assert summaries(chat) == [SUMMARY]
        await command(chat, "/compact undo")
        await chat.until(lambda: not summaries(chat))
        await chat.say("question 10")
        assert sent(chat)[0] == "question 0" and "question 9" in sent(chat)
        await command(chat, "/compact undo")
        await chat.until(lambda: chat.toasts()[-1:] == ["This chat has no summary."])


@pytest.mark.parametrize(
    "error",
    [None, SlipstreamError("the device failed.", ""), EngineDiedError("it ended.", "")],
    ids=["esc", "error", "end"],
)
async def test_esc_and_errors_change_nothing(open_chat: Open, error: SlipstreamError | None) -> None:
    async with open_chat() as chat:
        await talk(chat)
        before = chat.texts()
        chat.engine.scripts = [Script(SUMMARY, hold=5, fails=error), Script()]
        await command(chat, "/compact")
        await chat.until(lambda: "They" in chat.shown())
        if error:
            chat.engine.go()
            await chat.until(lambda: any("The chat is as it was." in words for words in chat.notices()))
        else:
            await chat.press("escape")
            await chat.until(lambda: chat.toasts()[-1:] == ["Stopped; nothing was changed."])
        await chat.until(chat.idle)
        assert chat.texts() == before and not summaries(chat)
        await chat.say("go on")
        assert sent(chat)[0] == "question 0" and sent(chat)[-1] == "go on"


async def test_what_cannot_be_is_said(open_chat: Open) -> None:
    async with open_chat() as chat:
        await command(chat, "/compact")
        await chat.until(lambda: any("too little in this chat" in words for words in chat.toasts()))
        await command(chat, "/compact now")
        await chat.until(lambda: any("takes nothing, or undo" in words for words in chat.toasts()))
        assert chat.screen.prompt.text == "/compact now"


def settle(tmp_path: Path, overflow: str) -> None:
    (tmp_path / "settings.toml").write_text(f'[reply]\noverflow = "{overflow}"\n')


class Full(ScriptedEngine):
    """Refuses chats of more than a number of messages, as an engine does with ``stop``."""

    most = 9

    def reply(self, generate):  # type: ignore[no-untyped-def]
        if generate.overflow == "stop" and len(generate.messages) > self.most:
            self.asked.append(generate)
            raise ContextFullError(
                "the context is full: this chat has 900 tokens, and 512 fit.", "/compact makes room."
            )
        return super().reply(generate)


async def test_a_full_chat_is_summarized_by_itself(open_chat: Open, tmp_path: Path) -> None:
    settle(tmp_path, "compact")
    async with open_chat(engine=Full([Script("Blue.")])) as chat:
        await talk(chat, 5)
        chat.engine.scripts = [Script(SUMMARY, hold=5), Script("Yes.")]
        chat.screen.prompt.put("Is it?")
        await chat.press("enter")
        await chat.until(lambda: "They" in chat.shown())
        await chat.until(lambda: any("older messages are summarized first" in words for words in chat.toasts()))
        chat.engine.go()
        await chat.until(lambda: bool(summaries(chat)) and chat.idle() and chat.texts()[-1] == "Yes.")
        assert chat.texts()[-2:] == ["Is it?", "Yes."] and chat.texts().count("Is it?") == 1
        assert sent(chat)[0].startswith(LEAD) and sent(chat)[-1].endswith("Is it?")
        assert chat.screen.prompt.text == "" and not chat.notices()


async def test_a_summary_that_fails_leaves_the_question_typed(open_chat: Open, tmp_path: Path) -> None:
    settle(tmp_path, "compact")
    async with open_chat(engine=Full([Script("Blue.")])) as chat:
        await talk(chat, 5)
        chat.engine.scripts = [Script(SUMMARY, fails=SlipstreamError("the device failed.", ""))]
        chat.screen.prompt.put("Is it?")
        await chat.press("enter")
        await chat.until(lambda: any("device failed" in words for words in chat.notices()) and chat.idle())
        assert chat.screen.prompt.text == "Is it?" and "Is it?" not in chat.texts()


async def test_stop_keeps_the_text_and_sends_nothing(open_chat: Open, tmp_path: Path, store: ChatStore) -> None:
    settle(tmp_path, "stop")
    async with open_chat(engine=Full([Script("Blue.")])) as chat:
        await talk(chat, 5)
        chat.engine.leaves_out = (2, 40)
        chat.screen.prompt.put("Is it?")
        await chat.until(lambda: any("a message would not be sent" in words for words in chat.toasts()))
        await chat.press("enter")
        await chat.until(lambda: any("the context is full" in words.lower() for words in chat.notices()))
        assert chat.screen.prompt.text == "Is it?" and "Is it?" not in chat.texts()
        assert len(store.messages(store.list_chats()[0].id)) == 10
