"""Commands that are typed, and the same ones in the palette."""

import json
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
from tests.app.tui.conftest import Open
from tests.app.tui.driver import Driver
from tests.app.tui.scripted_models import ScriptedModels, model
from textual.content import Content
from textual.widgets import Static

from slipstream.app.chats.store import ChatStore
from slipstream.app.tui.chat.chat_switcher import RecallScreen
from slipstream.app.tui.chat.commands import COMMANDS, FRAME, HelpScreen, is_command, literal, matching, parsed
from slipstream.app.tui.drafters.screen import DraftersScreen
from slipstream.models.errors import UsageError


async def command(chat: Driver, text: str) -> None:
    """Types a command without the list, and waits until it was done or refused."""
    chat.screen.prompt.put(text)
    told = chat.toasts()[-1:]
    await chat.press("enter")
    await chat.until(
        lambda: (
            chat.screen.prompt.text != text or chat.toasts()[-1:] not in ([], told) or chat.app.screen != chat.screen
        )
    )


def test_the_table_is_sound_and_every_command_fits_the_list() -> None:
    names = [one.name for one in COMMANDS]
    assert len(set(names)) == len(names)
    assert all(one.about for one in COMMANDS)
    assert len({one.title for one in COMMANDS}) == len(names)
    assert all(re.fullmatch(r"[a-z-]+", name) for name in names)
    for one in COMMANDS:
        assert parsed(f"/{one.name} {'x' * bool(one.argument)}") == (one, "x" * bool(one.argument))
        if one.needs:
            with pytest.raises(UsageError, match="needs"):
                parsed(f"/{one.name} ")
        if not one.argument:
            with pytest.raises(UsageError, match="nothing was sent"):
                parsed(f"/{one.name} x")
    assert matching("mod") == [one for one in COMMANDS if one.name in ("model", "models")]
    longest = max(len(one.usage) for one in COMMANDS)
    assert all(longest + 2 + len(one.about) <= ROOM for one in COMMANDS)
    assert is_command("/x")
    assert not is_command("//x")
    assert not is_command("a /x")
    assert (literal("/x"), literal("x")) == ("//x", "x")
    for text in ("/", "/ ", "/nonsense", "/home/me/file.txt"):
        with pytest.raises(UsageError, match="there is no command"):
            parsed(text)


async def test_an_unknown_command_is_said_and_stays(open_chat: Open) -> None:
    async with open_chat() as chat:
        await command(chat, "/nonsense of mine")
        await chat.until(lambda: "There is no command /nonsense" in "".join(chat.toasts()[-1:]))
        assert chat.screen.prompt.text == "/nonsense of mine" and not chat.engine.asked
        await chat.say("//etc/hosts is a file")
        assert chat.engine.asked[0].messages[-1].content == "/etc/hosts is a file"
        await chat.press("up")
        assert chat.screen.prompt.text == "//etc/hosts is a file"


@pytest.mark.slow
async def test_the_list_completes_a_command(open_chat: Open) -> None:
    async with open_chat() as chat:
        prompt = chat.screen.prompt
        await chat.press("/")
        assert prompt.choices.open
        assert "/new" in chat.shown() and "begin a chat" in chat.shown()
        await chat.press("s", "e", "tab")
        assert prompt.text == "/search"
        await chat.press("escape")
        assert not prompt.choices.open
        prompt.put("")
        await chat.press("/", "s", "e", "down", "tab", "4", "2", "enter")
        await chat.until(lambda: prompt.text == "")
        assert chat.screen.conversation.sampling.effective.seed == 42
        await chat.press("/", "h", "e", "enter")  # nothing needs to follow: it is done at once
        await chat.until(lambda: isinstance(chat.app.screen, HelpScreen))


