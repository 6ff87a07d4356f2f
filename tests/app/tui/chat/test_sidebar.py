"""The list of chats: open, search, rename, pin, delete and bring back, export."""

import json
import time
from pathlib import Path

import pytest
from tests.app.tui.conftest import Open
from tests.app.tui.driver import Driver
from tests.app.tui.scripted import Script
from tests.app.tui.test_input_guard import at
from textual import events
from textual.widgets import Input, OptionList

from slipstream.app.chats.records import StoredChat
from slipstream.app.chats.store import ChatStore
from slipstream.app.tui.chat.sidebar import WIDE, chat_rows, section
from slipstream.app.tui.parts.dialogs import LineScreen


def kept(store: ChatStore, question: str, answer: str) -> str:
    chat = store.create().id
    store.add_user(chat, question)
    reply = store.begin_reply(chat, model="m", fingerprint="f1", drafter="lookup", seed=1)
    store.finish_reply(reply.id, text=answer, tokens=[1], reason="stop")
    return chat


def rows(chat: Driver) -> list[str]:
    options = chat.screen.sidebar.query_one(OptionList)
    return [str(option.prompt).strip(" ▌") for option in options.options if not option.disabled]


def hints(chat: Driver) -> str:
    return "\n".join(chat.toasts())


def searching(chat: Driver) -> Input:
    return chat.screen.sidebar.query_one(Input)


@pytest.mark.slow
async def test_the_list_opens_a_chat(open_chat: Open, store: ChatStore) -> None:
    kept(store, "About foxes", "Fox."), kept(store, "About the sea", "Sea.")
    async with open_chat() as chat:
        assert not chat.screen.sidebar.display
        await chat.press("ctrl+o")
        assert rows(chat) == ["About the sea", "About foxes"]
        assert "Today" in chat.shown() and "Rename" in chat.shown()
        await chat.press("down", "enter")
        await chat.until(lambda: chat.texts() == ["About foxes", "Fox."])
        assert not chat.screen.sidebar.display and chat.screen.prompt.has_focus
        await chat.press("ctrl+o")
        assert "▌ About foxes" in chat.shown()
        await chat.press("up", "escape")
        await chat.until(lambda: chat.screen.prompt.has_focus)
        assert chat.texts() == ["About foxes", "Fox."]


@pytest.mark.slow
async def test_it_has_a_place_of_its_own_on_a_wide_screen(open_chat: Open, store: ChatStore) -> None:
    kept(store, "About foxes", "Fox.")
    async with open_chat(size=(WIDE, 30)) as chat:
        sidebar = chat.screen.sidebar
        assert sidebar.display and chat.screen.prompt.has_focus
        assert chat.screen.transcript.region.x >= sidebar.region.right
        await chat.say("About owls")
        assert rows(chat) == ["About owls", "About foxes"]
        await chat.press("ctrl+o")
        assert searching(chat).has_focus
        await chat.press("ctrl+o")
        assert not sidebar.display and chat.screen.prompt.has_focus
        await chat.press("ctrl+o")
        assert sidebar.display and searching(chat).has_focus
        await chat.press("escape")
        assert sidebar.display and chat.screen.prompt.has_focus
        await chat.pilot.resize_terminal(80, 24)
        await chat.until(lambda: not sidebar.display)
        await chat.pilot.resize_terminal(WIDE, 30)
        await chat.until(lambda: sidebar.display)


