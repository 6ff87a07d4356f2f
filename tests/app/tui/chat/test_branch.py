"""Walk through the messages; edit, ask again, change branches, copy, go on."""

import pytest
from tests.app.tui.conftest import Open
from tests.app.tui.driver import Driver
from tests.app.tui.scripted import Script
from textual import events
from textual.widgets import Markdown

from slipstream.app.chats.store import ChatStore
from slipstream.app.tui.chat.reply_text import FenceHead
from slipstream.models.errors import ContextFullError

TEXT = "The sea is wide and blue, and it is never quite still."
CODE = "Look:\n\n```python\nprint(1)\n```\n\n```\nplain\n```\n"


def selected(chat: Driver) -> str:
    said = chat.screen.transcript.selected
    return "" if said is None else said.text  # type: ignore[attr-defined]


def last(store: ChatStore) -> list[str]:
    return [message.content for message in store.messages(store.list_chats()[0].id)]


async def press_and_wait(chat: Driver, *keys: str) -> None:
    asked = len(chat.engine.asked)
    await chat.press(*keys)
    await chat.until(lambda: len(chat.engine.asked) > asked and chat.idle())


@pytest.mark.slow
async def test_keys_walk_from_message_to_message(open_chat: Open) -> None:
    async with open_chat(Script("one"), Script("two")) as chat:
        await chat.press("ctrl+up")
        assert chat.screen.prompt.has_focus
        await chat.say("a")
        await chat.say("b")
        for key, text in (("ctrl+up", "two"), ("up", "b"), ("alt+up", "one"), ("k", "a"), ("up", "a"), ("down", "one")):
            await chat.press(key)
            assert selected(chat) == text
        assert "Edit" in chat.shown() and "Copy" in chat.shown() and "Branch" not in chat.shown()
        await chat.press("down", "j", "ctrl+down")
        assert chat.screen.prompt.has_focus and selected(chat) == ""
        await chat.press("ctrl+up", "escape", "x")
        assert chat.screen.prompt.text == "x"
        await chat.press("tab")
        assert selected(chat) == "", "Tab passes the messages by"


@pytest.mark.slow
async def test_a_question_is_edited_and_the_old_one_stays(open_chat: Open, store: ChatStore) -> None:
    async with open_chat(Script("red"), Script("more"), Script("blue"), Script("deep")) as chat:
        await chat.say("a fox")
        await chat.say("go on")
        chat.screen.prompt.put("half a thought")
        await chat.press("ctrl+up", "ctrl+up", "ctrl+up", "e")  # a reply stands for its question
        assert chat.screen.prompt.text == "a fox" and chat.screen.prompt.has_focus
        assert "Editing an earlier message" in chat.shown()
        await chat.press("escape")
        assert chat.screen.prompt.text == "half a thought" and "in place of" not in chat.shown()
        await chat.press("ctrl+up", "ctrl+up", "ctrl+up", "ctrl+up", "e")
        chat.screen.prompt.put("a whale")
        await press_and_wait(chat, "enter")
        assert chat.texts() == ["a whale", "blue"] == last(store)
        assert "‹ 2/2 ›" in chat.shown() and chat.screen.prompt.text == "half a thought"
        assert [m.content for m in chat.engine.asked[-1].messages] == ["a whale"]
        await chat.say("and?")
        assert last(store) == ["a whale", "blue", "and?", "deep"]
        for _ in range(4):
            await chat.press("ctrl+up")
        assert "Branch" in chat.shown()
        await chat.press("left")
        await chat.until(lambda: chat.texts() == ["a fox", "red", "go on", "more"] == last(store))
        assert selected(chat) == "a fox" and "‹ 1/2 ›" in chat.shown()
        await chat.press("left")  # there is none further
        assert last(store)[0] == "a fox"
        await chat.press("right")
        await chat.until(lambda: chat.texts() == ["a whale", "blue", "and?", "deep"])


@pytest.mark.slow
async def test_another_reply_in_the_middle_is_a_branch(open_chat: Open, store: ChatStore) -> None:
    async with open_chat(Script("one"), Script("two"), Script("three"), Script("four")) as chat:
        await chat.say("a")
        await chat.say("b")
        await chat.press("ctrl+up", "ctrl+up", "ctrl+up")
        assert selected(chat) == "one"
        await press_and_wait(chat, "r")
        assert chat.texts() == ["a", "three"] == last(store)
        assert [m.content for m in chat.engine.asked[-1].messages] == ["a"]
        assert chat.engine.asked[-1].sampling.seed != 7 and chat.footnote().startswith("‹ 2/2 ›")
        await press_and_wait(chat, "f5")
        assert chat.texts() == ["a", "four"]
        await chat.press("ctrl+up", "left")
        await chat.until(lambda: chat.texts() == ["a", "three"])
        await chat.press("left")
        await chat.until(lambda: chat.texts() == ["a", "one", "b", "two"] == last(store))
        assert selected(chat) == "one" and chat.replies()[1].text == "two"


