"""The model manager: what it lists, finds and fetches, and that nothing stops it."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from tests.app.tui.conftest import Open
from tests.app.tui.driver import Driver
from tests.app.tui.scripted import LOADED, ScriptedEngine
from tests.app.tui.scripted_models import BUNDLED, GB, OFFERS, PAIRS, QWEN, ScriptedModels, fit
from textual import events
from textual.widgets import Markdown

from slipstream.app.library.offers import best_offer
from slipstream.app.tui.chat.screen import ChatScreen
from slipstream.app.tui.models.hub import LONGEST, MOST_CELLS, MOST_LINES, NONE, REST, RepoScreen, pieces
from slipstream.app.tui.models.installed import InstalledView, ModelFacts
from slipstream.app.tui.models.listing import DOWNLOADS, INSTALLED, RECOMMENDED, SEARCH
from slipstream.app.tui.models.machine import fit_block
from slipstream.app.tui.models.pairs import PairsScreen, RecommendedView
from slipstream.app.tui.models.screen import ModelsScreen
from slipstream.app.tui.parts.format import STYLES
from slipstream.models.errors import SlipstreamError
from slipstream.models.hub.types import QueuedDownload
from slipstream.models.memory.speed import Prediction


def manager(chat: Driver) -> ModelsScreen:
    screen = chat.screen.picker.manager
    assert screen is not None
    return screen


async def opened(chat: Driver, tab: int = INSTALLED) -> ModelsScreen:
    await chat.press("ctrl+l")
    screen = manager(chat)
    listing = screen.listing
    await chat.until(lambda: listing.installed.ready and listing.recommended.ready and chat.app.screen is screen)
    await chat.until(lambda: len(listing.installed.facts) == len(listing.installed.rows))
    screen.listing.go_to(tab)
    await chat.pilot.pause()
    return screen


@asynccontextmanager
async def at_models(
    open_chat: Open, tab: int = INSTALLED, size: tuple[int, int] = (80, 24), **scripted: Any
) -> AsyncIterator[tuple[Driver, ModelsScreen, ScriptedModels]]:
    models = ScriptedModels(**scripted)
    async with open_chat(models=models, size=size) as chat:
        yield chat, await opened(chat, tab), models


def under(screen: ModelsScreen) -> str | None:
    return screen.browser.key


async def search(chat: Driver, screen: ModelsScreen, text: str) -> None:
    screen.listing.line.value = text
    await chat.press("enter")
    await chat.until(lambda: screen.listing.search.ready)


@pytest.mark.slow
async def test_it_lists_what_is_here_and_marks_what_is_in_use(open_chat: Open) -> None:
    async with at_models(open_chat, size=(140, 40)) as (chat, screen, _):
        shown = chat.shown()
        seen = ("● bundled", "Installed (6)", "qwen3-0.6b 1.7x", "LM Studio", "Ollama", "✗ mistral-small", "up to 120")
        assert not [words for words in seen if words not in shown]
        assert shown.count("● bundled") == 1 and "● qwen3-4b" not in shown
        assert "NVIDIA RTX 4070: 12 GB of 13 GB free" in shown
        await chat.press("end")
        assert under(screen) == "mistral-small:Q4_K_M"
        await chat.until(lambda: "The file ends too early." in chat.shown())
        assert "Remove it and fetch it again." in chat.shown()
        await chat.pilot.resize_terminal(40, 12)
        await chat.until(lambda: "Remove it and fetch" not in chat.shown())
        await chat.press("shift+down", "shift+down")
        await chat.until(lambda: "Remove it and fetch" in chat.shown())
        await chat.press("shift+up", "shift+up", "shift+up", "escape")
        assert isinstance(chat.app.screen, ChatScreen) and chat.screen.prompt.has_focus


async def test_machines_are_asked_at_each_opening_except_those_that_serve_this_chat(open_chat: Open) -> None:
    models = ScriptedModels(others={"mac-mini": False, "box": True})
    engine = ScriptedEngine(loaded=replace(LOADED, machines=["mac-mini:50052"]))
    async with open_chat(engine=engine, models=models, size=(140, 40)) as chat:
        await opened(chat)
        await chat.until(lambda: "with mac-mini: in use by this chat · with box: 21 GB more" in chat.shown())
        await chat.press("escape")
        models.others["box"], known = False, len(models.called("fit_of"))
        await opened(chat)
        await chat.until(lambda: "with box: in use or gone" in chat.shown())
        await chat.until(lambda: len(models.called("fit_of")) == 2 * known)  # other memory: what fits is found anew
        assert models.called("look_again") == [("mac-mini:50052",)] * 2


@pytest.mark.parametrize(("gain", "colour", "words"), [(1.7, "gain", "1.7x faster"), (1.04, "even", "same speed")])
def test_a_gain_has_the_colour_and_the_words_of_what_it_is(gain: float, colour: str, words: str) -> None:
    view, pair = InstalledView(), replace(PAIRS[QWEN.name][0], gain=gain)
    view.rows, view.facts = [QWEN], {QWEN.name: ModelFacts(None, [pair])}
    cells = [column.cell(view.rows[0]) for column in view.columns]
    [cell] = [cell for cell in cells if "qwen3-0.6b" in cell.plain]
    assert cell.plain == f"qwen3-0.6b {gain:.1f}x" and [span.style for span in cell.spans] == [STYLES[colour]]
    assert f"{words}, measured here" in view.details(view.rows[0])[2].plain


def test_a_drafter_that_is_slower_here_is_not_named() -> None:
    view = InstalledView()
    view.rows, view.facts = [QWEN], {QWEN.name: ModelFacts(None, [replace(PAIRS[QWEN.name][0], gain=0.7)])}
    assert "–" in [column.cell(QWEN).plain for column in view.columns]
    assert "gained when they were measured" in view.details(QWEN)[2].plain


def test_the_model_in_use_is_never_too_big() -> None:
    view = InstalledView()
    view.rows, view.facts = (
        [BUNDLED, QWEN],
        {each.name: ModelFacts(fit("too big", 90), []) for each in (BUNDLED, QWEN)},
    )
    view.in_use = BUNDLED.fingerprint
    used, other = ("\n".join(block.plain for block in view.details(row)) for row in view.rows[:2])
    assert "● runs now" in used and "too big" not in used
    rest = ["The rest is for the system." in fit_block(fit(place, 2)).plain for place in ("gpu", "memory")]
    assert rest == [False, True]
    assert "✗ too big" in other


@pytest.mark.slow
async def test_keys_and_the_mouse_go_from_tab_to_tab(open_chat: Open) -> None:
    async with at_models(open_chat) as (chat, screen, _):
        await chat.press("tab")
        assert screen.listing.tab == RECOMMENDED and "★ Qwen3-8B" in chat.shown()
        await chat.press("tab")
        assert screen.listing.tab == SEARCH and screen.listing.line.has_focus
        await chat.press("tab", "tab")
        assert screen.listing.tab == INSTALLED
        await chat.press("shift+tab")
        assert screen.listing.tab == DOWNLOADS
        await chat.press("slash")
        assert screen.listing.tab == SEARCH and screen.listing.line.value == ""
        await chat.press("2")  # nothing is typed yet: a tab, as elsewhere
        assert screen.listing.tab == RECOMMENDED and not screen.listing.line.has_focus
        await chat.press("3", *"dvxui123")  # which are keys elsewhere
        assert screen.listing.tab == SEARCH and screen.listing.line.value == "dvxui123"
        await chat.pilot.click(screen.listing.tabs, offset=(24, 0))
        assert screen.listing.tab == RECOMMENDED
        await chat.pilot.click(screen.browser.rows, offset=(5, 1))
        assert under(screen) == OFFERS[1].pair.id
        assert chat.app.screen is screen  # the first click only moves the bar
        await chat.pilot.click(screen.browser.rows, offset=(5, 1))
        await chat.until(lambda: isinstance(chat.app.screen, ChatScreen))  # it is here already: it is used


@pytest.mark.slow
async def test_a_pair_of_the_catalogue_is_fetched_with_one_key(open_chat: Open) -> None:
    async with at_models(open_chat, RECOMMENDED) as (chat, screen, models):
        await chat.until(lambda: "best for this machine" in chat.shown())
        assert "With its drafter it needs 6.4 GB" in chat.shown()
        await chat.press("enter")
        await chat.until(lambda: len(models.queue) == 2 and screen.listing.tab == DOWNLOADS)
        assert models.called("fetch_pair") == [OFFERS[0].pair.id]


@pytest.mark.slow
async def test_what_does_not_run_here_is_not_recommended_and_the_rest_says_how_fast(open_chat: Open) -> None:
    twice = replace(OFFERS[1], pair=replace(OFFERS[1].pair, id="again", method="dflash"))
    shown = [*OFFERS, twice, replace(OFFERS[0], fit=None, pair=OFFERS[4].pair)]
    async with at_models(open_chat, RECOMMENDED, size=(140, 40), catalogue=shown) as (chat, screen, _):
        await chat.until(lambda: "Not shown: 1 model" in chat.shown())
        assert [offer.pair.id for offer in screen.listing.recommended.rows] == [offer.pair.id for offer in OFFERS[:4]]
        assert "Llama-3.3-70B" not in chat.shown()
        row = next(line for line in chat.shown().splitlines() if "★ Qwen3-8B" in line)
        assert "up to 60" in row
        assert "Expected here: up to 60 tokens a second" in chat.shown()
        await chat.pilot.resize_terminal(80, 24)
        await chat.until(lambda: "up to 60" in chat.shown() and "Qwen3-8B" in chat.shown())


def test_only_the_offer_that_f6_makes_has_the_star_and_a_busy_machine_is_named() -> None:
    slow, quick = Prediction(2.0), Prediction(8.0, "busy")
    untested = replace(OFFERS[1], speed=OFFERS[0].speed, pair=replace(OFFERS[1].pair, evidence="suggested"))
    offers = [replace(OFFERS[0], speed=slow), untested, replace(OFFERS[2], speed=quick)]
    view = RecommendedView()
    view.take(offers)
    assert best_offer(offers) == offers[2]
    assert [view.columns[0].cell(row).plain[0] for row in view.rows[:3]] == [" ", " ", "★"]
    details = ["\n".join(block.plain for block in view.details(row)) for row in view.rows[:3]]
    assert ["best for this machine" in each for each in details] == [False, False, True]
    assert ["about 8 tokens a second, roughly estimated" in " ".join(each.split()) for each in details] == [0, 0, 1]
    assert ["measured while the machine was busy" in each for each in details] == [False, False, True]
    view.take(offers[:2])
    assert not any("★" in view.columns[0].cell(row).plain for row in view.rows) and "None is recommended" in view.note


@pytest.mark.slow
async def test_a_search_finds_repositories_and_shows_strange_names_inert(open_chat: Open) -> None:
    async with at_models(open_chat, SEARCH, size=(140, 40)) as (chat, screen, models):
        await search(chat, screen, "qwen3")
        shown = chat.shown()
        for text in ("Qwen/Qwen3-8B-GGUF", "412k", "231", "gated", "7 months", "8.2B"):
            assert text in shown, text
        assert "[bold red]Qwen[/]␛[2J-evil" in shown and "\x1b" not in shown
        await chat.press("down", "down")
        await chat.until(lambda: "accept its licence" in chat.shown())
        assert "Downloads ▾" in chat.shown()
        await chat.press("ctrl+s")
        await chat.until(lambda: screen.listing.search.ready and "Likes ▾" in chat.shown())
        assert models.called("search") == [("qwen3", "downloads"), ("qwen3", "likes")]
        await search(chat, screen, "nothing")
        assert "Nothing was found" in chat.shown()


@pytest.mark.slow
async def test_only_the_answer_to_the_newest_question_is_shown(open_chat: Open) -> None:
    async with at_models(open_chat, SEARCH, holds={"search"}) as (chat, screen, models):
        screen.listing.line.value = "first"
        await chat.press("enter")
        await chat.until(lambda: "Asking the hub for “first”" in chat.shown())
        await chat.press("tab", "shift+tab")  # nothing waits for the hub
        screen.listing.line.value = "nothing"
        await chat.press("enter")
        await chat.until(lambda: len(models.called("search")) == 2)
        models.go("search")
        await chat.until(lambda: screen.listing.search.ready)
        await asyncio.sleep(0)
        assert screen.listing.search.asked == "nothing" and len(screen.listing.search.rows) == 0


@pytest.mark.slow
async def test_an_error_of_the_hub_is_shown_in_words_and_enter_asks_again(open_chat: Open) -> None:
    error = SlipstreamError("the hub cannot be reached.", "Try again later.")
    async with at_models(open_chat, SEARCH, fails={"search": error}) as (chat, screen, _):
        await search(chat, screen, "qwen3")
        assert "The hub cannot be reached." in chat.shown() and "Try again later." in chat.shown()
        await search(chat, screen, "qwen3")
        assert "Qwen/Qwen3-8B-GGUF" in chat.shown() and "cannot be reached" not in chat.shown()


@pytest.mark.slow
async def test_offline_says_so_at_once_and_searches_what_is_here(open_chat: Open) -> None:
    async with at_models(open_chat, offline=True) as (chat, screen, models):
        await chat.until(lambda: screen.listing.offline)
        await chat.press("slash")
        assert "Offline: the hub is not asked." in chat.shown()
        await chat.press(*"gemma")
        assert [model.name for model in screen.listing.here.rows] == ["gemma-3-12b-it:Q4_K_M"]
        await chat.press("enter")
        await chat.until(lambda: len(chat.engine.loads) == 2)
        assert "gemma" in chat.engine.loads[1].model
        assert not models.called("search")


@pytest.mark.slow
async def test_a_repository_shows_what_fits_and_fetches_it_with_its_drafter(open_chat: Open) -> None:
    async with at_models(open_chat, SEARCH) as (chat, screen, models):
        await search(chat, screen, "qwen3")
        await chat.press("enter")
        repo = chat.on(RepoScreen)
        await chat.until(lambda: len(repo.quants.rows) == 6)
        assert repo.browser.key == "Q4_K_M"  # the best for this machine
        for text in ("★ Q4_K_M", "● GPU", "◐ GPU + memory", "○ runs on the CPU", "✗ too big", "4 files", "32k"):
            assert text in chat.shown(), text
        await chat.press("end", "enter")
        assert chat.app.screen is repo and any("Q8_0 would fit" in word for word in chat.toasts())
        assert "Its drafter comes along: Qwen3-0.6B, 640 MB" in chat.shown()
        await chat.press("home", "enter")
        await chat.until(lambda: screen.listing.tab == DOWNLOADS and chat.app.screen is screen)
        assert models.called("fetch") == ["Q2_K"]
        assert [job.files[0].name for job in models.jobs()] == ["Qwen3-8B-Q2_K.gguf", "Qwen3-0.6B-Q8_0.gguf"]


async def test_a_model_comes_even_where_its_drafter_cannot(open_chat: Open) -> None:
    error = SlipstreamError("the drafter is gone from the hub.", "")
    async with at_models(open_chat, SEARCH, fails={"fetch_pair": error}) as (chat, screen, _):
        await search(chat, screen, "qwen3")
        await chat.press("enter")
        await chat.until(lambda: isinstance(chat.app.screen, RepoScreen) and chat.app.screen.browser.key == "Q4_K_M")
        await chat.press("enter")
        await chat.until(lambda: screen.listing.tab == DOWNLOADS and len(screen.listing.downloads.rows) == 1)
        await chat.until(lambda: any("The drafter is gone from the hub." in word for word in chat.toasts()))


async def test_the_card_is_shown_inert(open_chat: Open) -> None:
    async with at_models(open_chat, SEARCH) as (chat, screen, _):
        await search(chat, screen, "qwen3")
        await chat.press("enter")
        repo = chat.on(RepoScreen)
        await chat.until(lambda: "llama-cli" in repo.card.source)
        assert "llama-cli" not in chat.shown()
        await chat.press("c")
        await chat.until(lambda: "parameters" in chat.shown() and "llama-cli" in chat.shown())
        assert "[bold]not bold[/bold]" in chat.shown() and "␛[31mred" in chat.shown()
        repo.card.post_message(Markdown.LinkClicked(repo.card, "https://example.org/paper"))
        await chat.until(lambda: any("opens no links" in word for word in chat.toasts()))
        assert chat.app.clipboard == "https://example.org/paper"
        await chat.press("c", "escape")
        assert chat.app.screen is screen


async def test_downloads_show_how_far_they_are_and_obey(open_chat: Open) -> None:
    models = ScriptedModels()
    models.job("Qwen/Qwen3-8B-GGUF", "Qwen3-8B-Q4_K_M.gguf", 5 * GB)
    models.job("x/Split-GGUF", "Split-Q8_0-00001-of-00004.gguf", GB)
    async with open_chat(models=models) as chat:
        screen = await opened(chat, DOWNLOADS)
        models.move("j0", 0.5)
        await chat.until(lambda: "2.5 GB of 5.0 GB · 41 MB/s · 61 s left" in chat.shown())
        assert "50 %" in chat.shown() and "Downloads (2)" in chat.shown()
        assert under(screen) == "j1" and "Split-Q8_0 " in chat.shown()
        await chat.press("down", "enter")
        await chat.until(lambda: models.queue["j0"].state == "paused")
        await chat.until(lambda: "2.5 GB of 5.0 GB · paused" in chat.shown())
        await chat.press("enter")
        await chat.until(lambda: models.queue["j0"].state == "running")
        models.set_state("j0", state="failed", error=("the disk is full.", "Free 3 GB, then go on."))
        await chat.until(lambda: "Free 3 GB, then go on." in chat.shown())
        await chat.press("enter")
        await chat.until(lambda: models.queue["j0"].state == "running")
        await chat.press("up", "x")
        assert "Give up fetching “Split-Q8_0”?" in chat.shown()
        await chat.press("n")
        assert models.queue["j1"].state == "running"
        await chat.press("x", "y")
        await chat.until(lambda: [job.id for job in screen.listing.downloads.rows] == ["j0"])
        assert any("Gave up Split-Q8_0" in word for word in chat.toasts())
        models.move("j0", 1)
        await chat.until(lambda: "checked and installed" in chat.shown() and "Installed (7)" in chat.shown())
    assert models.called("close") == [None]  # which pauses them


@pytest.mark.parametrize("call", ["installed", "pairs", "search"])
async def test_nothing_waits_for_a_slow_answer(open_chat: Open, call: str) -> None:
    models = ScriptedModels(holds={call})
    async with open_chat(models=models) as chat:
        await chat.press("ctrl+l")
        screen = manager(chat)
        await chat.press("3", *"qwen", "enter", "enter", "escape", "ctrl+l")
        for tab in (RECOMMENDED, SEARCH, DOWNLOADS, INSTALLED):
            screen.listing.go_to(tab)
            await chat.press("down", "up")
        await chat.press("escape")
        models.go(call)
        await chat.say("x")
        assert len(chat.engine.asked) == 1


async def test_a_slow_hub_is_named_and_escape_stops_it(open_chat: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.app.tui.models.context.SLOW_S", 0.05)
    async with at_models(open_chat, SEARCH, holds={"search"}) as (chat, screen, _):
        screen.listing.line.value = "qwen"
        await chat.press("enter")
        await chat.until(lambda: "Waiting for hub.example … Esc stops" in chat.shown())
        await chat.press("escape")
        await chat.until(lambda: "Stopped waiting for hub.example." in chat.shown())
        assert screen.is_current


async def test_keys_that_come_at_once_count_in_their_order(open_chat: Open) -> None:
    async with at_models(open_chat, RECOMMENDED) as (chat, screen, _):
        for key in ("1", "down", "d"):
            chat.app.post_message(events.Key(key, key if len(key) == 1 else None))
        await chat.until(lambda: isinstance(chat.app.screen, PairsScreen))
        assert screen.listing.tab == INSTALLED and under(screen) == QWEN.name
        await chat.until(lambda: "● ready   ↓ Enter fetches it   ✗ not supported" in chat.shown())


@pytest.mark.parametrize(
    "card",
    [
        "|" + "a|" * 400 + "\n|" + "-|" * 400 + "\n" + ("|" + "b|" * 400 + "\n") * 20,
        "| a | b |\n|---|---|\n" + "| c | d |\n" * 5000, "\n\n".join(f"# heading {n}" for n in range(5000)),
        "x" * 100_000, "> " * 50_000, "- a\n" * 5000,
    ],
)  # fmt: skip
def test_a_card_that_would_keep_the_screen_busy_is_cut(card: str) -> None:
    shown = pieces(card)
    text = "\n".join(shown)
    assert shown[-1] == REST
    assert len(text) <= LONGEST + len(shown) * 2 + len(REST)
    assert text.count("\n") <= MOST_LINES + 3 * len(shown) and text.count("|") <= MOST_CELLS


def test_a_card_is_shown_whole_where_it_is_short() -> None:
    card = "# Title\n\n" + "A paragraph of some words.\n\n" * 100 + "| a | b |\n|---|---|\n| c | d |"
    shown = pieces(card)
    assert len(shown) > 1 and all(len(piece) <= 1300 for piece in shown)
    assert [line for line in "\n".join(shown).split("\n") if line] == [line for line in card.split("\n") if line]
    assert pieces("") == pieces(" \n ") == [NONE]


async def test_escape_leaves_the_search_box_before_the_screen(open_chat: Open) -> None:
    async with at_models(open_chat, SEARCH) as (chat, screen, _):
        await search(chat, screen, "qwen 4")
        await chat.press("escape")
        assert chat.app.screen is screen and screen.listing.tab == SEARCH and not screen.listing.line.has_focus
        await chat.press("slash")
        assert screen.listing.line.has_focus and screen.listing.line.value == "qwen 4"
        await chat.press("escape", "1")
        assert screen.listing.tab == INSTALLED
        await chat.press("escape")
        assert isinstance(chat.app.screen, ChatScreen) and chat.screen.prompt.text == ""


async def test_downloads_are_polled_again_after_a_failure(open_chat: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    models = ScriptedModels()
    asked, jobs = 0, models.jobs

    def refused() -> list[QueuedDownload]:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise SlipstreamError("the list of downloads cannot be read.", "Try again.")
        return jobs()

    monkeypatch.setattr(models, "jobs", refused)
    async with open_chat(models=models) as chat:
        screen = await opened(chat, DOWNLOADS)
        await chat.until(lambda: asked > 1)
        await chat.until(lambda: not screen.listing.downloads.error)


async def test_an_earlier_list_that_comes_later_brings_nothing_back(
    open_chat: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with at_models(open_chat) as (chat, screen, models):
        before, late = models.installed(), threading.Event()
        asked: list[int] = []

        def installed() -> object:
            asked.append(len(asked))
            if asked[-1]:
                return before[:1]
            assert late.wait(20)
            return before

        monkeypatch.setattr(models, "installed", installed)
        screen.listing.list_installed()
        await chat.until(lambda: len(asked) == 1)
        screen.listing.list_installed()
        await chat.until(lambda: screen.listing.installed.rows == before[:1])
        late.set()
        for _ in range(5):
            await chat.pilot.pause(0.05)
        assert screen.listing.installed.rows == before[:1]
