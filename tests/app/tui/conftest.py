from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
from tests.app.tui.driver import Driver
from tests.app.tui.scripted import Script, ScriptedEngine
from tests.app.tui.scripted_models import ScriptedModels
from textual.message import Message

from slipstream.app.chats.store import ChatStore
from slipstream.app.protocol.requests import Load, Sampling
from slipstream.app.settings.file import SettingsFile
from slipstream.app.tui.app import ChatApp

Open = Callable[..., AbstractAsyncContextManager[Driver]]


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SLIPSTREAM_HOME", str(tmp_path))
    monkeypatch.setattr("slipstream.app.tui.chat.model_picker.OFFER_AFTER", 0.001)
    for name in ("NO_COLOR", "TEXTUAL_THEME", "TEXTUAL_ANIMATIONS", "TEXTUAL_LOG"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ChatStore]:
    store = ChatStore(tmp_path / "chats.db")
    yield store
    store.close()


@pytest.fixture
def open_chat(store: ChatStore, tmp_path: Path) -> Open:
    """Opens the chat over a scripted engine; waits until the model is loaded, unless the engine holds the load."""

    @asynccontextmanager
    async def opened(
        *scripts: Script,
        engine: ScriptedEngine | None = None,
        chat: str | None = None,
        size: tuple[int, int] = (80, 24),
        drafter: str = "draft",
        typical: float | None = None,
        models: ScriptedModels | None = None,
        ahead: bool = True,
    ) -> AsyncIterator[Driver]:
        engine = engine or ScriptedEngine(list(scripts) or [Script()])
        log: list[Message] = []
        load = Load("mini.gguf", drafter=drafter)
        sampling = Sampling(seed=7, typical=typical)
        settled = SettingsFile(tmp_path / "settings.toml", {} if ahead else {"ahead.read": False})
        app = ChatApp(engine, load, store, chat, sampling, models=lambda: models or ScriptedModels(), settings=settled)
        async with app.run_test(size=size, message_hook=log.append) as pilot:
            driver = Driver(app, pilot, engine, store, log)
            if not engine.hold_load:
                await driver.until(lambda: driver.screen.model.loaded is not None or bool(driver.notices()))
            yield driver

    return opened