@pytest.mark.slow
async def test_seed_and_temperature_are_those_of_the_next_reply(open_chat: Open) -> None:
    async with open_chat() as chat:
        await command(chat, "/seed 11")
        await command(chat, "/temp 0,5")
        await chat.say("x")
        sampling = chat.engine.asked[0].sampling
        assert (sampling.seed, sampling.temperature) == (11, 0.5)
        for wrong in ("/seed -1", "/seed 1.5", "/seed ٣", "/temp warm", "/temp -1", "/temp nan", "/temp 99"):
            await command(chat, wrong)
            await chat.until(lambda: "".join(chat.toasts()[-1:]).startswith("Not a valid "))
            assert chat.screen.prompt.text == wrong
        assert chat.screen.conversation.sampling.effective == sampling


async def test_drafters_and_models_by_name(open_chat: Open) -> None:
    async with open_chat() as chat:
        await command(chat, "/drafter lookup")
        assert chat.screen.model.drafter == "lookup"
        await command(chat, "/drafter medusa")
        await chat.until(lambda: "no heads are trained" in "".join(chat.toasts()[-1:]))
        await command(chat, "/drafter nobody")
        await chat.until(lambda: "o drafter called" in "".join(chat.toasts()[-1:]))
        assert chat.screen.model.drafter == "lookup"
        await command(chat, "/drafter")
        await chat.until(lambda: isinstance(chat.app.screen, DraftersScreen))
        await chat.press("escape")
        await command(chat, "/model no-such-model")
        await chat.until(lambda: "No model is called no-such-model" in "".join(chat.toasts()[-1:]))
        assert chat.screen.prompt.text == "/model no-such-model"


async def test_a_model_is_used_by_the_path_of_its_file(open_chat: Open, tmp_path: Path) -> None:
    models = ScriptedModels(here=[replace(model("old", 9), path=tmp_path / "old.gguf")])
    async with open_chat(models=models) as chat:
        for file in ("old", "other"):  # one of the list, and one that is not on it yet
            await command(chat, f"/model {tmp_path / file}.gguf")
            await chat.until(lambda file=file: file in chat.engine.loads[-1].model)  # type: ignore[misc]
        assert models.called("import") == [(tmp_path / "other.gguf", "link")]


