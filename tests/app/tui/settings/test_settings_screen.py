"""The settings screen: every setting can be reached and changed, is checked, kept, carried out, reset and undone."""

import errno
import os
import re
from pathlib import Path

import pytest
from tests.app.settings.test_settings_faults import failing_at
from tests.app.tui.conftest import Open
from tests.app.tui.driver import Driver
from tests.app.tui.scripted_models import ScriptedModels
from textual.binding import Binding
from textual.widgets import Static

from slipstream.app.chats.store import ChatStore
from slipstream.app.protocol.requests import Sampling
from slipstream.app.settings.file import SettingsFile, load
from slipstream.app.settings.presets import Presets, led_by
from slipstream.app.settings.values import Settings, all_settings
from slipstream.app.tui.chat.commands import COMMANDS, HELP, with_command
from slipstream.app.tui.chat.screen import ChatScreen
from slipstream.app.tui.keys import KeyMap, shown
from slipstream.app.tui.settings.apply_settings import CONTRAST, DARK, LIGHT
from slipstream.app.tui.settings.screen import SettingsScreen
from slipstream.models.errors import SlipstreamError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "settings.toml"


async def opened(chat: Driver) -> SettingsScreen:
    await chat.press("f9")
    await chat.until(lambda: isinstance(chat.app.screen, SettingsScreen) and chat.app.screen.list.has_focus)
    return chat.on(SettingsScreen)


async def at(chat: Driver, name: str) -> SettingsScreen:
    screen = chat.on(SettingsScreen)
    screen.go_to(name)
    await chat.until(lambda: screen.row.name == name)
    return screen


async def put(chat: Driver, name: str, text: str) -> None:
    screen = await at(chat, name)
    if screen.editor.row is None:
        await chat.press("enter")
    await chat.until(lambda: screen.editor.line.has_focus)
    screen.editor.line.value = text
    await chat.until(lambda: screen.editor.line.value == text)


def words(chat: Driver) -> str:
    return str(chat.on(SettingsScreen).words.content)


def told(chat: Driver, text: str) -> bool:
    return any(text in words for words in chat.toasts())


async def test_every_setting_is_there_and_reached_with_the_keys(open_chat: Open) -> None:
    async with open_chat(size=(140, 40)) as chat:
        screen = await opened(chat)
        assert set(screen.rows) == set(all_settings()) | {f"keys.{action}" for action in chat.app.settled.keys.usual}
        firsts = [screen.row.name]
        for _ in range(9):
            await chat.press("pagedown")
            firsts.append(screen.row.name)
        assert firsts[:3] == ["reply.system", "model.kv_type", "devices.rpc"] and firsts[-1] == "keys.stop"
        await chat.press("down", "pageup")
        assert screen.row.name == "hub.offline" and "Never ask the model hub" in words(chat)
        for name, kinds in (("reply.system", "line"), ("screen.theme", "choices"), ("keys.quit", "line")):
            await at(chat, name)
            await chat.press("enter")
            await chat.until(lambda kinds=kinds: getattr(screen.editor, kinds).has_focus)  # type: ignore[misc]
            await chat.press("escape")
            await chat.until(lambda: screen.list.has_focus)
        await chat.press("escape")
        await chat.until(lambda: chat.app.screen is chat.screen)


async def test_the_settings_looked_for_first_are_listed_the_others_folded_and_found_by_search(open_chat: Open) -> None:
    async with open_chat(size=(80, 24)) as chat:
        screen = await opened(chat)
        shown = chat.shown()
        assert all(label in shown for label in ("system prompt", "temperature", "theme", "more settings and keys"))
        assert "tensor split" not in shown
        await chat.press("slash", *"split tens")
        await chat.until(lambda: screen.row.name == "devices.tensor_split")
        assert "tensor split" in chat.shown() and "temperature" not in chat.shown()
        await chat.press("enter", "enter")
        await chat.until(lambda: screen.editor.line.has_focus)
        await chat.press(*"1,/", "escape", "escape")  # a slash is text there
        await chat.until(lambda: "system prompt" in chat.shown() and "tensor split" not in chat.shown())
        await chat.press("slash", *"xyzzy")
        await chat.until(lambda: "No matches." in chat.shown())
        await chat.press("escape", "end", "enter")
        await chat.until(lambda: screen.row.name == "model.kv_type")


