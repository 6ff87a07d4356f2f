"""Every screen at two sizes, once as SVG, else as text with styles; ``RENEW_SNAPSHOTS=1`` keeps them anew.

Look at what is renewed: it is what a person will see.
"""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from difflib import unified_diff
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Final

import pytest
from tests.app.tui.conftest import Open
from tests.app.tui.driver import Driver
from tests.app.tui.pictures import grid, picture
from tests.app.tui.scripted import LOADED, Script, ScriptedEngine
from tests.app.tui.scripted_commands import result, scripted
from tests.app.tui.scripted_models import ScriptedModels, model

from slipstream.app.bench.race_events import RaceFrame, Racer, RaceResult, RaceStart, encoded
from slipstream.app.chats.store import ChatStore
from slipstream.app.tui.race import RaceScreen

KEPT: Final = Path(__file__).parent / "snapshots"
SIZES: Final = ((80, 24), (140, 40))
# kept as SVG, to be looked at
PICTURES: Final = frozenset(
    ["chat-140x40", "light-80x24", "trees-140x40", "chats-80x24", "prompts-80x24", "commands-80x24"]
    + [f"{name}-140x40" for name in ("help", "drafters", "models", "bench", "settings")]
)
QUIET: Final = 0.5  # seconds without a change after which a screen is kept
PATIENCE: Final = 30.0
REPLY: Final = (
    "# The sea\n\nIt is **wide** and blue, and it has `tides`:\n\n1. one at noon\n2. one at night\n\n"
    "```python\ndef tide(hour):\n    return hour % 12\n```\n\n| moon | tide |\n|---|---|\n| new | high |\n\n> Deep."
)
LANES: Final = (Racer("The keeper climbed the stairs.", 60, 0.2, True), Racer("The keeper climbed.", 60, 0.4, True))
RACE: Final = (
    RaceStart("mini", "draft", "Tell me a story.", 1, 60, 200.0, "same distribution"),
    RaceResult(RaceFrame(*LANES), False, 4, 0.7, 2.4, busy=True),
)
Bring = Callable[[Driver], Awaitable[None]]


def pressing(*keys: str) -> Bring:
    async def bring(chat: Driver) -> None:
        await chat.press(*keys)

    return bring


def themed(theme: str) -> Bring:
    async def bring(chat: Driver) -> None:
        chat.app.theme = theme
        await chat.pilot.pause()
        await chat.press("f3")

    return bring


async def writing(chat: Driver) -> None:
    chat.engine.scripts[0].hold = 12
    await chat.say("Go on.", wait=False)
    await chat.until(lambda: chat.screen.reply.widget is not None and "wide" in chat.screen.reply.widget.text)


async def selected(chat: Driver) -> None:
    await chat.press("f5")
    await chat.until(lambda: len(chat.engine.asked) == 2 and chat.idle())
    await chat.press("alt+up")


async def racing(chat: Driver) -> None:
    chat.screen.prompt.put("/race Tell me a story.")
    await chat.press("enter")
    await chat.until(lambda: isinstance(chat.app.screen, RaceScreen) and chat.app.screen.picture.finish is not None)


SCREENS: Final[dict[str, Bring]] = {
    "chat": pressing(), "writing": writing, "colours": pressing("f3"), "selected": selected, "trees": pressing("f4"),
    "chats": pressing("ctrl+o"), "prompts": pressing("ctrl+r"), "commands": pressing("slash"), "help": pressing("f1"),
    "drafters": pressing("ctrl+d"), "models": pressing("ctrl+l"), "bench": pressing("f8"), "settings": pressing("f9"),
    "race": racing, "light": themed("slipstream-light"), "contrast": themed("slipstream-contrast"),
}  # fmt: skip


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder whose name is always as long: it is on a screen."""
    with TemporaryDirectory(prefix="screen-", dir="/tmp") as folder:
        yield Path(folder)


async def at_rest(seen: Callable[[], str]) -> str:
    before, still = "", 0.0
    while still < QUIET:
        await asyncio.sleep(0.05)
        now = seen()
        before, still = now, still + 0.05 if now == before else 0.0
    return before


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("name", SCREENS)
async def test_the_screen_looks_as_it_was_kept(
    name: str, size: tuple[int, int], open_chat: Open, store: ChatStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = scripted(tmp_path, monkeypatch)
    commands.lines, commands.held = [json.dumps(encoded(event)) for event in RACE], False
    result(tmp_path / "benches" / "2026-03-04 05.06.07.json")
    monkeypatch.setattr("slipstream.app.tui.chat.model_picker.OFFER_AFTER", 3600.0)
    for question in ("How do owls fly?", "Why is the sky blue?"):
        store.add_user(store.create().id, question)
    models = ScriptedModels(here=[model("qwen3-0.6b", 640_000_000), model("mini", 12_000_000)])
    engine = ScriptedEngine([Script(REPLY), Script("It is wide and blue.")], loaded=replace(LOADED))
    async with open_chat(engine=engine, size=size, models=models) as chat:
        await chat.say("Tell me about the sea.")
        await at_rest(lambda: grid(chat.app.screen, tmp_path))  # the end of the reply is drawn
        await SCREENS[name](chat)
        stem = f"{name}-{size[0]}x{size[1]}"
        form, ending = (picture, "svg") if stem in PICTURES else (grid, "txt")
        file = KEPT / f"{stem}.{ending}"
        if os.environ.get("RENEW_SNAPSHOTS"):
            file.write_text(await at_rest(lambda: form(chat.app.screen, tmp_path)))
        kept = file.read_text()
        end = monotonic() + PATIENCE
        while form(chat.app.screen, tmp_path) != kept and monotonic() < end:
            await asyncio.sleep(0.05)
        changed = unified_diff(
            kept.splitlines(), form(chat.app.screen, tmp_path).splitlines(), "kept", "seen", n=0, lineterm=""
        )
        assert not "\n".join(changed)
        chat.engine.stop(0)
