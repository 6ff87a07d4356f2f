"""Every key of the chat."""

from tests.app.tui.conftest import Open
from tests.app.tui.scripted import Script
from textual.content import Content
from textual.widgets import Static

from slipstream.app.chats.store import ChatStore
from slipstream.app.tui.chat.authorship import BONUS, COPIED, DRAFTED, RECOVERED
from slipstream.app.tui.chat.reply import ReplyView
from slipstream.app.tui.chat.reply_text import ReplyText
from slipstream.app.tui.chat.welcome import Example, examples

TEXT = "The sea is wide and blue, and it is never quite still."


async def test_the_drafter_changes_with_the_next_reply(open_chat: Open) -> None:
    async with open_chat(Script(TEXT, hold=10)) as chat:
        await chat.begin("x", 10)
        await chat.press("f2")
        await chat.until(lambda: chat.toasts() == ["Next reply: lookup; F9 keeps one for each start"])
        assert "next reply: lookup" in chat.shown()
        chat.engine.go()
        await chat.until(chat.idle)
        assert chat.footnote().startswith("draft · ")
        await chat.say("y")
        await chat.press("f2")
        await chat.say("z")
        assert [request.drafter for request in chat.engine.asked] == ["draft", "lookup", "none"]
        assert chat.footnote(1).startswith("lookup · ") and chat.footnote(2).startswith("44 tok/s · no drafter · ")
        await chat.press("f2")
        assert chat.screen.model.drafter == "draft"  # medusa is not usable


async def test_at_most_two_toasts_are_shown(open_chat: Open) -> None:
    async with open_chat() as chat:
        for words in ("one", "two", "three", "two", "three"):
            chat.app.notify(words)
            await chat.pilot.pause()
        await chat.until(lambda: chat.toasts() == ["two", "three"])
        chat.app.notify("four", severity="error")
        await chat.until(lambda: chat.toasts() == ["three", "four"])


def styles(reply: ReplyView) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in reply.query_one(ReplyText).query(Static):
        content = part.content
        if isinstance(content, Content):
            for span in content.spans:
                found[str(span.style)] = found.get(str(span.style), "") + str(content)[span.start : span.end]
    return found


async def test_colours_show_who_wrote_which_words(open_chat: Open) -> None:
    async with open_chat(Script(TEXT, hold=10), Script(TEXT)) as chat:
        await chat.begin("x", 10)
        await chat.press("f3")
        chat.engine.go()
        await chat.until(chat.idle)
        (reply,) = chat.replies()
        assert reply.coloured
        words = styles(reply)
        assert set(words) == {DRAFTED, RECOVERED, BONUS}
        assert sum(map(len, words.values())) == len(TEXT)
        assert "guessed: draft   corrected by the model   extra by it   not guessed" in chat.shown()
        await chat.press("f2")
        await chat.say("y")
        assert COPIED in styles(chat.replies()[1])
        assert "guessed: draft   lookup   corrected by the model   extra by it   not guessed" in chat.shown()
        await chat.press("f3")
        assert not any(reply.coloured for reply in chat.replies())
        assert "corrected" not in chat.shown()
        await chat.press("f3")
        assert all(reply.coloured for reply in chat.replies())


async def test_replies_of_earlier_sessions_have_no_colours(open_chat: Open, store: ChatStore) -> None:
    chat_id = store.create().id
    store.add_user(chat_id, "x")
    reply = store.begin_reply(chat_id, model="m", fingerprint="f1", drafter="draft", seed=1)
    store.finish_reply(reply.id, text=TEXT)
    async with open_chat(chat=chat_id) as chat:
        await chat.press("f3")
        assert not chat.replies()[0].coloured and "have no colours" in chat.toasts()[0]
        assert TEXT in chat.shown()


async def test_up_recalls_what_was_sent(open_chat: Open, store: ChatStore) -> None:
    store.add_user(store.create().id, "before")
    async with open_chat() as chat:
        prompt = chat.screen.prompt
        await chat.say("one")
        await chat.say("two\nlines")
        await chat.press("up")
        assert prompt.text == "two\nlines"
        await chat.press("up")
        assert prompt.text == "one"
        await chat.press("up", "up", "up")
        assert prompt.text == "before"
        await chat.press("down", "down")
        assert prompt.text == "two\nlines"
        await chat.press("down")
        assert prompt.text == ""
        await chat.press("up", "x", "up")  # changed: the key moves the cursor
        assert prompt.text == "two\nlinesx" and prompt.cursor_location[0] == 0


