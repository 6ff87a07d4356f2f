"""Text from elsewhere is only text, wherever it is shown."""

import unicodedata
from pathlib import Path

import pytest
from tests.app.hostile import leaks, on_a_terminal, text
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
    "<think>hm</think> <div onclick='x'>seen</div>\n<!-- seen too -->", ">" * 400 + " deep", "- " * 300 + "deep",
    "[" * 2000, "*" * 2000 + "_" * 2000, "# " * 50 + "\n" + "```" * 99, "a" * 20_000, "e" + "\u0301" * 3000,
    "|" * 500 + "\n" + "|-" * 500, "![](javascript:alert(1)) [x](file:///etc/passwd) <http://e.vil>",
    "1. a\n   1. b\n\n999999999. c\n0. d", "[^1]: x\n\n[ref]: http://e.vil 'title'\n\n[ref]",
    "---\n===\n***\n\t\tcode\n    code\n",
]  # fmt: skip


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
            assert "[@click=app.exit()]click[/]" in shown and "[/b] [b]bold[/b]" in shown
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


CHAT = r"""
import sys
from dataclasses import replace
from pathlib import Path
from tests.app.hostile import PAYLOADS
from tests.app.tui.driver import Driver
from tests.app.tui.scripted import LOADED, Script, ScriptedEngine
from tests.app.tui.scripted_models import ScriptedModels, model
from slipstream.app.chats.store import ChatStore
from slipstream.app.protocol.events import DrafterOffer
from slipstream.app.protocol.requests import Load
from slipstream.app.tui.app import ChatApp
from slipstream.models.errors import ContextFullError

payloads = ["AB"] if sys.argv[2] == "harmless" else PAYLOADS

def marked(place):
    return [f"{place}Q{number:02d} {payload} " for number, payload in enumerate(payloads)]

def all_of(place):
    return "".join(marked(place))

REPLY = (
    "# " + all_of("hdg") + "\n\n- " + all_of("lst") + "\n\n> " + all_of("quo")
    + "\n\n**" + all_of("bld").strip() + "**\n\n| a |\n|---|\n| " + all_of("tab") + "|\n\n`" + all_of("cod")
    + "`\n\n" + "".join(f"[{one}](http://e.vil) " for one in marked("lnk"))
    + "\n\n```py" + payloads[0] + "\n" + "\n".join(marked("fen")) + "\n```\n\n&#x202E;&#xE0041;&#27;[2J&#155;2J"
)
store = ChatStore(Path(sys.argv[1]) / "chats.db")
for title in marked("ttl"):
    store.rename(store.create().id, title[:200])
kept = store.create().id
store.add_user(kept, all_of("qst"))
reply = store.begin_reply(kept, model="m", fingerprint="f1", drafter="draft", seed=1)
store.finish_reply(reply.id, text=REPLY, tokens=[1], reason="stop")
offers = [DrafterOffer("none", True), *(DrafterOffer(name, True) for name in marked("drf")[::2])]
offers += [DrafterOffer(f"x{number}", False, why) for number, why in enumerate(marked("why")[1::2])]
first = payloads[0]
loaded = replace(LOADED, name=first, architecture=first, device=first, drafters=offers)
error = ContextFullError(all_of("err"), all_of("hnt"))
engine = ScriptedEngine([Script(all_of("par")), Script(fails=error)], loaded=loaded)
models = ScriptedModels(here=[model(name, 1000) for name in marked("mdl")])
app = ChatApp(engine, Load("mini.gguf", drafter="draft"), store, kept, models=lambda: models)

async def scenario(pilot):
    chat = Driver(app, pilot, engine, store, [])
    await chat.until(lambda: chat.screen.model.loaded is not None)
    await chat.say("y")
    await chat.press("f3")
    await chat.pilot.pause()
    await chat.press("f3")
    await chat.pilot.pause()
    for key, place in (("ctrl+o", "ttl"), ("ctrl+d", "drf"), ("ctrl+l", "mdl")):
        await chat.press(key)
        await chat.until(lambda: all(f"{place}Q{n:02d}" in chat.shown() for n in range(0, len(payloads), 2)))
        if place == "drf" and not offers[-1].usable:
            await chat.press("end", "enter")  # unfolds the drafters that are not for this model
            await chat.until(lambda: "whyQ01" in chat.shown())
        await chat.press("escape")
        await chat.pilot.pause()
    await chat.say("x")
    await chat.until(lambda: bool(chat.notices()))
    app.exit(0)

app.run(auto_pilot=scenario)
store.close()
sys.exit(app.return_code)
"""
PLACES = (
    "par", "hdg", "lst", "quo", "bld", "tab", "cod", "lnk", "fen", "qst", "err", "hnt", "ttl", "drf", "why", "mdl",
)  # fmt: skip


@pytest.mark.program
def test_on_a_terminal_every_case_is_shown_and_nothing_comes_through(tmp_path: Path) -> None:
    lines, sent = {"harmless": 50, "hostile": 200}, dict[str, bytes]()
    for kind, count in lines.items():
        home = tmp_path / kind
        home.mkdir()
        sent[kind] = on_a_terminal(CHAT, str(home), kind, size=(160, count), home=home)
    assert leaks(sent["hostile"], sent["harmless"]) == []
    shown = text(sent["hostile"])
    for place in PLACES:
        numbers = {"drf": range(0, 40, 2), "why": range(1, 40, 2)}.get(place, range(40))
        missing = [number for number in numbers if f"{place}Q{number:02d}" not in shown]
        assert len(missing) <= (place in ("err", "hnt")), place  # there, one may be cut where the line ends
