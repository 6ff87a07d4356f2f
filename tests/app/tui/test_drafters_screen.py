"""The list of drafters: what it shows, what it refuses, and what the status line says of who drafts."""

from dataclasses import replace

import pytest
from tests.app.tui.conftest import Open
from tests.app.tui.driver import Driver
from tests.app.tui.scripted import LOADED, Script, ScriptedEngine
from textual.widgets import OptionList

from slipstream.app.engine.protocol import DrafterOffer, Stepped
from slipstream.app.tui.screens.drafters import DraftersScreen

WHY = "it needs indexed text, and there is none: slipstream drafters index FOLDER makes it of your own texts"
OFFERS = [
    DrafterOffer("none", True, about="plain decoding, nothing is guessed"),
    DrafterOffer("draft", True, about="a smaller model writes ahead"),
    DrafterOffer("lookahead", True, about="the model guesses phrases ahead of itself in the same pass"),
    DrafterOffer("retrieval", False, WHY, "what followed the same words in your past chats and files"),
]


def engine(*scripts: Script) -> ScriptedEngine:
    return ScriptedEngine(list(scripts) or [Script()], loaded=replace(LOADED, drafters=OFFERS))


def rows_from(chat: Driver, name: str) -> list[str]:
    """The rows of the screen from the one that a name begins."""
    lines = chat.shown().splitlines()
    return lines[next(at for at, line in enumerate(lines) if line.strip("│ ●").startswith(name)) :]


async def test_a_drafter_is_chosen_from_the_list_for_the_next_reply(open_chat: Open) -> None:
    async with open_chat(engine=engine()) as chat:
        await chat.press("ctrl+d")
        assert isinstance(chat.app.screen, DraftersScreen)
        assert chat.app.screen.query_one(OptionList).highlighted == 1
        for offer in OFFERS[:3]:
            assert offer.about in chat.shown()
        assert "● draft" in chat.shown()
        await chat.press("down", "enter")
        assert not isinstance(chat.app.screen, DraftersScreen)
        assert chat.screen.strip._next == "lookahead"
        await chat.say("x")
        assert [request.drafter for request in chat.engine.asked] == ["lookahead"]
        await chat.press("ctrl+d")
        assert "● lookahead" in chat.shown() and "● draft" not in chat.shown()


@pytest.mark.parametrize("size", [(80, 24), (140, 40), (40, 12)])
async def test_one_that_does_not_serve_says_why_and_cannot_be_chosen(open_chat: Open, size: tuple[int, int]) -> None:
    async with open_chat(engine=engine(), size=size) as chat:
        await chat.press("ctrl+d", "end")
        shown = " ".join(chat.shown().replace("│", " ").split())
        assert "retrieval it needs indexed" in shown
        assert all(word in shown for word in WHY.split())
        await chat.press("enter")
        assert isinstance(chat.app.screen, DraftersScreen)
        assert [n.message for n in chat.app._notifications] == ["retrieval cannot draft for this model."]
        await chat.press("escape")
        assert chat.screen._drafter == "draft"


async def test_what_cannot_be_chosen_is_dimmed(open_chat: Open) -> None:
    async with open_chat(engine=engine()) as chat:
        await chat.press("ctrl+d")
        brightness: dict[str, int] = {}
        for strip in chat.app.screen._compositor.render_strips():
            for segment in strip:
                name = segment.text.strip().split(" ")[0]
                if name in ("none", "lookahead", "retrieval") and segment.style and segment.style.color:
                    brightness.setdefault(name, sum(segment.style.color.get_truecolor()))
        assert brightness["none"] == brightness["lookahead"] > 1.5 * brightness["retrieval"]


async def test_reasons_stay_below_each_other_and_follow_the_width(open_chat: Open) -> None:
    async with open_chat(engine=engine()) as chat:
        await chat.press("ctrl+d")
        await chat.until(lambda: "drafters index FOLDER" in chat.shown())
        above, first, second, *_ = rows_from(chat, "lookahead")
        assert above.index("the model") == first.index("it needs") == second.index("drafters index")
        await chat.pilot.resize_terminal(140, 40)
        await chat.until(lambda: "slipstream drafters index FOLDER" in rows_from(chat, "retrieval")[0])


async def test_the_keys_of_the_list(open_chat: Open) -> None:
    async with open_chat(engine=engine()) as chat:
        for key in ("escape", "ctrl+d"):
            await chat.press("ctrl+d")
            assert isinstance(chat.app.screen, DraftersScreen)
            await chat.press("up", key)
            assert not isinstance(chat.app.screen, DraftersScreen)
        assert chat.screen._drafter == "draft"
        assert chat.screen.prompt.has_focus


async def test_while_the_model_loads_there_is_no_list_yet(open_chat: Open) -> None:
    held = ScriptedEngine(hold_load=True)
    async with open_chat(engine=held) as chat:
        await chat.press("ctrl+d")
        assert not isinstance(chat.app.screen, DraftersScreen)
        assert [n.message for n in chat.app._notifications] == ["The model is not loaded yet."]
        held.go_load()


async def test_a_chain_that_the_chat_began_with_can_be_chosen_again(open_chat: Open) -> None:
    async with open_chat(engine=engine(), drafter="lookup+draft") as chat:
        await chat.press("f2")
        assert chat.screen._drafter == "none"
        await chat.press("ctrl+d")
        assert "lookup+draft  what this chat began with" in chat.shown()
        await chat.press("home", "enter")
        assert chat.screen._drafter == "lookup+draft"


async def test_the_status_line_says_who_of_a_chain_is_at_work(open_chat: Open) -> None:
    async with open_chat(engine=engine(), drafter="lookup+draft") as chat:
        strip = chat.screen.strip
        strip.begin("lookup+draft")
        for drafter, label in (
            ("none", "drafter"),
            ("lookup", "now: lookup"),
            ("draft", "now: draft"),
            ("none", "now: draft"),
        ):
            strip.step(Stepped(1, [], [1], drafter, 0, 0, 1.0, strip._speed))
            await chat.pilot.pause()
            assert label in chat.shown().splitlines()[-2]
        strip.end(strip._speed, 1.0)
        await chat.pilot.pause()
        assert "now:" not in chat.shown()
        strip.begin("draft")
        strip.step(Stepped(1, [], [1], "draft", 0, 0, 1.0, strip._speed))
        await chat.pilot.pause()
        assert "now:" not in chat.shown()  # alone, it has been named already


@pytest.mark.parametrize("size", [(140, 40), (80, 24), (60, 12), (40, 12)])
async def test_typical_acceptance_is_marked_on_the_status_line(open_chat: Open, size: tuple[int, int]) -> None:
    async with open_chat(size=size, typical=0.09) as chat:
        await chat.say("x")
        bottom = " ".join(chat.shown().splitlines()[-3:])
        assert "typical" in bottom and "changes the text" in bottom
        assert "same text" not in bottom
        assert "typical: changes the text" in chat.footnote()
        assert [request.sampling.typical for request in chat.engine.asked] == [0.09]
    async with open_chat(size=size) as chat:
        await chat.say("x")
        assert "changes the text" not in chat.shown()
        assert "typical" not in chat.footnote()
