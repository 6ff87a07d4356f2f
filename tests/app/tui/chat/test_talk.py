"""Ask and answer: what is sent, what is shown, what is kept."""

import re

import pytest
from tests.app.tui.conftest import Open
from tests.app.tui.driver import press_alt
from tests.app.tui.scripted import Script, ScriptedEngine
from textual.widgets import Markdown

from slipstream.app.chats.store import ChatStore
from slipstream.app.protocol.events import Prefilling, Stepped
from slipstream.app.tui.chat.prompt import PromptBox
from slipstream.app.tui.chat.replying import repeats
from slipstream.app.tui.engine_service import ModelReady, ReplyDone, ReplyStreamed
from slipstream.models.errors import ContextFullError, EngineDiedError, SlipstreamError

TEXT = "The sea is wide and blue, and it is never quite still."


@pytest.mark.slow
async def test_a_message_is_sent_and_answered(open_chat: Open, store: ChatStore) -> None:
    async with open_chat(Script(TEXT)) as chat:
        assert [message.loaded.name for message in chat.posted(ModelReady)] == ["slipstream-mini"]
        assert "slipstream-mini is ready" in chat.shown()
        await chat.press(*"Hi you", "enter")
        await chat.until(lambda: bool(chat.posted(ReplyDone)) and chat.idle())
        assert [message.text for message in chat.posted(PromptBox.MessageSent)] == ["Hi you"]
        events = [message.event for message in chat.posted(ReplyStreamed)]
        assert [event.total for event in events if isinstance(event, Prefilling)] == [20, 20]
        streamed = [piece.text for event in events if isinstance(event, Stepped) for piece in event.pieces]
        assert "".join(streamed) == TEXT
        assert chat.texts() == ["Hi you", TEXT] and chat.replies()[0].query_one(Markdown).source == TEXT
        waited = re.fullmatch(r"draft · 65 tok/s · 12 tokens · first token (\S+ m?s)", chat.footnote())
        assert waited  # what its owner waited, which is not the engine's own figure
        shown = chat.shown()
        assert TEXT in " ".join(shown.split())
        assert all(word in shown for word in ("70 %", "65 tok/s", "draft", "text identical", waited[1], " / 1,024"))
        assert chat.screen.prompt.text == ""
        (request,) = chat.engine.asked
        assert [(m.role, m.content) for m in request.messages] == [("user", "Hi you")]
        assert (request.drafter, request.sampling.seed) == ("draft", 7)
        (kept,) = store.list_chats()
        assert kept.title == "Hi you"
        _, answer = store.messages(kept.id)
        assert (answer.content, answer.status, answer.drafter, answer.seed) == (TEXT, "done", "draft", 7)
        assert answer.tokens == list(range(12)) and answer.figures is not None
        await chat.say("And?")
        assert [m.role for m in chat.engine.asked[1].messages] == ["user", "assistant", "user"]
        assert chat.engine.asked[1].messages[1].tokens == answer.tokens
        assert chat.engine.asked[1].request == request.request + 1


@pytest.mark.slow
async def test_nothing_is_sent_when_nothing_was_typed(open_chat: Open, store: ChatStore) -> None:
    async with open_chat() as chat:
        await chat.press("enter", "space", "enter", "ctrl+j", "enter")
        assert len(chat.posted(PromptBox.MessageSent)) == 3 and chat.engine.asked == []
        assert store.list_chats() == []


async def test_escape_stops_and_keeps_what_was_written(open_chat: Open, store: ChatStore) -> None:
    async with open_chat(Script(TEXT, hold=20)) as chat:
        assert "Stop" not in chat.shown()
        await chat.begin("x", 20)
        assert "Stop" in chat.shown()
        await chat.press("escape")
        await chat.until(chat.idle)
        assert chat.engine.stopped == [1]
        written = chat.replies()[0].text
        assert TEXT.startswith(written)
        assert written != TEXT
        assert chat.footnote().endswith("stopped")
        assert store.messages(store.list_chats()[0].id)[1].content == written
        await chat.press("escape")
        assert chat.engine.stopped == [1]


@pytest.mark.slow
async def test_a_message_sent_too_early_waits_for_the_model(open_chat: Open) -> None:
    async with open_chat(engine=ScriptedEngine(hold_load=True)) as chat:
        await chat.until(lambda: "loading" in chat.shown() and "50 %" in chat.shown())
        await chat.press(*"early", "enter")
        assert chat.screen.prompt.text == "early" and chat.engine.asked == []
        chat.engine.go_load()
        await chat.until(lambda: len(chat.engine.asked) == 1 and chat.idle())
        assert chat.texts()[0] == "early"


