"""The short session below the prompt of the shell."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.app.tui.pictures import drawn
from tests.app.tui.scripted import Script, ScriptedEngine
from textual.pilot import Pilot

from slipstream.app.chats.compaction import ASKED
from slipstream.app.chats.recording import LEAD
from slipstream.app.chats.store import ChatStore
from slipstream.app.protocol.requests import Load, Sampling
from slipstream.app.settings.file import SettingsFile
from slipstream.app.tui.engine_service import EngineEnded, LoadProgress, MachineAwaited
from slipstream.app.tui.inline import InlineChat
from slipstream.models.errors import ContextFullError, EngineDiedError, SlipstreamError

TEXT = "The sea is wide and blue."
PATIENCE = 60.0


@asynccontextmanager
async def opened(
    store: ChatStore, folder: Path, engine: ScriptedEngine, chat: str | None = None
) -> AsyncIterator[tuple[InlineChat, Pilot[int]]]:
    app = InlineChat(
        engine, Load("mini.gguf", drafter="draft"), store, chat, Sampling(seed=7),
        SettingsFile(folder / "settings.toml"),
    )  # fmt: skip
    async with app.run_test(size=(60, 16)) as pilot:
        yield app, pilot


def shown(app: InlineChat) -> str:
    return "\n".join(strip.text for strip in drawn(app.screen))


async def until(app: InlineChat, pilot: Pilot[int], done: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < end, shown(app)
        await asyncio.sleep(0.005)
    await pilot.pause()


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (Script(TEXT, failed={"draft": "memory ran out"}), "drafter draft is left out of this chat: memory ran out."),
        (Script(TEXT, remarks={"'m.gguf' was deleted.": "Put it back."}), "'m.gguf' was deleted. Put it back."),
    ],
)
async def test_what_failed_beside_a_reply_is_told(store: ChatStore, tmp_path: Path, script: Script, words: str) -> None:
    async with opened(store, tmp_path, ScriptedEngine([script])) as (app, pilot):
        await pilot.press(*"Hi", "enter")
        await until(app, pilot, lambda: app.said == ["\u203a Hi", TEXT, words])


@pytest.mark.parametrize("leave", ["escape", "ctrl+d"])
async def test_a_question_is_answered_and_left_in_the_terminal(store: ChatStore, tmp_path: Path, leave: str) -> None:
    engine = ScriptedEngine([Script(TEXT)])
    async with opened(store, tmp_path, engine) as (app, pilot):
        await pilot.press(*"Hi", "ctrl+j", *"you", "enter")
        await until(app, pilot, lambda: app.said == ["\u203a Hi\nyou", TEXT])
        assert TEXT in shown(app) and "\u203a Hi" in shown(app) and app.ask.text == ""
        await pilot.press("enter")  # nothing to send
        await pilot.press(leave)
        await until(app, pilot, lambda: app.return_value == 0)
    (kept,) = store.list_chats()
    assert [message.content for message in store.messages(kept.id)] == ["Hi\nyou", TEXT]
    assert [message.role for message in engine.asked[0].messages] == ["user"]


async def test_a_kept_chat_goes_on_and_text_stays_inert_without_thoughts(store: ChatStore, tmp_path: Path) -> None:
    chat = store.open_or_create("notes")
    store.add_user(chat.id, "Before")
    engine = ScriptedEngine([Script("<think>Hm, the sea.</think>\n\none\x1b[2Jtwo [b]three[/b]")])
    async with opened(store, tmp_path, engine, chat.id) as (app, pilot):
        await pilot.press(*"And", "enter")
        await until(app, pilot, lambda: len(app.said) == 2)
        assert app.said[1] == "one␛[2Jtwo [b]three[/b]" and "[b]three[/b]" in shown(app)
    assert [message.content for message in engine.asked[0].messages][-1].endswith("And")


async def test_escape_stops_a_reply_before_it_leaves(store: ChatStore, tmp_path: Path) -> None:
    engine = ScriptedEngine([Script(TEXT, hold=2)])
    async with opened(store, tmp_path, engine) as (app, pilot):
        await pilot.press(*"Hi", "enter")
        await until(app, pilot, lambda: bool(app.text))
        await pilot.press("x", "enter")  # is not sent while a reply is written
        assert len(engine.asked) == 1
        await pilot.press("escape")
        await until(app, pilot, lambda: app.turn is None)
        assert engine.stopped and TEXT.startswith(app.said[1]) and app.return_value is None and not engine.closed
        assert app.ask.text == "x"


async def test_to_leave_amid_a_reply_keeps_what_came(store: ChatStore, tmp_path: Path) -> None:
    engine = ScriptedEngine([Script(TEXT, hold=2)])
    async with opened(store, tmp_path, engine) as (app, pilot):
        await pilot.press(*"Hi", "enter")
        await until(app, pilot, lambda: bool(app.text))
        await pilot.press("ctrl+q")
        await until(app, pilot, lambda: app.return_value == 0)
        assert app.said == ["\u203a Hi", app.shown]
    assert engine.stopped and engine.closed
    (kept,) = store.list_chats()
    assert store.messages(kept.id)[-1].content.startswith(app.shown)


async def test_what_is_sent_before_the_model_is_loaded_waits(store: ChatStore, tmp_path: Path) -> None:
    engine = ScriptedEngine([Script(TEXT)], hold_load=True)
    async with opened(store, tmp_path, engine) as (app, pilot):
        await until(app, pilot, lambda: "loading the model 50 %" in shown(app))
        app.post_message(LoadProgress(None))
        await until(app, pilot, lambda: "checking the file" in shown(app))
        await pilot.press(*"Hi", "enter")
        await pilot.pause()
        assert engine.asked == []
        engine.go_load()
        await until(app, pilot, lambda: app.said == ["\u203a Hi", TEXT])


async def test_a_model_that_cannot_be_loaded_ends_it_with_its_words(store: ChatStore, tmp_path: Path) -> None:
    engine = ScriptedEngine(load_fails=[SlipstreamError("no such\x1b file.", "Try another.")])
    async with opened(store, tmp_path, engine) as (app, pilot):
        await until(app, pilot, lambda: app.return_value == 1)
        assert app.said == ["no such␛ file. Try another."]


async def test_a_command_is_not_sent(store: ChatStore, tmp_path: Path) -> None:
    engine = ScriptedEngine([Script(TEXT)])
    async with opened(store, tmp_path, engine) as (app, pilot):
        await pilot.press(*"/help", "enter")
        await until(app, pilot, lambda: "only /compact and /compact undo work here" in shown(app))
        assert app.ask.text == "/help" and not engine.asked
        await pilot.press("home", "/", "enter")
        await until(app, pilot, lambda: app.said[-2:] == ["\u203a /help", TEXT])
        assert engine.asked[0].messages[-1].content == "/help"


SUMMARY = "They talked of the sea."


async def command(app: InlineChat, pilot: Pilot[int], words: str, last: str) -> None:
    app.ask.text = words
    await pilot.press("enter")
    await until(app, pilot, lambda: app.said[-1:] == [last])


async def talk(app: InlineChat, pilot: Pilot[int], turns: int = 8) -> None:
    for number in range(turns):
        app.ask.text = f"question {number}"
        await pilot.press("enter")
        await until(app, pilot, lambda number=number: len(app.said) == 2 * number + 2 and app.turn is None)  # type: ignore[misc]


def summaries(store: ChatStore) -> list[str]:
    (chat,) = store.list_chats()
    return [message.content for message in store.messages(chat.id) if message.summary]


async def test_the_older_messages_are_summarized_and_brought_back(store: ChatStore, tmp_path: Path) -> None:
    engine = ScriptedEngine([Script(TEXT)])
    async with opened(store, tmp_path, engine) as (app, pilot):
        await command(
            app, pilot, "/compact", "there is too little in this chat to summarize. /compact is for longer chats."
        )
        app.said.clear()
        await talk(app, pilot)
        engine.scripts = [Script(SUMMARY, hold=5), Script(TEXT)]
        app.ask.text = "/compact"
        await pilot.press("enter")
        await until(app, pilot, lambda: "They" in shown(app) and "summarizing 12 messages" in shown(app))
        assert engine.asked[-1].messages[-1].content == ASKED and engine.asked[-1].overflow == "stop"
        app.ask.text = "too soon"
        await pilot.press("enter")
        assert app.ask.text == "too soon" and not summaries(store)
        engine.go()
        told = "12 messages summarized; /compact undo brings them back."
        await until(app, pilot, lambda: app.said[-2:] == [SUMMARY, told])
        assert summaries(store) == [SUMMARY] and SUMMARY in shown(app)
        await pilot.press("enter")
        await until(app, pilot, lambda: app.said[-1] == TEXT)
        sent = [message.content for message in engine.asked[-1].messages]
        assert sent[0] == f"{LEAD}{SUMMARY}\n\nquestion 6" and sent[-1] == "too soon"
        await command(app, pilot, "/compact  undo", "the model reads the summarized messages again.")
        assert not summaries(store) and app.ask.text == ""
        await command(app, pilot, "/compact undo", "this chat has no summary.")


@pytest.mark.parametrize("key", ["escape", "ctrl+c"])
async def test_a_summary_that_is_stopped_changes_nothing(store: ChatStore, tmp_path: Path, key: str) -> None:
    engine = ScriptedEngine([Script(TEXT)])
    async with opened(store, tmp_path, engine) as (app, pilot):
        await talk(app, pilot)
        (chat,) = store.list_chats()
        before = store.messages(chat.id)
        engine.scripts = [Script(SUMMARY, hold=5)]
        app.ask.text = "/compact"
        await pilot.press("enter")
        await until(app, pilot, lambda: "They" in shown(app))
        await pilot.press(key)
        if key == "escape":
            await until(app, pilot, lambda: app.said[-1] == "stopped; nothing was changed.")
            assert app.return_value is None and "They" not in shown(app)
        else:
            await until(app, pilot, lambda: app.return_value == 0)
    assert engine.stopped and store.messages(chat.id) == before and SUMMARY not in app.said


async def test_a_refused_question_comes_back(store: ChatStore, tmp_path: Path) -> None:
    engine = ScriptedEngine([Script(fails=ContextFullError("too long.", "Shorten it."))])
    async with opened(store, tmp_path, engine) as (app, pilot):
        await pilot.press(*"Hi", "enter")
        await until(app, pilot, lambda: "too long. Shorten it." in app.said)
        assert app.ask.text == "Hi" and "too long." in shown(app)


@pytest.mark.parametrize("hold", [None, 2])
async def test_the_next_question_starts_a_dead_engine(hold: int | None, store: ChatStore, tmp_path: Path) -> None:
    died = EngineDiedError("the engine ended.", "Ask again.")
    engine = ScriptedEngine([Script(TEXT, fails=died, hold=hold), Script(TEXT)])
    async with opened(store, tmp_path, engine) as (app, pilot):
        await pilot.press(*"Hi", "enter")
        if hold:
            await until(app, pilot, lambda: bool(app.text))
            engine.go()
        await until(app, pilot, lambda: "the engine ended. Ask again." in app.said)
        app.ask.text = "Again"
        await pilot.press("enter")
        await until(app, pilot, lambda: app.said[-1] == TEXT)
        assert len(engine.loads) == 2


@pytest.mark.parametrize(
    ("text", "words"), [("<think>Hm, the sea", "(no answer, only thoughts)"), ("", "(no words came)"), (" \n", "(no")]
)
async def test_a_reply_without_an_answer_says_so(store: ChatStore, tmp_path: Path, text: str, words: str) -> None:
    async with opened(store, tmp_path, ScriptedEngine([Script(text)])) as (app, pilot):
        await pilot.press(*"Hi", "enter")
        await until(app, pilot, lambda: len(app.said) == 2)
        assert app.said[1].startswith(words) and words in shown(app)


async def test_a_wait_and_an_end_amid_nothing_are_told_and_it_starts_again(store: ChatStore, tmp_path: Path) -> None:
    engine = ScriptedEngine([Script(TEXT)])
    async with opened(store, tmp_path, engine) as (app, pilot):
        await until(app, pilot, lambda: app.loaded is not None)
        app.post_message(MachineAwaited("mac:50052"))
        await until(app, pilot, lambda: "waiting for mac:50052 · Esc stops" in shown(app))
        app.post_message(EngineEnded(EngineDiedError("the engine ended.", "")))
        await until(app, pilot, lambda: "the next message starts it again" in shown(app))
        await pilot.press(*"Hi", "enter")
        await until(app, pilot, lambda: len(app.said) == 2)
        assert len(engine.loads) == 2


async def test_what_cannot_be_kept_is_said(store: ChatStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise SlipstreamError("the disk is full.", "Free some room.")

    async with opened(store, tmp_path, ScriptedEngine([Script(TEXT)])) as (app, pilot):
        await until(app, pilot, lambda: app.loaded is not None)
        monkeypatch.setattr(store, "add_user", full)
        await pilot.press(*"Hi", "enter")
        await until(app, pilot, lambda: app.said == ["the disk is full. Free some room."])
        assert app.ask.text == "Hi"
