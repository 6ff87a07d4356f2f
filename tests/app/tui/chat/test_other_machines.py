"""Other machines on the screen: which hold the model, which are missing, and which is waited for."""

from dataclasses import replace

from tests.app.tui.conftest import Open
from tests.app.tui.scripted import LOADED, Script, ScriptedEngine

MISSING = "Without pi:50052: connection refused."


async def test_the_top_bar_and_the_chat_say_which_machines_hold_the_model(open_chat: Open) -> None:
    loaded = replace(LOADED, device="CUDA 5, mac:50052 10 of 15 layers", machines=["mac:50052"], remark=MISSING)
    async with open_chat(engine=ScriptedEngine(loaded=loaded), size=(140, 40)) as chat:
        await chat.until(lambda: "CUDA 5, mac:50052 10 of 15 layers" in chat.shown())
        await chat.until(lambda: MISSING in chat.shown())


async def test_a_machine_that_keeps_a_reply_waiting_is_named(open_chat: Open) -> None:
    async with open_chat(Script("The sea is wide and blue.", hold=5)) as chat:
        await chat.say("x", wait=False)
        await chat.until(lambda: bool(chat.engine.asked))
        chat.engine.wait("mac:50052")
        await chat.until(lambda: chat.toasts() == ["Waiting for mac:50052. Esc stops."])
        chat.engine.go()
        await chat.until(chat.idle)


async def test_a_load_that_waits_for_a_silent_machine_can_be_stopped(open_chat: Open) -> None:
    engine = ScriptedEngine(hold_load=True)
    async with open_chat(engine=engine) as chat:
        await chat.until(lambda: bool(engine.loads))
        await chat.press("escape")
        assert not engine.stopped
        engine.wait("mac:50052")
        await chat.until(lambda: "waiting for mac:50052 · Esc stops" in chat.shown())
        await chat.press("escape")
        await chat.until(lambda: bool(engine.stopped))
        engine.go_load()
        await chat.until(chat.idle)
        await chat.press("escape")
        assert len(engine.stopped) == 1