@pytest.mark.slow
async def test_a_refused_edit_leaves_the_branch_that_was_shown(open_chat: Open, store: ChatStore) -> None:
    async with open_chat(Script("red"), Script(fails=ContextFullError("too long."))) as chat:
        await chat.say("a fox")
        await chat.press("ctrl+up", "ctrl+up", "e")
        chat.screen.prompt.put("a whale")
        await press_and_wait(chat, "enter")
        assert chat.texts() == ["a fox", "red"] == last(store)
        assert chat.screen.prompt.text == "a whale" and "‹" not in chat.shown()


async def test_a_stopped_reply_goes_on_in_its_place(open_chat: Open, store: ChatStore) -> None:
    async with open_chat(Script(TEXT, hold=20), Script("And deep.")) as chat:
        await chat.begin("x", 20)
        assert "Go on" not in chat.shown()
        await chat.press("ctrl+g")
        assert chat.screen.reply.writing
        await chat.press("escape")
        await chat.until(chat.idle)
        written, tokens = chat.texts()[1], store.messages(store.list_chats()[0].id)[1].tokens
        assert "Go on" in chat.shown()
        await press_and_wait(chat, "ctrl+g")
        request = chat.engine.asked[-1]
        assert [(m.role, m.content, m.tokens) for m in request.messages] == [
            ("user", "x", []),
            ("assistant", written, tokens),
        ]
        assert request.sampling.seed == chat.engine.asked[0].sampling.seed
        assert chat.texts() == ["x", written + "And deep."] == last(store)
        assert chat.replies()[0].query_one(Markdown).source == written + "And deep."
        figures = store.messages(store.list_chats()[0].id)[1].figures
        assert figures and figures.speed.tokens == len(tokens) + 2
        assert f" {len(tokens) + 2} tokens " in chat.footnote()
        assert "Go on" not in chat.shown() and "‹" not in chat.shown()
        await chat.press("f3")
        assert chat.replies()[0].coloured
        assert (written + "And deep.") in " ".join(chat.shown().split())


@pytest.mark.slow
async def test_messages_and_code_blocks_are_copied(open_chat: Open) -> None:
    async with open_chat(Script(CODE)) as chat:
        await chat.say("show me")
        await chat.until(lambda: "python" in chat.shown())
        await chat.press("ctrl+up", "c")
        assert chat.app.clipboard == CODE and "copy: 1" in chat.shown() and "copy: 2" in chat.shown()
        await chat.press("1")
        assert chat.app.clipboard == "print(1)"
        await chat.press("2")
        assert chat.app.clipboard == "plain"
        await chat.press("3")
        await chat.until(lambda: chat.toasts() == ["This message has no code block 3."])
        await chat.press("up", "c")
        assert chat.app.clipboard == "show me"
        await chat.press("escape")
        assert "copy: 1" not in chat.shown()
        await chat.pilot.click(FenceHead)
        assert chat.app.clipboard == "print(1)"


@pytest.mark.slow
@pytest.mark.parametrize("key", ["e", "r", "f5", "left"])
async def test_nothing_is_changed_while_a_reply_is_written(open_chat: Open, key: str) -> None:
    async with open_chat(Script("one"), Script("two"), Script(TEXT, hold=10)) as chat:
        await chat.say("a")
        await press_and_wait(chat, "f5")
        await chat.begin("b", 10)
        await chat.press("ctrl+up", "ctrl+up", "ctrl+up", key)
        await chat.until(lambda: chat.toasts() == ["Esc stops the reply first."])
        assert chat.texts()[:3] == ["a", "two", "b"]
        await chat.press("escape")
        await chat.until(chat.idle)
        assert chat.engine.stopped


async def test_what_is_typed_over_a_message_goes_to_the_prompt(open_chat: Open) -> None:
    async with open_chat(Script("one")) as chat:
        await chat.say("a")
        await chat.press("ctrl+up")
        assert selected(chat) == "one"
        await chat.press("w")
        await chat.until(lambda: chat.screen.prompt.has_focus)
        await chat.press("e", "space", "X")
        assert chat.screen.prompt.text == "we X" and selected(chat) == ""
        await chat.press("ctrl+up")
        chat.screen.transcript.said[-1].post_message(events.Paste(" and more"))
        await chat.until(lambda: chat.screen.prompt.text == "we X and more")
        assert chat.screen.prompt.has_focus


async def test_a_message_is_deleted_and_brought_back(open_chat: Open) -> None:
    async with open_chat(Script("Yes."), Script("No.")) as chat:
        await chat.say("One")
        await chat.say("Two")
        await chat.press("ctrl+up", "ctrl+up", "d")
        await chat.until(lambda: chat.texts() == ["One", "Yes.", "No."])
        assert "Deleted the message. u, or /undelete, brings it back." in chat.toasts()
        await chat.press("u")
        await chat.until(lambda: chat.texts() == ["One", "Yes.", "Two", "No."])
        await chat.press("ctrl+down", "ctrl+down", "ctrl+up", "d")
        await chat.until(lambda: chat.texts() == ["One", "Yes.", "Two"])
        chat.screen.prompt.put("/undelete")
        chat.screen.prompt.focus()
        await chat.press("enter")
        await chat.until(lambda: chat.texts() == ["One", "Yes.", "Two", "No."])
