"""System prompts, ways to sample, how much a model thinks: by name, kept with the chat, recommended by its makers."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.app.tui.chat.test_slash import command
from tests.app.tui.conftest import Open
from tests.app.tui.driver import Driver, press_alt
from tests.app.tui.scripted import LOADED, Script, ScriptedEngine

from slipstream.app.chats.store import ChatStore
from slipstream.app.protocol.events import Loaded
from slipstream.app.protocol.requests import Sampling
from slipstream.app.settings.presets import BUILT_IN, Presets, values_of
from slipstream.app.tui.chat.guidance import ChatPanel
from slipstream.models.errors import SlipstreamError, UsageError

EFFORTS = replace(LOADED, reasoning=["on", "low", "medium", "high"], reasoning_default="medium")
SWITCH = replace(LOADED, reasoning=["off", "on"], reasoning_default="on")
OWN = replace(LOADED, sampling={"temperature": 0.6, "top_k": 20.0, "min_p": 0.0}, sampling_source="its file")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "presets.toml"


def test_what_is_kept_is_found_again_and_comments_stay(file: Path) -> None:
    file.write_text("# mine\n[preset.cold]\ntemperature = 0 # none\ntop_k = 5\n", "utf-8")
    presets = Presets(file)
    presets.keep_system("море", 'Say "arr".\nAlways.')
    presets.keep_preset("warm", Sampling(temperature=1.5, top_p=0.9, seed=5))
    presets.keep_preset("warm", Sampling(temperature=1.25, seed=5))
    assert presets.systems() == {"море": 'Say "arr".\nAlways.'}
    own = {"cold": {"temperature": 0.0, "top_k": 5}, "warm": {"temperature": 1.25}}
    assert presets.presets() == {name: dict(values) for name, values in BUILT_IN.items()} | own
    assert "# mine" in file.read_text("utf-8")
    assert "# none" in file.read_text("utf-8")
    assert {path.name for path in file.parent.iterdir()} == {file.name, f"{file.name}.lock"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"[system]\nx = 'a'\ny = = 1\n", "line 3"),
        (b"[system]\nx = '\xff'\n", "line 2, column 6: it is not UTF-8"), (b"system = 1\n", "system is no table"),
        (b"[system]\nx = 1\n", "system.x is no text"),
    ],
)  # fmt: skip
def test_a_broken_file_names_its_line_and_is_left_alone(file: Path, text: bytes, why: str) -> None:
    file.write_bytes(text)
    presets = Presets(file)
    with pytest.raises(UsageError, match=why):
        presets.systems()
    if "x is no text" not in why:
        with pytest.raises(UsageError, match=why):
            presets.keep_system("y", "z")
    assert file.read_bytes() == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("preset.a = 1", "preset.a is no table"),
        ("preset.a.warmth = 1", "preset.a has warmth"),
        ("preset.a.temperature = true", "preset.a.temperature is not a number"),
        ("preset.a.top_k = 1.5", "preset.a.top_k is not a number"),
        ("preset.a.top_p = 2", "top-p is 2.0"),
        ('preset.a.reasoning = "some"', "reasoning is 'some'"),
        ("preset.a.reasoning = 1", "reasoning is not a text"),
        ("preset.a.reasoning_budget = -2", "reasoning_budget is -2"),
        ('preset.a.logit_bias = "the"', "logit-bias cannot be read"),
    ],
)
def test_a_preset_that_cannot_be_is_refused_by_name(file: Path, text: str, why: str) -> None:
    file.write_text(text, "utf-8")
    with pytest.raises(UsageError, match=why):
        Presets(file).presets()


def test_names_are_words_and_unwritable_places_are_said(file: Path) -> None:
    for name in ("", "a b", "none", "x" * 41, "a\x1b"):
        with pytest.raises(UsageError, match="cannot be a name"):
            Presets(file).keep_system(name, "x")
    assert not file.exists()
    file.mkdir()
    with pytest.raises(SlipstreamError, match="it is no file"):
        Presets(file).systems()


@pytest.mark.slow
async def test_a_chat_keeps_its_system_prompt_and_its_preset(open_chat: Open, store: ChatStore) -> None:
    async with open_chat(size=(140, 40)) as chat:
        await command(chat, "/system Be brief.")
        await command(chat, "/keep-system short")
        await command(chat, "/preset careful")
        assert "short · careful · slipstream-mini" in chat.shown()
        await chat.say("x")
        asked = chat.engine.asked[0]
        assert [(m.role, m.content) for m in asked.messages] == [("system", "Be brief."), ("user", "x")]
        assert asked.sampling == Sampling(temperature=0.3, seed=7)
        first = store.list_chats()[0].id
        await command(chat, "/new")
        await chat.until(lambda: chat.screen.conversation.chat is None)
        assert "careful" not in chat.shown()
        await chat.say("y")
        assert [m.role for m in chat.engine.asked[1].messages] == ["user"]
        assert chat.engine.asked[1].sampling == Sampling(seed=7)
        await command(chat, "/system short")  # a chat that is under way
        await command(chat, "/temp 0.45")
        assert "short · temp 0.45 · " in chat.shown()
        await chat.say("z")
        assert [m.role for m in chat.engine.asked[2].messages] == ["system", "user", "assistant", "user"]
        await command(chat, "/keep-preset mine")
        assert "short · mine · " in chat.shown()
        await command(chat, "/system none")
        await command(chat, "/preset usual")
        await chat.say("z")
        assert chat.engine.asked[3].messages[0].role == "user" and not values_of(chat.engine.asked[3].sampling)
    async with open_chat(chat=first, size=(140, 40)) as chat:
        await chat.until(lambda: "short · careful · " in chat.shown())
        await chat.say("again")
        assert chat.engine.asked[0].messages[0].content == "Be brief."
        assert chat.engine.asked[0].sampling.temperature == 0.3


async def test_what_cannot_be_used_is_said(open_chat: Open, file: Path) -> None:
    async with open_chat() as chat:
        await command(chat, "/preset")
        await chat.until(lambda: chat.toasts()[-1:] == ["Presets: default, greedy, careful, creative. Now: default."])
        await command(chat, "/preset wild")
        await chat.until(lambda: "There is no preset wild" in "".join(chat.toasts()[-1:]))
        await command(chat, "/keep-system x")
        await chat.until(lambda: "no system prompt to keep" in "".join(chat.toasts()[-1:]))
        await command(chat, "/system")
        await chat.until(lambda: chat.toasts()[-1:] == ["System prompt: none."])
        file.write_text("[system]\nx = = 1\n", "utf-8")
        await command(chat, "/system x")
        await chat.until(lambda: "line 2" in "".join(chat.toasts()[-1:]))
        assert chat.screen.prompt.text == "/system x" and chat.screen.conversation.system == ""


async def test_the_panel_of_a_chat_changes_what_its_next_replies_are_written_with(open_chat: Open) -> None:
    async with open_chat() as chat:
        await press_alt(chat.pilot, "s")
        await chat.until(lambda: isinstance(chat.app.screen, ChatPanel))
        await chat.press(*"Be kind.", "enter", *"Rhyme.", "tab", "right", "right", "tab")
        await chat.until(lambda: "‹ careful ›" in chat.shown() and "0.3" in chat.shown())
        await chat.press("9", "9")
        await chat.until(lambda: "Temperature must be a number from 0 to 10." in chat.shown())
        await chat.press("enter")
        assert isinstance(chat.app.screen, ChatPanel)  # a wrong value keeps it open
        await chat.press("backspace", "backspace", *"0.5", "down", "down", *"42", "down", "right", "ctrl+s")
        await chat.until(lambda: chat.app.screen is chat.screen)
        await chat.say("Hello")
        asked = chat.engine.asked[-1]
        assert asked.messages[0].content == "Be kind.\nRhyme." and asked.drafter == "lookup"
        assert (asked.sampling.temperature, asked.sampling.seed) == (0.5, 42)
        await press_alt(chat.pilot, "s")
        await chat.until(lambda: isinstance(chat.app.screen, ChatPanel))
        assert "Rhyme." in chat.shown() and "‹ own values ›" in chat.shown()
        await chat.press("escape")
        await chat.until(lambda: chat.app.screen is chat.screen)
        assert len(chat.engine.loads) == 1


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
