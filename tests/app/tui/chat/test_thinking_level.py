"""How much a model thinks, and the sampling that its makers recommend: chosen, kept with the chat, and named."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.app.tui.chat.test_slash import command
from tests.app.tui.conftest import Open
from tests.app.tui.driver import Driver
from tests.app.tui.scripted import LOADED, Script, ScriptedEngine

from slipstream.app.chats.store import ChatStore
from slipstream.app.protocol.events import Loaded
from slipstream.app.protocol.requests import Sampling

EFFORTS = replace(LOADED, reasoning=["on", "low", "medium", "high"], reasoning_default="medium")
SWITCH = replace(LOADED, reasoning=["off", "on"], reasoning_default="on")
OWN = replace(LOADED, sampling={"temperature": 0.6, "top_k": 20.0, "min_p": 0.0}, sampling_source="its file")


def engine(loaded: Loaded) -> ScriptedEngine:
    return ScriptedEngine([Script()], loaded=loaded)


async def asked(chat: Driver, text: str = "x") -> Sampling:
    await chat.say(text)
    return chat.engine.asked[-1].sampling


async def said(chat: Driver, words: str) -> None:
    await chat.until(lambda: chat.toasts()[-1:] == [words])


@pytest.mark.slow
async def test_a_level_is_kept_with_the_chat_and_read_ahead(open_chat: Open, store: ChatStore) -> None:
    async with open_chat(engine=engine(EFFORTS), size=(140, 40)) as chat:
        assert (await asked(chat)).reasoning == "auto"
        first = store.list_chats()[0].id
        await command(chat, "/think")
        levels = "Thinking: as the model does by itself. It has on, low, medium, high."
        await chat.until(lambda: chat.toasts()[-1:] == [levels])
        await command(chat, "/think low")
        await chat.until(lambda: chat.toasts()[-1:] == ["Thinking, from the next reply on: low"])
        assert "thinking low · slipstream-mini" in chat.shown()
        assert (await asked(chat)).reasoning == "low"
        await chat.until(lambda: [each.reasoning for each in chat.engine.prepared[-1:]] == ["low"])
        await command(chat, "/think 512")
        assert "thinking low, 512 tokens at most" in chat.shown()
        assert (await asked(chat)).reasoning_budget == 512
        await command(chat, "/new")
        await chat.until(lambda: chat.screen.conversation.chat is None)
        assert "thinking" not in chat.shown()
        assert (await asked(chat)) == Sampling(seed=7)
    async with open_chat(engine=engine(EFFORTS), chat=first, size=(140, 40)) as chat:
        await chat.until(lambda: "thinking low, 512 tokens at most" in chat.shown())
        assert (await asked(chat)) == Sampling(seed=7, reasoning="low", reasoning_budget=512)
        await command(chat, "/think auto")
        assert (await asked(chat)) == Sampling(seed=7)
        assert store.sampling(first) == {}


@pytest.mark.slow
async def test_a_key_goes_through_the_levels_that_the_model_has(open_chat: Open) -> None:
    async with open_chat(engine=engine(EFFORTS)) as chat:
        for level in ("high", "low", "medium", "high"):
            await chat.press("alt+t")
            await said(chat, f"Thinking, from the next reply on: {level}")
    async with open_chat(engine=engine(SWITCH)) as chat:
        for level in ("off", "on", "off"):
            await chat.press("alt+t")
            await said(chat, f"Thinking, from the next reply on: {level}")
        assert (await asked(chat)).reasoning == "off"
    async with open_chat() as chat:
        await chat.press("alt+t")
        await said(chat, "Its chat template has no switch for reasoning.")
        assert (await asked(chat)).reasoning == "auto"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("/think low", "lipstream-mini has no reasoning level low. It has off, on."),
        ("/think much", "Not a valid level of reasoning: much. There are auto, off, on, low, medium, high, max"),
        ("/think -3", "Not a valid level of reasoning: -3."),
    ],
)
async def test_a_level_that_cannot_be_is_refused(open_chat: Open, text: str, words: str) -> None:
    async with open_chat(engine=engine(SWITCH)) as chat:
        await command(chat, text)
        await chat.until(lambda: words in "".join(chat.toasts()[-1:]))
        assert (await asked(chat)) == Sampling(seed=7)


async def test_a_preset_has_a_level(open_chat: Open, tmp_path: Path) -> None:
    file = tmp_path / "presets.toml"
    file.write_text('[preset.quick]\nreasoning = "off"\ntemperature = 0.4\n[preset.deep]\nreasoning_budget = 2048\n')
    async with open_chat(engine=engine(SWITCH), size=(140, 40)) as chat:
        await command(chat, "/preset quick")
        assert "quick · slipstream-mini" in chat.shown()
        assert (await asked(chat)) == Sampling(seed=7, temperature=0.4, reasoning="off")
        await command(chat, "/preset deep")
        assert (await asked(chat)) == Sampling(seed=7, reasoning_budget=2048)


async def test_a_level_that_the_chats_model_lacks_is_named_once(open_chat: Open) -> None:
    words = "this model has no reasoning level low."
    script = Script(remarks={words: "It has off, on."})
    async with open_chat(engine=ScriptedEngine([script], loaded=SWITCH)) as chat:
        await chat.say("x")
        await chat.until(lambda: any("no reasoning level low" in str(each) for each in chat.notices()))


@pytest.mark.slow
async def test_the_models_own_sampling_holds_if_none_was_set(open_chat: Open, store: ChatStore, tmp_path: Path) -> None:
    async with open_chat(engine=engine(OWN), size=(140, 40)) as chat:
        assert (await asked(chat)) == Sampling(0.6, 20, min_p=0.0, seed=7)
        await command(chat, "/preset")
        advised = "Now: default (temperature 0.6, top k 20, min p 0 from its file)."
        await chat.until(lambda: "".join(chat.toasts()[-1:]).endswith(advised))
        await command(chat, "/preset careful")
        assert (await asked(chat)) == Sampling(0.3, 20, min_p=0.0, seed=7)
        chat_of_its_own = store.list_chats()[0].id
        assert store.sampling(chat_of_its_own) == {"temperature": 0.3}
        await command(chat, "/preset default")
        assert (await asked(chat)) == Sampling(0.6, 20, min_p=0.0, seed=7)
        store.keep_sampling(chat_of_its_own, {"temperature": 0.8})  # what slipstream's own default is
    async with open_chat(engine=engine(OWN), chat=chat_of_its_own) as chat:
        assert (await asked(chat)) == Sampling(0.8, 20, min_p=0.0, seed=7)
    (tmp_path / "settings.toml").write_text("[sampling]\ntemperature = 0.8\n")  # set, though it is the default
    async with open_chat(engine=engine(OWN)) as chat:
        assert (await asked(chat)) == Sampling(0.8, 20, min_p=0.0, seed=7)
        chat.app.settled.file.reset("sampling.temperature")
        chat.app.settled.apply()
        assert (await asked(chat)) == Sampling(0.6, 20, min_p=0.0, seed=7)