async def test_a_text_is_checked_while_it_is_typed_and_kept_on_enter(open_chat: Open, file: Path) -> None:
    async with open_chat(size=(80, 24)) as chat:
        screen = await opened(chat)
        await put(chat, "sampling.top_p", "3")
        assert "sampling.top_p is 3; it must be a number above 0 and at most 1." in words(chat)
        await chat.press("enter")
        assert not file.exists() and "must be a number" in words(chat) and screen.editor.row is not None
        await put(chat, "sampling.top_p", "0,5")
        assert "must be" not in words(chat)
        await chat.press("enter")
        await chat.until(lambda: load(file).settings.sampling.top_p == 0.5 and screen.editor.row is None)
        assert "0.5" in chat.shown()
        await put(chat, "devices.draft", "abc")
        await chat.press("enter")
        await chat.until(lambda: "there are CPU" in words(chat))
        assert not load(file).settings.devices.draft
        await put(chat, "sampling.top_k", "none")
        await chat.press("escape")  # leaving it brings back what holds
        await chat.until(lambda: screen.list.has_focus)
        assert "must be" not in words(chat)
        assert load(file).settings.sampling == Settings().having({"sampling.top_p": 0.5}).sampling


async def test_a_theme_is_shown_while_it_is_chosen_and_kept_by_enter_alone(open_chat: Open, file: Path) -> None:
    async with open_chat(size=(140, 40)) as chat:
        screen = await opened(chat)
        before = chat.app.theme
        for key, kept in (("escape", before), ("enter", "slipstream-light")):
            await at(chat, "screen.theme")
            await chat.press("enter")
            await chat.until(lambda: screen.editor.choices.has_focus)
            await chat.press("down")
            await chat.until(lambda: chat.app.theme == "slipstream-light")
            assert not file.exists()
            await chat.press(key)
            await chat.until(lambda: screen.editor.row is None)
            assert chat.app.theme == kept
        assert load(file).settings.screen.theme == "slipstream-light"


@pytest.mark.slow
async def test_changes_are_carried_at_once_reset_and_undone(open_chat: Open, file: Path) -> None:
    async with open_chat(size=(140, 40)) as chat:
        screen = await opened(chat)
        assert chat.screen.sidebar.display and not chat.screen.transcript.coloured
        for key, name in (("enter", "screen.colours"), ("right", "ahead.read"), ("left", "hub.offline")):
            await at(chat, name)
            before = load(file).settings.value(name)
            await chat.press(key)
            await chat.until(lambda name=name, before=before: load(file).settings.value(name) is not before)  # type: ignore[misc]
        assert chat.screen.transcript.coloured and chat.screen.engine.ahead.read is False
        await at(chat, "screen.sidebar")
        await chat.press("left")  # the last choice comes before the first
        await chat.until(lambda: not chat.screen.sidebar.display)
        await at(chat, "screen.theme")
        await chat.press("enter")
        await chat.until(lambda: screen.editor.choices.has_focus)
        await chat.press("down", "down", "enter")
        await chat.until(lambda: chat.app.theme == CONTRAST.name and screen.list.has_focus)
        await chat.press("ctrl+r")
        await chat.until(lambda: chat.app.theme == DARK.name)
        await chat.press("ctrl+z")
        await chat.until(lambda: chat.app.theme == CONTRAST.name)
        await chat.press("ctrl+t")
        await chat.until(lambda: load(file).settings == Settings() and chat.app.theme == DARK.name)
        assert chat.screen.sidebar.display and not chat.screen.transcript.coloured
        await chat.until(lambda: told(chat, "5 settings are at the default"))
        await chat.press("ctrl+z")
        await chat.until(lambda: load(file).settings.screen.sidebar == "closed" and chat.app.theme == CONTRAST.name)
        for _ in range(6):
            await chat.press("ctrl+z")
        await chat.until(lambda: load(file).settings == Settings())
        assert told(chat, "Nothing to undo")