async def test_words_are_found_in_every_branch_of_every_chat(open_chat: Open, store: ChatStore) -> None:
    foxes = kept(store, "What do they eat?", "Foxes like voles and berries.")
    asked = store.messages(foxes)[0].id
    store.finish_reply(
        store.begin_reply(foxes, model="m", fingerprint="f1", drafter="none", seed=2, parent=asked).id, text="Otters."
    )
    kept(store, "About the sea", "Wide.")
    async with open_chat() as chat:
        await chat.press("ctrl+o", *"vol")
        await chat.until(lambda: len(rows(chat)) == 1)
        (row,) = rows(chat)
        assert row.splitlines()[0] == "What do they eat?" and "Foxes like voles" in row
        (option,) = chat.screen.sidebar.query_one(OptionList).options
        marked = [span for span in option.prompt.spans if "bold" in str(span.style)]  # type: ignore[union-attr]
        assert [str(option.prompt)[span.start : span.end] for span in marked] == ["voles"]
        await chat.press("enter")
        await chat.until(lambda: chat.texts() == ["What do they eat?", "Foxes like voles and berries."])
        assert "‹ 1/2 ›" in chat.shown()
        await chat.press("ctrl+o")
        assert searching(chat).value == ""
        await chat.press(*"xyzzy")
        await chat.until(lambda: "No matches" in chat.shown())
        await chat.press("enter", "ctrl+r", "escape")
        await chat.until(lambda: len(rows(chat)) == 2)
        assert searching(chat).has_focus
        await chat.press(*"fox", "home", "delete")
        assert searching(chat).value == "ox"
        await chat.press("shift+end", "ctrl+x")  # what is searched for is cut before a chat
        assert searching(chat).value == "" and len(store.list_chats()) == 2


async def test_rename_and_pin(open_chat: Open, store: ChatStore) -> None:
    foxes, _ = kept(store, "About foxes", "Fox."), kept(store, "About the sea", "Sea.")
    async with open_chat(chat=foxes) as chat:
        await chat.press("ctrl+o", "ctrl+t")
        await chat.until(lambda: rows(chat)[0] == "About foxes")
        assert "Pinned" in chat.shown()
        assert store.list_chats()[0].id == foxes
        await chat.press("ctrl+r")
        chat.on(LineScreen).query_one(Input).value = "Waves"
        await chat.press("enter")
        await chat.until(lambda: rows(chat)[0] == "Waves")
        assert "Waves" in chat.shown().splitlines()[0]
        assert store.get(foxes).title == "Waves"
        await chat.press("ctrl+t")
        await chat.until(lambda: rows(chat)[0] == "About the sea")


async def test_delete_and_bring_back(open_chat: Open, store: ChatStore) -> None:
    foxes, sea = kept(store, "About foxes", "Fox."), kept(store, "About the sea", "Sea.")
    async with open_chat(chat=foxes) as chat:
        await chat.press("ctrl+o", "ctrl+x")
        await chat.until(lambda: rows(chat) == ["About the sea"])
        assert chat.texts() == []  # the open chat was deleted: a new one begins
        assert hints(chat) == "Deleted “About foxes”. Ctrl-Z brings it back." and searching(chat).has_focus
        await chat.press("ctrl+z")
        await chat.until(lambda: rows(chat) == ["About the sea", "About foxes"])
        assert [m.content for m in store.messages(foxes)] == ["About foxes", "Fox."]
        await chat.press("ctrl+z")
        await chat.until(lambda: "No chat can be brought back" in hints(chat))
        await chat.press("delete")
        await chat.until(lambda: rows(chat) == ["About foxes"])
        store.erase_deleted(0)  # a minute later
        await chat.press("ctrl+z")
        await chat.until(lambda: "No chat can be brought back" in hints(chat))
        assert not store.restore(sea)


async def test_a_chat_that_is_being_written_is_stopped_before_it_is_deleted(open_chat: Open, store: ChatStore) -> None:
    async with open_chat(Script("one two three four five six seven", hold=5)) as chat:
        await chat.begin("x", 5)
        await chat.press("ctrl+o", "ctrl+x")
        await chat.until(lambda: chat.idle() and chat.texts() == [])
        assert chat.engine.stopped and not store.list_chats()


