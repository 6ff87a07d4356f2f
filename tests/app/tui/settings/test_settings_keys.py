"""The key map: what the settings say of keys, what cannot be, and that the keys do it."""

import re
from pathlib import Path

import pytest
from tests.app.tui.conftest import Open
from textual.binding import Binding
from textual.widgets import Static

from slipstream.app.tui.chat.commands import COMMANDS, HELP, with_command
from slipstream.app.tui.chat.screen import ChatScreen
from slipstream.app.tui.keys import KeyMap, shown


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
    words = {word for names, _ in HELP for word in names.split(", ")}
    missing = {shown(key.split(",")[0]) for key in made().usual.values()} - words
    assert not missing
    rows = {words.split(", ")[0]: with_command(words, made()) for words, _ in HELP}
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