async def test_a_key_is_given_and_works(open_chat: Open, file: Path) -> None:
    async with open_chat(size=(140, 40)) as chat:
        await opened(chat)
        await put(chat, "keys.colours", "f1")
        assert "F1 is the key of both colours and help" in words(chat)
        await put(chat, "keys.colours", "Alt-C")
        await chat.press("enter")
        await chat.until(lambda: dict(load(file).settings.keys) == {"colours": "alt+c"})
        assert "Default: F3" in words(chat)
        await chat.press("escape")
        await chat.until(lambda: chat.app.screen is chat.screen)
        await chat.press("f3")
        assert not chat.screen.transcript.coloured
        await chat.press("alt+c")
        await chat.until(lambda: chat.screen.transcript.coloured)
        await opened(chat)
        await at(chat, "keys.colours")
        await chat.press("ctrl+r")
        await chat.until(lambda: not load(file).settings.keys)
        assert chat.app.settled.keys.of("colours") == "F3"


async def test_sampling_and_replies_follow_the_settings_but_for_what_a_chat_keeps(
    open_chat: Open, store: ChatStore, tmp_path: Path
) -> None:
    Presets(tmp_path / "presets.toml").keep_system("short", "Be brief.")
    settings = SettingsFile(tmp_path / "settings.toml")
    settings.restore({"sampling.temperature": 0.3, "reply.system": "short", "reply.max_tokens": 9})
    async with open_chat() as chat:
        chat.screen.conversation.apply_settings(Sampling(temperature=0.3), led_by(settings.settings.reply))
        await chat.say("x")
        asked = chat.engine.asked[0]
        assert [m.content for m in asked.messages] == ["Be brief.", "x"] and asked.max_tokens == 9
        assert asked.sampling == Sampling(temperature=0.3, seed=7)
        chat.screen.guidance.use_preset("creative")
        chat.app.settled.restore({"sampling.top_k": 11})
        chat.app.settled.restore({"reply.max_tokens": 0})
        await chat.say("y")
        assert chat.engine.asked[1].sampling == Sampling(temperature=1.2, min_p=0.1, top_k=11, seed=7)
        assert chat.engine.asked[1].max_tokens == 0
        assert store.sampling(store.list_chats()[0].id) == {"temperature": 1.2, "min_p": 0.1}
        chat.screen.guidance.use_preset("usual")
        assert chat.screen.conversation.sampling.effective == Sampling(temperature=0.3, top_k=11, seed=7)
        assert store.sampling(store.list_chats()[0].id) == {}


async def test_what_can_only_be_loaded_anew_counts_with_the_next_load(open_chat: Open) -> None:
    async with open_chat() as chat:
        assert chat.engine.loads[0].n_ctx == 0
        for name, value in (("model.context", 512), ("model.gpu_layers", 0), ("model.threads", 1)):
            chat.app.settled.restore({name: value})
        chat.app.settled.restore({"keeping.states_gb": 0.0})
        chat.screen.model.loaded = None
        await chat.say("x")
        load_again = chat.engine.loads[1]
        assert (load_again.n_ctx, load_again.gpu_layers, load_again.threads, load_again.states_limit) == (512, 0, 1, 0)


async def test_the_hub_is_told_to_stay_offline_and_offers_can_be_off(open_chat: Open, file: Path) -> None:
    SettingsFile(file).restore({"hub.offline": True, "hub.offer": False, "devices.rpc": "mac-mini"})
    models = ScriptedModels()
    async with open_chat(models=models) as chat:
        chat.screen.picker.look_for_offer()
        assert not chat.screen.picker.offer_looked_for
        chat.app.models_access.open()
        assert models.stays_offline == [True] and models.borrows == "mac-mini"
        chat.app.settled.restore({"hub.offline": False})
        assert models.stays_offline == [True, False]


async def test_a_broken_file_is_told_left_alone_and_changes_hold_until_the_end(open_chat: Open, file: Path) -> None:
    file.write_text("[screen]\ntheme = = 1\n", "utf-8")
    async with open_chat(size=(140, 40)) as chat:
        said = " ".join(chat.notices())
        assert "broken at line 2, column 9" in said and "Until then the defaults hold" in said
        await opened(chat)
        assert "Nothing can be kept" in words(chat)
        await at(chat, "screen.colours")
        await chat.press("enter")
        await chat.until(lambda: chat.screen.transcript.coloured)
        assert "Until slipstream ends" in words(chat) and told(chat, "is broken")
        for key in ("", None):  # a key is taken away all the same
            with pytest.raises(SlipstreamError, match="is broken"):
                chat.app.settled.restore({"keys.colours": key})
            assert chat.app.settled.keys.of("colours") == ("F3" if key is None else "")
        assert file.read_text("utf-8") == "[screen]\ntheme = = 1\n"