async def test_a_failed_load_says_why_and_is_tried_again(open_chat: Open) -> None:
    failure = SlipstreamError("mini.gguf is truncated: 12 of 30 bytes.", "Fetch it again.")
    async with open_chat(engine=ScriptedEngine(load_fails=[failure])) as chat:
        await chat.until(lambda: bool(chat.notices()))
        assert chat.notices() == ["✗ Mini.gguf is truncated: 12 of 30 bytes.\n  Fetch it again."]
        await chat.say("x")
        assert len(chat.engine.loads) == 2 and len(chat.texts()) == 2


@pytest.mark.slow
async def test_a_refused_message_comes_back(open_chat: Open, store: ChatStore) -> None:
    refusal = ContextFullError("the message has 3,120 tokens; the context holds 1,024.", "Shorten it.")
    async with open_chat(Script(TEXT), Script(fails=refusal), Script(TEXT)) as chat:
        await chat.say("first")
        await chat.say("much too long")
        assert chat.notices() == ["✗ The message has 3,120 tokens; the context holds 1,024.\n  Shorten it."]
        assert chat.screen.prompt.text == "much too long" and chat.texts() == ["first", TEXT]
        assert [m.content for m in store.messages(store.list_chats()[0].id)] == ["first", TEXT]
        assert "much too long" in store.prompts()
        await chat.press("enter")
        await chat.until(lambda: len(chat.engine.asked) == 3 and chat.idle())
        assert [m.content for m in chat.engine.asked[2].messages] == ["first", TEXT, "much too long"]


@pytest.mark.slow
async def test_a_refused_first_message_leaves_an_empty_chat(open_chat: Open) -> None:
    async with open_chat(Script(fails=ContextFullError("too long."))) as chat:
        await chat.say("first")
        assert chat.screen.prompt.text == "first" and chat.texts() == [] and "is ready" in chat.shown()
        chat.screen.prompt.put("")
        await chat.press("ctrl+n")
        assert chat.screen.prompt.text == ""
        await chat.press("ctrl+o", "enter")  # it waits in its chat
        await chat.until(lambda: chat.screen.prompt.text == "first")