async def test_three_keys_begin_a_line_and_the_prompt_grows(open_chat: Open) -> None:
    async with open_chat() as chat:
        prompt = chat.screen.prompt
        height = prompt.size.height
        await chat.press("a", "ctrl+j", "b", "alt+enter", "c", "shift+enter", "d")
        assert prompt.text == "a\nb\nc\nd" and prompt.size.height == height + 3
        prompt.put("x\n" * 40)
        await chat.pilot.pause()
        assert prompt.size.height <= 8
        await chat.press("enter")
        await chat.until(lambda: len(chat.engine.asked) == 1 and chat.idle())
        assert prompt.size.height == height


async def test_tab_and_a_click_offer_examples(open_chat: Open) -> None:
    first, second, third = examples("owl", told=False)
    async with open_chat() as chat:
        await chat.press("tab")
        assert chat.screen.prompt.text == first
        await chat.press("tab")
        assert chat.screen.prompt.text == second
        await chat.pilot.click(list(chat.screen.query(Example))[2])
        assert chat.screen.prompt.text == third
        assert chat.screen.prompt.has_focus
        await chat.say(second)
        await chat.press("tab", "tab")
        assert chat.screen.prompt.text == third  # what was sent is no longer something to try
    assert not {second, third} & {*examples("Slipstream mini", told=True)}


async def test_the_last_reply_is_copied_clean(open_chat: Open) -> None:
    async with open_chat(Script("one \x1b[31mtwo")) as chat:
        await chat.press("ctrl+y")
        await chat.until(lambda: chat.toasts() == ["There is no reply to copy."])
        await chat.say("x")
        await chat.press("ctrl+y")
        assert chat.app.clipboard == "one ␛[31mtwo"


async def test_ctrl_c_stops_then_quits_when_pressed_twice(open_chat: Open) -> None:
    async with open_chat(Script(TEXT, hold=10)) as chat:
        await chat.begin("x", 10)
        await chat.press("ctrl+c")
        await chat.until(chat.idle)
        assert chat.engine.stopped == [1]
        chat.screen.prompt.put("some text")
        chat.screen.prompt.select_all()
        await chat.press("ctrl+c")
        assert chat.app.clipboard == "some text"
        chat.screen.prompt.put("kept")
        await chat.press("ctrl+c")
        await chat.until(lambda: chat.toasts()[-1:] == ["Cleared; Up brings it back."])
        assert chat.screen.prompt.text == ""
        await chat.press("up")
        assert chat.screen.prompt.text == "kept"
        await chat.press("ctrl+c", "ctrl+c")
        assert chat.app.is_running
        await chat.until(lambda: chat.toasts()[-1:] == ["Ctrl-C once more quits."])
        await chat.press("ctrl+c")
        await chat.until(lambda: not chat.app.is_running)


async def test_quitting_ends_the_engine_and_keeps_the_reply(open_chat: Open, store: ChatStore) -> None:
    async with open_chat(Script(TEXT, hold=10)) as chat:
        await chat.begin("x", 10)
        await chat.press("ctrl+q")
    assert chat.engine.closed
    kept = store.messages(store.list_chats()[0].id)[1]
    assert (kept.status, kept.reason) == ("done", "cancelled")
    assert TEXT.startswith(kept.content)


async def test_page_keys_scroll_and_new_text_does_not_pull_a_reader_down(open_chat: Open) -> None:
    text = "\n\n".join(f"Paragraph {number}." for number in range(30))
    async with open_chat(Script(text), Script(text, hold=100)) as chat:
        transcript = chat.screen.transcript
        await chat.say("x")
        assert transcript.is_vertical_scroll_end
        await chat.begin("y", 100)
        await chat.press("pageup", "pageup")
        at = transcript.scroll_y
        assert 0 < at < transcript.max_scroll_y
        chat.engine.go()
        await chat.until(chat.idle)
        assert transcript.scroll_y == at
        await chat.press("ctrl+home")
        assert transcript.scroll_y == 0
        await chat.press("ctrl+end")
        await chat.until(lambda: transcript.is_vertical_scroll_end)
        await chat.press("pageup", "pagedown", "pagedown")
        await chat.until(lambda: transcript.is_vertical_scroll_end)