@pytest.mark.slow
async def test_the_chat_is_exported(open_chat: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with open_chat() as chat:
        await command(chat, "/export")
        await chat.until(lambda: "Nothing was said yet" in "".join(chat.toasts()[-1:]))
        await chat.say("Seas and rivers")
        await command(chat, "/export")
        assert "Seas and rivers" in (tmp_path / "seas-and-rivers.md").read_text("utf-8")
        await command(chat, "/export of mine.json")
        assert json.loads((tmp_path / "of mine.json").read_text("utf-8"))
        await command(chat, "/new")
        await chat.until(lambda: chat.screen.conversation.chat is None)


async def test_the_palette_has_all_commands(open_chat: Open, store: ChatStore) -> None:
    store.add_user(store.create().id, "before")
    async with open_chat() as chat:
        offered = {one.title: one for one in chat.app.get_system_commands(chat.screen)}
        assert list(offered) == [one.title for one in COMMANDS]
        assert all(one.usage in Content.from_markup(offered[one.title].help).plain for one in COMMANDS)
        await offered["Seed"].callback()
        assert chat.screen.prompt.text == "/seed "
        await offered["Search earlier prompts"].callback()
        await chat.until(lambda: isinstance(chat.app.screen, RecallScreen))
        plain = {one.title for one in chat.app.get_system_commands(chat.app.screen)}
        assert plain == {one.title for one in COMMANDS if one.plain}


async def test_arguments_are_completed(open_chat: Open) -> None:
    models = ScriptedModels(here=[model("qwen3-0.6b", 640_000_000), model("mini", 12_000_000)])
    async with open_chat(models=models) as chat:
        cases = (("/preset ", "careful", "ca"), ("/drafter ", "lookup", "l"), ("/model ", "mini", "m"))
        for typed, name, chosen in cases:
            chat.screen.prompt.put("")
            await chat.press(*typed)
            await chat.until(lambda name=name: name in chat.shown() and chat.screen.prompt.choices.open)  # type: ignore[misc]
            await chat.press(*chosen, "tab")
            assert chat.screen.prompt.text.startswith(f"{typed}{name}")
        chat.screen.prompt.put("")
        await chat.press(*"/drafter lo", "enter")
        await chat.until(lambda: "Next reply: lookup; F9 keeps one for each start" in chat.toasts())
        assert not chat.screen.prompt.text and not chat.engine.asked


KEYS = ("a", "q", "x", "backspace", "up", "down", "pageup", "pagedown", "home", "end", "tab", "escape")
FAST = (
    ("pageup", "pageup"), ("x", "pageup", "pagedown", "pageup"), ("down", "enter", "enter", "enter"),
    ("escape", "escape", "a", "enter"), ("escape", "a"), ("a", "escape", "escape"),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("keys", FAST, ids=" ".join)
async def test_keys_that_come_at_once(open_chat: Open, keys: tuple[str, ...]) -> None:
    async with open_chat() as chat:
        for wait in (0.0, 0.3):
            await chat.press("ctrl+p")
            await chat.pilot.pause(wait)
            for key in keys:
                chat.app.simulate_key(key)
            await chat.pilot.pause(0.4)
            assert chat.alive


@pytest.mark.parametrize("seed", range(2))
async def test_random_keys(open_chat: Open, seed: int) -> None:
    chance = random.Random(seed)
    async with open_chat() as chat:
        for _ in range(4):
            await chat.press("ctrl+p")
            await chat.pilot.pause(chance.choice((0.0, 0.1, 0.3)))
            for _ in range(8):
                chat.app.simulate_key(chance.choice(KEYS))
                await chat.pilot.pause(chance.choice((0.0, 0.0, 0.05)))
            assert chat.alive


@pytest.mark.slow
@pytest.mark.parametrize("key", ["enter", "escape"])
@pytest.mark.parametrize("opens", ["ctrl+r", "f1", "ctrl+o", "ctrl+d", "ctrl+l", "f8", "f9", "ctrl+p"])
async def test_a_screen_is_closed_once(open_chat: Open, opens: str, key: str) -> None:
    async with open_chat() as chat:
        await chat.say("hello")
        await chat.press(opens)
        for _ in range(4):
            chat.app.simulate_key(key)
        await chat.until(lambda: not chat.app.message_queue_size)
        assert chat.alive and chat.app.screen_stack[0] is chat.screen


@pytest.mark.parametrize("opens", ["f1", "alt+s", "ctrl+p", "ctrl+d", "ctrl+l", "f8", "f9"])
async def test_a_key_right_after_esc_reaches_the_screen_below(open_chat: Open, opens: str) -> None:
    async with open_chat() as chat:
        await chat.press(opens)
        opened = chat.app.screen
        for key in ("escape", "f1"):
            chat.app.simulate_key(key)
        await chat.until(lambda: isinstance(chat.app.screen, HelpScreen) and chat.app.screen is not opened)
        assert len(chat.app.screen_stack) == 2


async def test_the_help_of_another_screen_explains_its_words_before_the_chat(open_chat: Open) -> None:
    async with open_chat() as chat:
        await chat.press("f8", "f1")
        titles = [str(part.content) for part in chat.app.screen.query(".heading").results(Static)]
        assert titles[:3] == ["Words and figures", "Colours (F3)", "In the chat"]
        await chat.press("escape", "escape", "ctrl+d", "f1")
        keys = str(next(iter(chat.app.screen.query_one("#help").query(Static))).content)
        assert "index a folder's texts, to copy from" in keys and "other programs disturbed" in keys
        assert "Index" not in keys, keys


ROOM = 71  # cells of a command and its description on a screen of 80 columns


@pytest.mark.parametrize("width", [80, 140])
async def test_no_line_of_the_help_is_broken_by_the_screen(open_chat: Open, width: int) -> None:
    async with open_chat(size=(width, 24)) as chat:
        await chat.press("f1")
        assert isinstance(chat.app.screen, HelpScreen)
        parts = list(chat.app.screen.query(Static))
        assert parts
        for part in parts:
            assert isinstance(part.content, Content)
            assert part.content_size.height == part.content.plain.count("\n") + 1
            assert part.content_size.width <= 80 - FRAME
        assert "not guessed" in str(parts[-1].content)
