"""Text from elsewhere is only text, wherever it is shown."""

import unicodedata

import pytest
from tests.app.tui.conftest import Open
from tests.app.tui.driver import Driver
from tests.app.tui.pictures import drawn
from tests.app.tui.scripted import Script, ScriptedEngine
from textual.widgets import Markdown

from slipstream.app.chats.store import ChatStore
from slipstream.app.platform.safe_text import MOST_MARKS, typed
from slipstream.app.protocol.events import DrafterOffer, Loaded, Piece
from slipstream.models.errors import ContextFullError, SlipstreamError

CONTROLS = (
    "\x1b]52;c;ZXZpbA==\x07 \x1b[2J\x1b[31mred\x1b[0m \x9b31m \x1b]8;;http://e.vil\x1b\\x\x1b]8;;\x1b\\ "
    "\u202egnol\x00\x7f"
)
MARKUP = "[/b] [b]bold[/b] [@click=app.exit()]click[/] [link=http://e.vil]l[/link] [1, 2] $primary [red"
HOSTILE = f"{CONTROLS} {MARKUP} \U000e0041"

ODD = [
    "<think>hm</think> <div onclick='x'>seen</div>\n<!-- seen too -->",
    ">" * 400 + " deep",
    "- " * 300 + "deep",
    "[" * 2000,
    "*" * 2000 + "_" * 2000,
    "# " * 50 + "\n" + "```" * 99,
    "a" * 20_000,
    "e" + "\u0301" * 3000,
    "|" * 500 + "\n" + "|-" * 500,
    "![](javascript:alert(1)) [x](file:///etc/passwd) <http://e.vil>",
    "1. a\n   1. b\n\n999999999. c\n0. d",
    "[^1]: x\n\n[ref]: http://e.vil 'title'\n\n[ref]",
    "---\n===\n***\n\t\tcode\n    code\n",
]


def assert_inert(chat: Driver) -> None:
    for strip in drawn(chat.app.screen):
        for segment in strip:
            for character in segment.text:
                assert unicodedata.category(character) not in ("Cc", "Cs"), repr(segment.text)
                assert character not in "\u202e\u2066\U000e0041\u200f", repr(segment.text)
            assert segment.style is None or not segment.style.link
            meta = segment.style.meta if segment.style else {}
            assert "exit" not in str(meta.get("@click", ""))


async def test_a_hostile_reply_and_question_are_shown_as_typed(open_chat: Open, store: ChatStore) -> None:
    text = (
        f"{HOSTILE}\ttab\n\n```python\n{CONTROLS}\n{MARKUP}\n```\n\n"
        f"| a | {MARKUP} |\n|---|---|\n| {CONTROLS} | b |\n\n# {HOSTILE}\n"
    )
    async with open_chat(Script(text), size=(120, 50)) as chat:
        await chat.say(HOSTILE + "\t.")
        assert_inert(chat)
        for coloured in (False, True):
            assert_inert(chat)
            shown = " ".join(chat.shown().split())
            assert "[@click=app.exit()]click[/]" in shown
            assert "[/b] [b]bold[/b]" in shown
            assert "␛]52;c;ZXZpbA==␇" in shown
            assert chat.replies()[0].coloured is coloured
            await chat.press("f3")
        kept = store.list_chats()[0]
        assert [m.content for m in store.messages(kept.id)] == [
            typed(HOSTILE) + "\t.",
            text,
        ]  # the store keeps the original
        await chat.press("ctrl+o")
        assert_inert(chat)
        await chat.press("ctrl+d")
        assert_inert(chat)
        assert chat.app.is_running


async def test_characters_that_markdown_spells_out_are_cleaned_too(open_chat: Open) -> None:
    spelt = "&#x202E;gnol &#xE0041; &#27;[31m &#155; &rlm; ![a&#x2066;b](u) [x&#8238;](http://e.vil '&#8238;')"
    text = f"{spelt}\n\n# {spelt}\n\n| {spelt} |\n|---|\n| {spelt} |\n\n> {spelt}\n\n```py&#x202E;\n{spelt}\n```\n"
    async with open_chat(Script(text), size=(120, 50)) as chat:
        await chat.say("x")
        assert "gnol" in chat.shown()
        assert_inert(chat)
        await chat.press("f3")
        assert_inert(chat)


async def test_marks_that_come_one_a_step_do_not_pile_up(open_chat: Open) -> None:
    async with open_chat(Script("x"), size=(60, 20)) as chat:
        await chat.say("x")
        reply = chat.replies()[0]
        for _ in range(40):
            reply.write([Piece("\u0301", "plain")])
        await reply.finish("")
        assert "\u0301" * (MOST_MARKS + 1) not in chat.shown()


async def test_hostile_names_and_errors_are_inert(open_chat: Open) -> None:
    offers = [DrafterOffer("none", True), DrafterOffer(HOSTILE, True), DrafterOffer("x", False, HOSTILE)]
    loaded = Loaded(HOSTILE, HOSTILE, 512, "f", HOSTILE, HOSTILE, offers, 1.0)
    engine = ScriptedEngine([Script(fails=ContextFullError(HOSTILE, HOSTILE))], loaded=loaded)
    engine.load_fails = [SlipstreamError(HOSTILE, HOSTILE)]
    async with open_chat(engine=engine, size=(140, 40)) as chat:
        assert_inert(chat)
        await chat.say("x")
        assert len(chat.notices()) == 1
        assert_inert(chat)
        await chat.press("f2", "f2")
        assert_inert(chat)
        assert "[@click=app.exit()]click[/]" in " ".join(chat.shown().split())


async def test_an_imported_question_is_inert_in_the_prompt_too(open_chat: Open, store: ChatStore) -> None:
    kept = store.create().id
    store.add_user(kept, HOSTILE)
    async with open_chat(chat=kept) as chat:
        assert_inert(chat)
        chat.screen.prompt.put_message(HOSTILE)
        await chat.pilot.pause()
        assert_inert(chat)
        assert chat.screen.prompt.text == typed(HOSTILE)


@pytest.mark.slow
async def test_odd_markdown_neither_fails_nor_hides(open_chat: Open) -> None:
    async with open_chat(*map(Script, ODD), Script("ok"), size=(60, 20)) as chat:
        for text in ODD:
            await chat.press("ctrl+n")
            await chat.say("x")
            assert chat.texts() == ["x", text]
            assert_inert(chat)
            if "seen" in text:
                assert all(word in chat.shown() for word in ("▸ thought", "<div onclick='x'>seen</div>", "seen too"))
        await chat.say("y")
        assert chat.texts()[-1] == "ok"


async def test_a_link_is_copied_and_not_opened(open_chat: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    async with open_chat(Script("See [this](http://e.vil/x).")) as chat:
        monkeypatch.setattr(chat.app, "open_url", lambda url, **_: opened.append(url))
        await chat.say("x")
        markdown = chat.replies()[0].query_one(Markdown)
        markdown.post_message(Markdown.LinkClicked(markdown, "http://e.vil/x"))
        await chat.until(lambda: chat.app.clipboard == "http://e.vil/x")
        assert opened == []
