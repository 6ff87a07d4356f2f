"""The screen says so while a model's file is checked before its first use."""

import pytest
from tests.app.tui.conftest import Open
from tests.app.tui.scripted import ScriptedEngine

from slipstream.app.tui.engine_service import LoadProgress

pytestmark = pytest.mark.program


@pytest.mark.parametrize("size", [(80, 24), (140, 40)])
async def test_the_check_is_told_and_then_the_load(open_chat: Open, size: tuple[int, int]) -> None:
    engine = ScriptedEngine(hold_load=True)
    async with open_chat(engine=engine, size=size) as chat:
        chat.app.screen.post_message(LoadProgress(None))
        await chat.until(lambda: chat.screen.prompt.border_subtitle == "checking the file")
        assert "checking the file of" in chat.shown() and "before its first use" in chat.shown()
        chat.app.screen.post_message(LoadProgress(0.5))
        await chat.until(lambda: chat.screen.prompt.border_subtitle == "loading the model 50 %")
        assert "checking" not in chat.shown()
        chat.app.screen.post_message(LoadProgress(0.95))
        await chat.until(lambda: chat.screen.prompt.border_subtitle == "measuring this machine 95 %")
        await chat.press(*"Hi", "enter")
        chat.app.screen.post_message(LoadProgress(None))
        await chat.until(lambda: "will be sent when the model is loaded: checking the file" in chat.shown())
        engine.go_load()