async def test_a_fault_of_ours_is_shown_and_ends_nothing(open_chat: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_chat() as chat:
        monkeypatch.setattr(chat.engine, "reply", lambda generate: 1 / 0)
        await chat.say("x", wait=False)
        await chat.until(lambda: bool(chat.notices()) and chat.idle())
        assert "ZeroDivisionError" in chat.notices()[0]
        monkeypatch.undo()
        await chat.say("y")
        assert chat.texts()[-2:] == ["y", "The sea is wide and blue."]


@pytest.mark.parametrize(
    ("script", "footnote", "notice"),
    [
        (Script(reason="context"), "the context is full", "Ctrl-N begins a new chat"),
        (Script(reason="length"), "cut at the token limit", None),
        (Script(dropped=2), "older messages left out: 2", None),
    ],
)
async def test_the_end_of_a_reply_is_told(open_chat: Open, script: Script, footnote: str, notice: str | None) -> None:
    async with open_chat(script) as chat:
        await chat.say("x")
        assert chat.footnote().endswith(footnote) and len(chat.notices()) == (notice is not None)
        assert not notice or notice in chat.notices()[0]


async def test_an_engine_that_died_unnoticed_is_started_again_at_once(open_chat: Open, store: ChatStore) -> None:
    async with open_chat(Script(fails=EngineDiedError("the engine ended.")), Script(TEXT)) as chat:
        await chat.say("x", wait=False)
        await chat.until(lambda: len(chat.engine.asked) == 2 and chat.idle() and chat.texts() == ["x", TEXT])
        assert chat.notices() == [] and len(chat.engine.loads) == 2
        assert chat.engine.asked[1].messages == chat.engine.asked[0].messages
        assert chat.engine.asked[1].sampling == chat.engine.asked[0].sampling
        assert [m.content for m in store.messages(store.list_chats()[0].id)] == ["x", TEXT]


@pytest.mark.parametrize("drafter", ["draft", "none"])
async def test_the_line_under_a_reply_is_kept_with_it(open_chat: Open, store: ChatStore, drafter: str) -> None:
    async with open_chat(Script(TEXT, hold=20), Script(TEXT), drafter=drafter) as chat:
        await chat.begin("x", 20)
        await chat.press("escape")
        await chat.until(chat.idle)
        stopped = chat.footnote()
        await chat.say("y")
        written = [chat.footnote(0), chat.footnote(1)]
        assert written[0] == stopped and "stopped" in stopped and "tok/s" in written[1]
    async with open_chat(Script(TEXT), chat=store.list_chats()[0].id) as chat:
        assert [chat.footnote(0), chat.footnote(1)] == written


async def test_a_message_waits_for_the_end_of_the_reply_and_esc_takes_it_back(open_chat: Open) -> None:
    async with open_chat(Script(TEXT, hold=10), Script("Yes."), Script("No.")) as chat:
        await chat.begin("One", 10)
        await chat.press(*"Two", "enter")
        await chat.until(lambda: "next: Two · Esc takes it back" in chat.shown())
        assert len(chat.engine.asked) == 1
        await chat.press(*"Three", "enter")  # one message waits at a time
        assert chat.toasts()[-1] == "One message waits already."
        await chat.press("escape")
        await chat.until(lambda: chat.screen.prompt.text == "Two\nThree")
        assert "next:" not in chat.shown() and not chat.engine.stopped
        await chat.press("enter")
        chat.engine.go()
        await chat.until(lambda: len(chat.engine.asked) == 2 and chat.idle())
        assert chat.texts() == ["One", TEXT, "Two\nThree", "Yes."]


async def test_newer_text_below_is_marked_on_the_border(open_chat: Open) -> None:
    async with open_chat(Script("\n\n".join("The sea." for _ in range(40)))) as chat:
        await chat.say("One")
        assert "newer text" not in chat.shown()
        await chat.press("pageup", "pageup")
        await chat.until(lambda: "↓ newer text: Ctrl-End" in chat.shown().splitlines()[-5])
        await chat.press("ctrl+end")
        await chat.until(lambda: "newer text" not in chat.shown())


async def test_a_message_that_waits_comes_back_if_the_reply_fails_and_is_kept_on_the_disk(open_chat: Open) -> None:
    lost = EngineDiedError("the engine ended: out of memory.", "")
    async with open_chat(Script(TEXT, hold=10, fails=lost)) as chat:
        await chat.begin("One", 10)
        await chat.press(*"Two", "enter")
        await chat.until(lambda: "next: Two" in chat.shown())
        chat.screen.page.keep_prompt()
        assert "Two" in chat.store.path.with_name("unsent.json").read_text()
        chat.engine.go()
        await chat.until(lambda: chat.screen.prompt.text == "Two" and chat.idle())
        assert len(chat.engine.asked) == 1 and "next:" not in chat.shown()


async def test_a_fork_is_a_new_chat_up_to_the_selected_message(open_chat: Open, store: ChatStore) -> None:
    async with open_chat(Script("Yes."), Script("No.")) as chat:
        chat.screen.prompt.put("/system Rhyme.")
        await chat.press("enter")
        await chat.say("One")
        await chat.say("Two")
        old = chat.screen.conversation.chat
        assert old
        await chat.press("ctrl+up", "ctrl+up", "ctrl+up", "f")
        await chat.until(lambda: chat.texts() == ["One", "Yes."])
        fresh = chat.screen.conversation.chat
        assert fresh and fresh.id != old.id and chat.screen.conversation.system == "Rhyme."
        await chat.say("Else?")
        assert [m.content for m in store.messages(fresh.id)] == ["Rhyme.", "One", "Yes.", "Else?", "No."]
        assert [m.content for m in store.messages(old.id)] == ["Rhyme.", "One", "Yes.", "Two", "No."]


async def test_a_reply_that_repeats_itself_is_said_and_tried_again_with_dry(open_chat: Open) -> None:
    loop = "I like this. " + "4 1/2 teaspoons baking soda, and more. " * 40
    async with open_chat(Script(loop, hold=900), Script("Better.")) as chat:
        await chat.begin("Cake?", 900)
        await chat.until(lambda: "repeats itself · Esc stops · Alt-R tries again without repeats" in chat.shown())
        await press_alt(chat.pilot, "r")
        await chat.until(lambda: len(chat.engine.asked) == 2 and chat.idle())
        assert chat.texts() == ["Cake?", "Better."] and "‹ 2/2 ›" in chat.shown()
        assert [asked.sampling.dry for asked in chat.engine.asked] == [0.0, 0.8]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("I like it. " * 12, True),
        ("One.\n" + "4 1/2 teaspoons baking soda\n" * 5, True),
        ("4 1/2 teaspoons baking soda\n" * 3, False),
        ("=" * 300, False),
        ("| --- | --- |\n" * 20, False),
        ("".join(f"{number}. This is line {number} of a list.\n" for number in range(40)), False),
    ],
)
def test_only_the_same_passage_several_times_in_a_row_is_a_repetition(text: str, found: bool) -> None:
    assert repeats(text) == found