@pytest.mark.parametrize("name", ["notes.md", "notes.json"])
async def test_export(open_chat: Open, store: ChatStore, tmp_path: Path, name: str) -> None:
    foxes = kept(store, "About foxes", "Fox.")
    async with open_chat(chat=foxes) as chat:
        await chat.press("ctrl+o", "ctrl+s")
        line = chat.app.screen.query_one(Input)
        assert line.value == str(Path.cwd() / "about-foxes.md")
        line.value = str(tmp_path / name)
        await chat.press("enter")
        await chat.until((tmp_path / name).exists)
        text = (tmp_path / name).read_text("utf-8")
        if name.endswith("json"):
            assert json.loads(text)["chats"][0]["id"] == foxes
        else:
            assert text.startswith("# About foxes\n")
        await chat.press("ctrl+s")
        chat.app.screen.query_one(Input).value = str(tmp_path / name)
        await chat.press("enter")
        await chat.until(lambda: "file exists" in hints(chat))


async def test_an_empty_list_says_so(open_chat: Open) -> None:
    async with open_chat() as chat:
        await chat.press("ctrl+o")
        assert "No chats yet" in chat.shown()
        await chat.press("enter", "ctrl+x", "delete", "ctrl+r", "ctrl+s", "ctrl+t", "ctrl+z", "down", "pageup")
        assert searching(chat).has_focus


def test_chats_of_one_title_are_told_apart_by_their_times() -> None:
    noon = time.mktime((2026, 3, 10, 12, 0, 0, 0, 0, -1))
    hours = {"a": ("Sea", 1), "b": ("Foxes", 2), "c": ("Sea", 3), "d": ("Sea", 24)}
    chats = [StoredChat(name, title, 0.0, noon - 3600 * ago, "") for name, (title, ago) in hours.items()]
    shown = [str(row.prompt) for row in chat_rows(chats, "b", noon) if not row.disabled]
    yesterday = time.strftime("%d %b", time.localtime(noon - 86400))
    assert shown == ["  11:00 Sea", "▌ Foxes", "  09:00 Sea", f"  {yesterday} 12:00 Sea"]


def test_sections() -> None:
    noon = time.mktime((2026, 3, 10, 12, 0, 0, 0, 0, -1))
    hours = {0: "Today", 12: "Today", 13: "Yesterday", 36: "Yesterday", 37: "This week", 6 * 24: "This week"}
    hours |= {8 * 24: "March", 20 * 24: "February", 365 * 24: "March 2025"}
    for ago, name in hours.items():
        assert section(StoredChat("a", "", 0.0, noon - 3600 * ago, ""), noon) == name, ago
    assert section(StoredChat("a", "", 0.0, 0.0, "", pinned=True), noon) == "Pinned"


@pytest.mark.slow
async def test_a_chat_has_no_figures_of_another(open_chat: Open, store: ChatStore) -> None:
    other = kept(store, "About foxes", "Fox.")
    async with open_chat(Script("The sea is wide.")) as chat:
        await chat.say("About the sea")
        assert "tokens per step" in chat.shown() and chat.screen.status.speed.tokens
        here = chat.screen.conversation.chat
        assert here
        await chat.press("ctrl+n")
        await chat.until(lambda: chat.texts() == [])
        assert "– tok/s" in chat.shown()
        await chat.say("More")
        assert "– tok/s" not in chat.shown()
        await chat.screen.chats.open(other, None)
        await chat.until(lambda: "– tok/s" in chat.shown())
        assert chat.texts() == ["About foxes", "Fox."]


async def test_a_click_on_a_row_that_has_just_gone_does_nothing(open_chat: Open, store: ChatStore) -> None:
    for number in range(4):
        kept(store, f"question {number}", "answer")
    async with open_chat(size=(120, 30)) as chat:
        options = chat.screen.sidebar.query_one(OptionList)
        await chat.until(lambda: options.option_count > 4)
        for kind in (events.MouseDown, events.MouseUp):
            chat.app.post_message(at(kind, options.region.x + 4, options.region.y + 4))
        chat.app.call_later(options.clear_options)
        await chat.pilot.pause()
        assert chat.alive and not chat.toasts()