async def test_a_disk_that_refuses_is_told(open_chat: Open, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_chat() as chat:
        with monkeypatch.context() as patch:
            failing_at(patch, 1, errno.EROFS, [])
            chat.app.theme = LIGHT.name  # as /light and the list of themes do
            await chat.until(lambda: told(chat, os.strerror(errno.EROFS).lower()))
        assert chat.app.theme == LIGHT.name and not file.exists()


async def test_themes_are_kept_and_an_unknown_one_is_named(open_chat: Open, file: Path) -> None:
    async with open_chat() as chat:
        assert chat.app.theme == DARK.name
        await chat.app.run_action("light_or_dark")
        await chat.until(lambda: load(file).settings.screen.theme == LIGHT.name)
    async with open_chat() as chat:
        assert chat.app.theme == LIGHT.name
    SettingsFile(file).change("screen.theme", "slipstream-drak")
    async with open_chat() as chat:
        assert chat.app.theme == DARK.name and "Did you mean slipstream-dark?" in " ".join(chat.notices())
        assert load(file).settings.screen.theme == "slipstream-drak"  # the file is its owner's


async def test_settings_whose_file_was_deleted_are_said_and_written_again(open_chat: Open, file: Path) -> None:
    file.write_text("[sampling]\ntemperature = 0.25\n")
    async with open_chat() as chat:
        await opened(chat)
        file.unlink()
        await put(chat, "sampling.top_k", "7")
        await chat.press("enter")
        await chat.until(lambda: told(chat, "settings.toml was deleted or emptied"))
        assert load(file).settings.sampling.temperature == 0.25 and load(file).settings.sampling.top_k == 7


def made(**keys: str) -> KeyMap:
    return KeyMap.made({name.replace("_", "-"): key for name, key in keys.items()}, ChatScreen.BINDINGS)


def test_every_key_of_the_chat_has_a_name_and_no_two_the_same_key() -> None:
    assert all(isinstance(each, Binding) and each.id for each in ChatScreen.BINDINGS)
    usual = made().usual
    taken = [key for keys in usual.values() for key in keys.split(",")]
    assert len(taken) == len(set(taken))
    assert usual["stop"] == "escape" and usual["message-before"] == "ctrl+up,alt+up" and usual["quit"] == "ctrl+q"
    assert not made().problems and not made().own


@pytest.mark.parametrize(
    ("typed", "key"),
    [
        ("f7", "f7"),
        ("Ctrl-B", "ctrl+b"),
        ("control+b", "ctrl+b"),
        ("alt+X", "alt+x"),
        ("shift+ctrl+right", None),  # selects what is typed
        ("Shift-F5", None),
        ("f7, alt+g", "f7,alt+g"),
        ("PgUp", None),  # another action's
        ("ctrl+g", ""),  # its own already
    ],
)
def test_keys_are_read_as_people_write_them(typed: str, key: str | None) -> None:
    keys = made(go_on=typed)
    assert bool(keys.problems) == (key is None) and keys.own.get("go-on") == (key or None)


@pytest.mark.parametrize(
    ("action", "typed", "why"),
    [
        ("go-onn", "f7", "there is no action go-onn. Did you mean go-on?"),
        ("go-on", "ctrl+nothing", "ctrl+nothing is no key; write one as ctrl+g, alt+x, f6 or pageup."),
        ("go-on", "f7,", "nothing is no key"),
        ("go-on", "f99", "f99 is no key"),
        ("go-on", "<any>", "is no key"),
        ("go-on", "x", "x alone is what one types"),
        ("go-on", "ctrl+i", "terminals send Ctrl-I as Tab"),
        ("go-on", "ctrl+k", "Ctrl-K is needed for typing"),
        ("go-on", "enter", "Enter is needed for typing"),
        ("go-on", "ctrl+p", "Ctrl-P is the key of both go-on and prompt-before"),
        ("go-on", "f1", "F1 is the key of both go-on and help; go-on keeps its own."),
        ("go-on", "\x1b[2J", "is no key"),
    ],
)
def test_what_cannot_be_is_named_and_left_out(action: str, typed: str, why: str) -> None:
    keys = KeyMap.made({action: typed}, ChatScreen.BINDINGS)
    assert not keys.own and len(keys.problems) == 1 and why in keys.problems[0] and "\x1b" not in keys.problems[0]


def test_keys_may_change_places_or_be_taken_away_and_clash_only_where_they_end() -> None:
    swapped = made(help="f2", next_drafter="f1")
    assert not swapped.problems and dict(swapped.own) == {"help": "f2", "next-drafter": "f1"}
    clash = made(help="f7", next_drafter="f7")
    assert len(clash.problems) == 1 and len(clash.own) == 1
    chain = made(help="f2", next_drafter="f3")  # F3 is taken, so F2 stays taken, too
    assert not chain.own and len(chain.problems) == 2
    keys = made(go_on="", help=" ", colours="f1")
    assert not keys.problems and dict(keys.own) == {"go-on": "", "help": "", "colours": "f1"}
    assert keys.of("go-on") == "" and keys.now("Ctrl-G") == "" and keys.now("F3") == "F1"
    assert made(message_before="").now("Ctrl-Up, Ctrl-Down") == "Ctrl-Down"
    taken = keys.textual
    assert taken["colours"] == "f1" and len(set(taken.values())) == 3


def test_the_help_names_the_keys_and_commands_of_now() -> None:
    keys = made(help="f7", message_before="alt+k", quit="ctrl+b,f10")
    assert keys.now("F1") == "F7" and keys.now("Ctrl-Q") == "Ctrl-B, F10"
    assert keys.now("Ctrl-Up, Ctrl-Down") == "Alt-K, Ctrl-Down"
    assert keys.now("Enter") == "Enter" and keys.now("/, //") == "/, //"
    assert shown("ctrl+pagedown") == "Ctrl-PgDn"
    every = [row if isinstance(row, str) else row[0] for rows in HELP.values() for row in rows]
    words = {word for names in every for word in names.split(", ")}
    missing = {shown(key.split(",")[0]) for key in made().usual.values()} - words
    assert not missing
    rows = {words.split(", ")[0]: with_command(words, made()) for words in every}
    functions = {shown(key) for keys in made().usual.values() for key in keys.split(",") if re.fullmatch(r"f\d+", key)}
    assert len(functions) >= 8 and all(re.fullmatch(rf"{key}, /[a-z-]+", rows[key]) for key in functions)
    assert all(rows[each.key].endswith(f", /{each.name}") for each in COMMANDS if each.key)
    assert rows["  Ctrl-T"] == "  Ctrl-T, Ctrl-X"  # another meaning in the list of chats
    assert with_command("F6", made(offer="")) == "/offer" and with_command("Ctrl-R", made(recall="f7")) == "F7, /search"


async def test_the_keys_of_the_file_do_it_and_the_help_says_them(open_chat: Open, tmp_path: Path) -> None:
    text = '[keys]\nhelp = "f7"\nquit = "f1"\nstopp = "f10"\ncolours = "g"\nbench = ""\nmodels = ""\n'
    (tmp_path / "settings.toml").write_text(text, "utf-8")
    async with open_chat(size=(100, 40)) as chat:
        said = " ".join(chat.notices())
        assert "no action stopp. Did you mean stop?" in said and "g alone is what one types" in said
        await chat.press("f7")
        await chat.until(lambda: "Esc closes" in chat.shown())
        rows = " ".join(str(each.content) for each in chat.app.screen.query(Static))
        assert "F7, /help " in rows and "F1, /quit " in rows and "Ctrl-Q" not in rows  # F1 quits now
        assert "Ctrl-L" not in rows and "F8" not in rows  # no key does it
        assert "/models " in rows and "/bench " in rows
        await chat.press("escape")
        await chat.press("f3")
        assert chat.screen.transcript.coloured  # what cannot be leaves the usual key
        await chat.press("f8", "ctrl+l")
        assert chat.app.screen is chat.screen
        bottom = chat.shown().splitlines()[-1]
        assert "Models" not in bottom and "none" not in bottom and "Drafters" in bottom
