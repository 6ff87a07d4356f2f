"""The whole way, with the real manager, a hub of the tests' own and the real engine: find, fetch, use, remove."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.app.tui.driver import Driver
from tests.app.tui.scripted import ScriptedEngine
from tests.drafters.changed_file import changed
from tests.models.hub_server import HubServer
from textual.widgets import Static

from slipstream.app.chats.store import ChatStore
from slipstream.app.engine.process.client import Engine
from slipstream.app.library.load_request import BUNDLED_DRAFT, usual
from slipstream.app.library.manager import ModelManager
from slipstream.app.library.resolve_model import choose
from slipstream.app.platform.paths import Paths
from slipstream.app.protocol.requests import Sampling
from slipstream.app.tui.app import ChatApp
from slipstream.app.tui.models.hub import RepoScreen
from slipstream.app.tui.models.listing import DOWNLOADS
from slipstream.app.tui.models.screen import ModelsScreen
from slipstream.app.tui.parts.dialogs import ConfirmScreen

pytestmark = pytest.mark.program

REPO = "acme/Mini-GGUF"
CARD = "---\nlicense: mit\n---\n# Mini\n\nA model for tests.\n"


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    for name in ("HF_HOME", "HF_HUB_CACHE", "LLAMA_CACHE", "OLLAMA_MODELS", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return Paths.default()


@pytest.fixture
def model(paths: Paths, tmp_path: Path) -> Path:
    return changed(paths.bundled / BUNDLED_DRAFT, tmp_path / "Mini-F32.gguf", {"general.name": "Acme Mini"})


@pytest.fixture
def server(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with HubServer() as hub:
        facts = {"context_length": 2048, "architecture": "llama", "total": 900_000}
        hub.add(REPO, {"Mini-F32.gguf": model.read_bytes(), "README.md": CARD.encode()}, downloads=12, gguf=facts)
        hub.adopt(monkeypatch, tmp_path)
        yield hub


def ready(chat: Driver) -> bool:
    return chat.screen.model.loaded is not None and not chat.screen.engine.busy


async def says(chat: Driver, text: str) -> None:
    screen = chat.screen
    screen.prompt.put(text)
    await chat.press("enter")
    await chat.until(lambda: not screen.reply.writing and not screen.prompt.text)
    kept = chat.store.messages(chat.store.list_chats(1)[0].id)
    assert [message.content for message in kept if message.role == "user"][-1] == text
    assert kept[-1].status == "done" and kept[-1].figures and kept[-1].figures.speed.tokens


@asynccontextmanager
async def running(paths: Paths) -> AsyncIterator[Driver]:
    store = ChatStore(paths.chats)
    load = replace(choose(paths), spare_cores=1)
    app = ChatApp(
        Engine(paths.logs / "engine.log"), load, store, None, Sampling(seed=3), models=lambda: ModelManager(paths)
    )
    async with app.run_test(size=(120, 32)) as pilot:
        chat = Driver(app, pilot, ScriptedEngine(), store, [])
        await chat.until(lambda: ready(chat))
        yield chat
    store.close()


async def test_a_model_is_found_fetched_used_and_brought_back(server: HubServer, paths: Paths, model: Path) -> None:
    async with running(paths) as chat:
        await says(chat, "Tell me about the sea.")
        await chat.press("ctrl+l")
        screen = chat.on(ModelsScreen)
        await chat.until(lambda: "● Slipstream mini" in chat.shown())
        await chat.press("slash", *"mini", "enter")  # search
        await chat.until(lambda: REPO in chat.shown())
        await chat.press("enter")
        chat.on(RepoScreen)
        await chat.until(lambda: "A model for tests." in chat.shown() and "F32" in chat.shown())
        assert "license: mit" not in chat.shown()
        server.hold_after(server.sent + 100_000)  # fetch; the hub stops sending after a part of it
        await chat.press("enter")
        await chat.until(lambda: screen.listing.tab == DOWNLOADS and bool(screen.listing.downloads.rows))
        await chat.until(lambda: screen.listing.downloads.rows[0].progress.done > 0)
        await chat.press("enter")  # pause
        server.hang_up()
        await chat.until(lambda: screen.listing.downloads.rows[0].state == "paused")
        came = screen.listing.downloads.rows[0].progress.done
        assert 0 < came < model.stat().st_size and "paused" in chat.shown()
        assert not list(paths.models.rglob("*.gguf"))
        sent = server.sent
        server.hold_after(None)
        await chat.press("enter")  # go on
        await chat.until(lambda: "checked and installed" in chat.shown())
        assert server.sent - sent <= model.stat().st_size - came  # no byte came twice
        await chat.until(lambda: len(screen.listing.installed.rows) == 4)
        name = next(known.name for known in screen.listing.installed.rows if known.origin == "ours")
        await chat.press("1")  # use
        screen.browser.rows.highlighted = screen.listing.installed.find(name)
        await chat.press("enter")
        await chat.until(lambda: chat.app.screen is chat.screen)
        await chat.until(lambda: ready(chat) and chat.screen.model.loaded.name == "Mini")  # type: ignore[union-attr]
        await chat.until(lambda: usual(paths) == name)
        await says(chat, "And the moon?")
        assert "Mini" in chat.shown() and len(chat.store.list_chats()) == 1
        await chat.press("ctrl+l", "x")  # not while it is in use
        await chat.until(lambda: screen.is_current and screen.listing.installed.in_use != "")
        assert not isinstance(chat.app.screen, ConfirmScreen)
        screen.browser.rows.highlighted = screen.listing.installed.find("bundled")
        await chat.press("enter")
        await chat.until(lambda: chat.app.screen is chat.screen and ready(chat))
        assert chat.screen.model.load == replace(choose(paths), spare_cores=1)  # just as at the start
        await chat.press("ctrl+l")  # remove
        screen.browser.rows.highlighted = screen.listing.installed.find(name)
        await chat.press("x")
        await chat.until(lambda: isinstance(chat.app.screen, ConfirmScreen) and "Enter removes" in chat.shown())
        asked = str(chat.app.screen.query_one(".detail", Static).content)
        assert f"It wrote in 1 chat, which stay: “{chat.store.list_chats()[0].title}”" in asked
        await chat.press("y")
        await chat.until(lambda: len(screen.listing.installed.rows) == 3)
        assert not list((paths.models / "acme").rglob("*.gguf"))
        await chat.press("u")  # and bring back
        await chat.until(lambda: screen.listing.installed.find(name) is not None)
        assert len(list((paths.models / "acme").rglob("*.gguf"))) == 1
