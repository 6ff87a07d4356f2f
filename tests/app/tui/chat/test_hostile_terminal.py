"""The whole chat on a real terminal, with attacks in all that it shows: nothing of them comes through."""

import pytest
from tests.app.hostile import leaks, on_a_terminal, text

pytestmark = pytest.mark.program

CHAT = r"""
import sys
from dataclasses import replace
from pathlib import Path
from tests.app.hostile import PAYLOADS
from tests.app.tui.driver import Driver
from tests.app.tui.scripted import LOADED, Script, ScriptedEngine
from tests.app.tui.scripted_models import ScriptedModels, model
from slipstream.app.chats.store import ChatStore
from slipstream.app.protocol.events import DrafterOffer
from slipstream.app.protocol.requests import Load
from slipstream.app.tui.app import ChatApp
from slipstream.models.errors import ContextFullError

payloads = ["AB"] if sys.argv[2] == "harmless" else PAYLOADS

def marked(place):
    return [f"{place}Q{number:02d} {payload} " for number, payload in enumerate(payloads)]

def all_of(place):
    return "".join(marked(place))

REPLY = (
    "# " + all_of("hdg") + "\n\n- " + all_of("lst") + "\n\n> " + all_of("quo")
    + "\n\n**" + all_of("bld").strip() + "**\n\n| a |\n|---|\n| " + all_of("tab") + "|\n\n`" + all_of("cod")
    + "`\n\n" + "".join(f"[{one}](http://e.vil) " for one in marked("lnk"))
    + "\n\n```py" + payloads[0] + "\n" + "\n".join(marked("fen")) + "\n```\n\n&#x202E;&#xE0041;&#27;[2J&#155;2J"
)
store = ChatStore(Path(sys.argv[1]) / "chats.db")
for title in marked("ttl"):
    store.rename(store.create().id, title[:200])
kept = store.create().id
store.add_user(kept, all_of("qst"))
reply = store.begin_reply(kept, model="m", fingerprint="f1", drafter="draft", seed=1)
store.finish_reply(reply.id, text=REPLY, tokens=[1], reason="stop")
offers = [DrafterOffer("none", True), *(DrafterOffer(name, True) for name in marked("drf")[::2])]
offers += [DrafterOffer(f"x{number}", False, why) for number, why in enumerate(marked("why")[1::2])]
first = payloads[0]
loaded = replace(LOADED, name=first, architecture=first, device=first, drafters=offers)
error = ContextFullError(all_of("err"), all_of("hnt"))
engine = ScriptedEngine([Script(all_of("par")), Script(fails=error)], loaded=loaded)
models = ScriptedModels(here=[model(name, 1000) for name in marked("mdl")])
app = ChatApp(engine, Load("mini.gguf", drafter="draft"), store, kept, models=lambda: models)

async def scenario(pilot):
    chat = Driver(app, pilot, engine, store, [])
    await chat.until(lambda: chat.screen.model.loaded is not None)
    await chat.say("y")
    await chat.press("f3")
    await chat.pilot.pause()
    await chat.press("f3")
    await chat.pilot.pause()
    for key, place in (("ctrl+o", "ttl"), ("ctrl+d", "drf"), ("ctrl+l", "mdl")):
        await chat.press(key)
        await chat.until(lambda: all(f"{place}Q{n:02d}" in chat.shown() for n in range(0, len(payloads), 2)))
        await chat.press("escape")
        await chat.pilot.pause()
    await chat.say("x")
    await chat.until(lambda: bool(chat.notices()))
    app.exit(0)

app.run(auto_pilot=scenario)
store.close()
sys.exit(app.return_code)
"""
PLACES = (
    "par", "hdg", "lst", "quo", "bld", "tab", "cod", "lnk", "fen", "qst", "err", "hnt", "ttl", "drf", "why", "mdl",
)  # fmt: skip


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    homes = {kind: tmp_path_factory.mktemp(kind) for kind in ("harmless", "hostile")}
    lines = {"harmless": 50, "hostile": 200}
    return {
        kind: on_a_terminal(CHAT, str(home), kind, size=(160, lines[kind]), home=home) for kind, home in homes.items()
    }


@pytest.mark.slow
def test_nothing_comes_through(sent: dict[str, bytes]) -> None:
    assert leaks(sent["hostile"], sent["harmless"]) == []


@pytest.mark.parametrize("place", PLACES)
def test_every_case_was_shown(sent: dict[str, bytes], place: str) -> None:
    shown = text(sent["hostile"])
    numbers = {"drf": range(0, 40, 2), "why": range(1, 40, 2)}.get(place, range(40))
    missing = [number for number in numbers if f"{place}Q{number:02d}" not in shown]
    assert len(missing) <= (place in ("err", "hnt"))  # there, one may be cut where the line ends
