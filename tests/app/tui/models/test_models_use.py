"""Models in the running chat: another one takes over, the first one is offered, and what is here is kept in order."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.app.tui.conftest import Open
from tests.app.tui.driver import Driver
from tests.app.tui.models.test_models_screen import at_models, opened, under
from tests.app.tui.scripted import Script, ScriptedEngine
from tests.app.tui.scripted_models import INSTALLED as MODELS
from tests.app.tui.scripted_models import OFFERS, QWEN, SMALL, ScriptedModels, model
from textual.widgets import Input, Static

from slipstream.app.chats.records import Figures
from slipstream.app.chats.store import ChatStore
from slipstream.app.speed import Speed
from slipstream.app.tui.chat.screen import ChatScreen
from slipstream.app.tui.models.listing import DOWNLOADS, RECOMMENDED
from slipstream.app.tui.models.pairs import PairsScreen
from slipstream.app.tui.models.screen import ImportScreen
from slipstream.app.tui.parts.dialogs import ConfirmScreen, completed
from slipstream.models.errors import SlipstreamError


async def use(chat: Driver, name: str = QWEN.name) -> None:
    screen = await opened(chat)
    screen.browser.rows.highlighted = screen.listing.installed.find(name)
    loads = len(chat.engine.loads)
    await chat.press("enter")
    await chat.until(lambda: chat.app.screen is chat.screen and len(chat.engine.loads) > loads)


async def test_another_model_goes_on_with_the_chat(open_chat: Open) -> None:
    models = ScriptedModels()
    async with open_chat(models=models) as chat:
        await chat.say("first")
        await opened(chat)
        await chat.press("home", "enter")  # the one in use
        assert chat.on(ChatScreen) and len(chat.engine.loads) == 1
        await use(chat)
        assert chat.engine.loads[1].model == str(QWEN.path)
        await chat.until(lambda: chat.screen.model.loaded is not None)
        assert chat.screen.model.drafter == "lookup"
        await chat.until(lambda: models.called("make_usual") == [QWEN.name])  # at the next start, too
        await chat.say("second")
        assert [message.content for message in chat.engine.asked[1].messages[::2]] == ["first", "second"]
        assert chat.engine.asked[1].drafter == "lookup" and chat.texts()[0] == "first"


async def test_a_reply_that_is_being_written_is_kept_first(open_chat: Open) -> None:
    async with open_chat(Script(hold=3), Script()) as chat:
        await chat.say("first", wait=False)
        await chat.held("The ")
        await use(chat)
        assert chat.engine.stopped == [chat.engine.asked[0].request] and chat.texts() == ["first", "The "]
        assert "stopped" in chat.footnote()
        await chat.until(lambda: chat.screen.model.loaded is not None)
        await chat.say("second")
        assert [message.content for message in chat.engine.asked[1].messages] == ["first", "The ", "second"]


async def test_a_model_that_is_chosen_while_one_loads_comes_next(open_chat: Open) -> None:
    engine = ScriptedEngine(hold_load=True)
    async with open_chat(engine=engine) as chat:
        screen = await opened(chat)
        screen.browser.rows.highlighted = screen.listing.installed.find(QWEN.name)
        await chat.press("enter")
        await chat.until(lambda: chat.app.screen is chat.screen)
        assert len(engine.loads) == 1
        engine.go_load()
        await chat.until(lambda: len(engine.loads) == 2 and chat.screen.model.loaded is not None)
        assert engine.loads[1].model == str(QWEN.path)
        await chat.until(chat.idle)
        await chat.say("x")
        assert engine.asked[0].drafter == "lookup"


async def test_a_model_that_cannot_be_loaded_gives_way_to_the_one_before(open_chat: Open) -> None:
    models = ScriptedModels()
    async with open_chat(models=models) as chat:
        await chat.say("first")
        chat.engine.load_fails.append(SlipstreamError("there is no memory for it.", "Use a smaller one."))
        await use(chat)
        await chat.until(lambda: len(chat.engine.loads) == 3 and chat.screen.model.loaded is not None)
        assert chat.engine.loads[2].model == "mini.gguf"
        assert any("There is no memory for it." in notice for notice in chat.notices())
        assert any("Going back to slipstream-mini" in notice for notice in chat.notices())
        await chat.say("second")
        assert chat.engine.asked[1].drafter == "draft"
        assert not models.called("make_usual")


async def test_all_drafters_of_a_model_are_told_and_one_key_fetches_one(open_chat: Open) -> None:
    async with at_models(open_chat) as (chat, screen, models):
        await chat.press("down", "d")
        assert isinstance(chat.app.screen, PairsScreen)
        told = ("● qwen3-0.6b:Q8_0", "1.7x measured here", "↓ qwen3-4b eagle3", "fetch 480 MB", "it is larger")
        await chat.until(lambda: all(text in chat.shown() for text in told))
        assert "A drafter of at most 1B parameters pays." in chat.shown()
        await chat.press("end", "enter")
        assert isinstance(chat.app.screen, PairsScreen)
        assert any("cannot guess for this model" in word for word in chat.toasts())
        await chat.press("up", "enter")
        await chat.until(lambda: screen.listing.tab == DOWNLOADS and chat.app.screen is screen)
        assert models.called("fetch_file") == ["AngelSlim/Qwen3-4B_eagle3"]
        await chat.press("1", "d", "enter")
        await chat.until(lambda: len(chat.engine.loads) == 2)
        assert models.called("load_of") == [(QWEN.name, SMALL.name)]


async def test_verifying_shows_how_far_it_is_and_can_be_stopped(open_chat: Open) -> None:
    async with at_models(open_chat, holds={"verify"}) as (chat, screen, models):
        await chat.press("down", "v")
        await chat.until(lambda: "25 % verified" in chat.shown())
        await chat.press("v")
        assert "verified" not in chat.shown()
        models.go("verify")
        models.holds.clear()
        await chat.press("v")
        await chat.until(lambda: any("every byte is right" in word for word in chat.toasts()))
        assert not screen.listing.installed.verifying


async def test_removing_says_what_it_frees_and_can_be_undone(open_chat: Open) -> None:
    async with at_models(open_chat) as (chat, screen, models):
        await chat.press("down", "x")
        await chat.until(lambda: isinstance(chat.app.screen, ConfirmScreen))
        asked = str(chat.app.screen.query_one(".detail", Static).content)
        assert "Remove “qwen3-4b:Q4_K_M”?" in chat.shown() and "the system's trash, 2.5 GB" in asked
        assert "It wrote in 2 chats, which stay: “On the sea”, “A fox”" in asked
        await chat.press("escape")
        assert not models.called("remove")
        await chat.press("x")
        await chat.until(lambda: isinstance(chat.app.screen, ConfirmScreen))
        await chat.press("y")
        await chat.until(lambda: len(screen.listing.installed.rows) == len(MODELS) - 1)
        assert "qwen3-4b" not in chat.shown().splitlines()[6]
        await chat.press("u")
        await chat.until(lambda: len(screen.listing.installed.rows) == len(MODELS))
        assert any("qwen3-4b:Q4_K_M is here again" in word for word in chat.toasts())
        await chat.press("u")
        await chat.until(lambda: any("Nothing was removed" in word for word in chat.toasts()))


@pytest.mark.parametrize(
    "row, why", [(0, "is in use"), (3, "Another program keeps this model"), (4, "Another program keeps this model")]
)
async def test_what_is_not_ours_or_in_use_stays(open_chat: Open, row: int, why: str) -> None:
    async with at_models(open_chat) as (chat, screen, models):
        screen.browser.rows.highlighted = row
        await chat.press("x")
        assert any(why in word for word in chat.toasts())
        assert not models.called("removal")


@pytest.mark.parametrize("key, how", [("enter", "link"), ("ctrl+y", "copy")])
async def test_a_file_is_imported_from_a_path(open_chat: Open, tmp_path: Path, key: str, how: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine.gguf").write_bytes(b"x")
    async with at_models(open_chat, holds={"import"}) as (chat, screen, models):
        await chat.press("i")
        line = chat.on(ImportScreen).query_one(Input)
        line.value = f"{tmp_path}/fo"
        await chat.until(lambda: line._suggestion.endswith("/folder/"))
        await chat.press("right")
        line.value = str(tmp_path / "folder" / "mien.gguf")
        await chat.press(key)
        problem = chat.on(ImportScreen).query_one(".problem", Static)
        await chat.until(lambda: "mien.gguf: no such file or folder." in str(problem.content))
        assert not models.called("import")
        line.value = str(tmp_path / "folder" / "mine.gguf")
        await chat.press(key)
        await chat.until(lambda: "Taking in mine.gguf: 50 %" in chat.shown())
        models.go("import")
        await chat.until(lambda: len(screen.listing.installed.rows) == len(MODELS) + 1)
        assert "Taking in" not in chat.shown() and screen.browser.key == screen.listing.installed.rows[-1].name
        assert models.called("import") == [(tmp_path / "folder" / "mine.gguf", how)]


def test_paths_complete_to_folders_and_models_alone(tmp_path: Path) -> None:
    for name in ("notes.txt", "b.gguf", ".hidden.gguf"):
        (tmp_path / name).write_bytes(b"x")
    assert completed(f"{tmp_path}/") == f"{tmp_path}/b.gguf"
    assert completed(f"{tmp_path}/n") is None
    assert completed(f"{tmp_path}/.h") == f"{tmp_path}/.hidden.gguf"
    assert completed(f"{tmp_path}/no/such/") is None
    assert completed("relative") is None
    assert completed("~nobody-of-that-name/x") is None


async def test_the_first_start_offers_a_model_and_one_key_fetches_and_uses_it(open_chat: Open) -> None:
    models = ScriptedModels(first=OFFERS[0])
    async with open_chat(models=models) as chat:
        await chat.until(lambda: "F6 fetches Qwen3-8B with its drafter, 5.7 GB" in chat.shown())
        assert {name for name, _ in models.calls} == {"offer"}  # nothing else was asked, and no network
        await chat.press("f6")
        await chat.until(lambda: len(models.queue) == 2)
        models.move("j0", 0.5)
        models.move("j1", 0.5)
        await chat.until(lambda: "↓ 50 %" in chat.shown())
        await chat.say("hello")  # it replies meanwhile
        models.move("j1", 1)
        models.move("j0", 1)
        await chat.until(lambda: chat.screen.picker.fetched is not None)
        assert "↓" not in chat.shown()
        await chat.press("f6")
        await chat.until(lambda: len(chat.engine.loads) == 2)
        assert chat.engine.loads[1].model == str(models.queue["j0"].path)
        await chat.press("f6")
        assert len(chat.engine.loads) == 2


async def test_the_offer_is_looked_for_again_when_the_machine_may_have_been_measured(open_chat: Open) -> None:
    speed = replace(OFFERS[0].speed, basis="assumed") if OFFERS[0].speed else None
    models = ScriptedModels(first=replace(OFFERS[0], speed=speed))
    async with open_chat(models=models, size=(80, 24)) as chat:
        before = [line for line in chat.shown().splitlines() if "Tell me a story about a kite." in line]
        await chat.until(lambda: "Far better, probably quick enough." in chat.shown())
        rows = chat.shown().splitlines()
        models.first = OFFERS[0]
        await opened(chat)
        await chat.press("escape")
        await chat.until(lambda: "Far better, and quick enough here." in chat.shown())
        models.first = None  # measured, it is too slow
        await opened(chat)
        await chat.press("escape")
        await chat.until(lambda: "F6" not in chat.shown() and "Tell me a story about a kite." in chat.shown())
        kept = chat.shown().splitlines()
        at = next(n for n, row in enumerate(rows) if "Tell me a story about a kite." in row)
        assert kept[at] == rows[at] == before[0]  # nothing moves


async def test_the_model_in_use_is_not_offered(open_chat: Open) -> None:
    models = ScriptedModels(first=replace(OFFERS[0], installed=SMALL.name))
    async with open_chat(models=models) as chat:
        await chat.until(lambda: "F6" in chat.screen.page.larger)
        chat.screen.prompt.put(f"/model {SMALL.name}")
        await chat.press("enter")
        await chat.until(lambda: len(chat.engine.loads) == 2 and len(models.called("offer")) == 2)
        await chat.until(lambda: "F6" not in chat.screen.page.larger)
        assert not chat.screen.picker.offers


async def test_where_there_is_nothing_to_offer_the_welcome_says_nothing(open_chat: Open) -> None:
    models = ScriptedModels(fails={"offer": SlipstreamError("no.", "")})
    async with open_chat(models=models) as chat:
        await chat.until(lambda: models.called("offer") == [None])
        await chat.press("f6", "ctrl+n")
        assert "F6" not in chat.shown() and not chat.toasts()
        await chat.press(*"/offer", "escape", "enter")
        await chat.until(lambda: "No model is suggested now. Ctrl-L lists all." in chat.toasts())
        assert models.called("offer") == [None]


async def test_offline_the_key_says_so_and_nothing_else_happens(open_chat: Open) -> None:
    models = ScriptedModels(first=OFFERS[0], offline=True)
    async with open_chat(models=models) as chat:
        await chat.until(lambda: "F6 fetches" in chat.shown())
        await chat.press("f6")
        await chat.until(lambda: any("Slipstream is offline" in word for word in chat.toasts()))
        assert not models.queue


@pytest.mark.parametrize("size", [(40, 12), (80, 24), (140, 40)])
async def test_the_offer_leaves_room_for_the_rest(open_chat: Open, size: tuple[int, int]) -> None:
    async with open_chat(models=ScriptedModels(first=OFFERS[4]), size=size) as chat:
        await chat.until(lambda: "F6 fetches" in chat.shown())
        assert "See it guess: Tell me a story" in chat.shown() and chat.screen.prompt.size.height >= 1


async def test_a_finished_download_is_told_in_the_chat(open_chat: Open) -> None:
    async with at_models(open_chat, RECOMMENDED) as (chat, screen, models):
        assert under(screen) == OFFERS[0].pair.id
        await chat.press("enter")
        await chat.until(lambda: len(models.queue) == 2)
        await chat.press("escape")
        await chat.until(lambda: "↓ 0 %" in chat.shown())
        models.move("j0", 1)
        models.set_state("j1", state="failed", error=("the hub refused.", "Set HF_TOKEN."))
        await chat.until(lambda: any("Qwen3-8B-Q4_K_M is here. Ctrl-L lists it." in word for word in chat.toasts()))
        await chat.until(
            lambda: any("Qwen3-0.6B-Q8_0: the hub refused. Set HF_TOKEN." in word for word in chat.toasts())
        )
        await chat.until(lambda: "↓" not in chat.shown())


async def test_a_chat_names_the_models_that_wrote_it_and_f6_loads_the_last(open_chat: Open, store: ChatStore) -> None:
    old = store.create().id
    for writer in ("heron", "heron", "tern"):
        store.add_user(old, "Which bird?")
        reply = store.begin_reply(old, model=writer, fingerprint=writer, drafter="none", seed=1)
        store.finish_reply(reply.id, text="A bird.", figures=Figures(Speed(9.0, tokens=3)))
    here = [model("qwen3-0.6b", 640_000_000), model("tern", 12_000_000, fingerprint="tern")]
    async with open_chat(chat=old, models=ScriptedModels(here=here)) as chat:
        said = "i The last reply is by tern; slipstream-mini writes the next.\n  F6 loads tern."
        await chat.until(lambda: said in chat.notices())
        notes = [chat.footnote(at) for at in range(3)]
        begins = ("by heron · 9.0 tok/s", "9.0 tok/s", "by tern · 9.0 tok/s")
        assert all(note.startswith(begin) for note, begin in zip(notes, begins, strict=True))
        chat.engine.hold_load = True
        await chat.press("f6")
        await chat.until(lambda: len(chat.engine.loads) == 2)
        chat.engine.go_load()
        await chat.until(chat.idle)
        assert chat.engine.loads[1].model == str(here[1].path) and "text identical" not in chat.shown()
        await chat.say("And now?")
        assert "text identical" in chat.shown()
        assert chat.footnote().startswith("by slipstream-mini · ")
        assert store.messages(old)[-1].writer == "slipstream-mini"
