"""Draws the README's pictures with the real engine: ``python .dev/screenshots.py [MODEL [SHAPE [TYPE]]]``.

Run it with PYTHONPATH=. from the project's folder.

The model is a file or the bundled one, widened to a larger one's cost, 1b in BF16 unless another shape is given: a
small one gains nothing from drafting. Its EAGLE-3 heads draft, whose gain shows from the first reply on.
Text, models, verdicts and figures are those of the machine that it runs on; nothing is fetched.
"""

import asyncio
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from tests.bench.inflate.family import Wish, families, inflated, inflated_folder
from textual.pilot import Pilot

from slipstream.app.bench.results import kept_results
from slipstream.app.chats.store import ChatStore
from slipstream.app.engine.process.client import Engine
from slipstream.app.library.load_request import BUNDLED
from slipstream.app.library.manager import ModelManager
from slipstream.app.library.resolve_model import choose
from slipstream.app.platform.paths import HOME_VARIABLE, Paths
from slipstream.app.protocol.requests import Load
from slipstream.app.settings.file import SettingsFile
from slipstream.app.tui.app import ChatApp
from slipstream.app.tui.bench.form import Picks
from slipstream.app.tui.chat.prompt import PromptBox

PROMPTS = (
    "Who are you?",
    "Tell me about honey",
    "How do I search for a file by its name?",
    "Tell me a story about a kite.",
)
BENCHED = ("auto", "eagle3", "lookup")  # all of them take over eight minutes
SIZE = (110, 34)
FOLDER = Path(__file__).parent


async def draw(paths: Paths, load: Load) -> None:
    """Asks the prompts as a user would, goes through the screens, and writes each as SVG."""
    settings = SettingsFile(paths.settings)
    settings.change("reply.max_tokens", 160)  # small models may go on for long
    with closing(ChatStore(paths.chats)) as store:
        app = ChatApp(
            Engine(paths.logs / "engine.log"),
            replace(load, drafter="eagle3", spare_cores=1),
            store,
            models=lambda: ModelManager(paths),
            settings=settings,
        )
        async with app.run_test(size=SIZE) as pilot:
            for count, text in enumerate(PROMPTS, 1):
                if count == len(PROMPTS):
                    await pilot.press("f4")  # shows the guesses of the replies that follow
                app.screen.query_one(PromptBox).put(text)
                while len(_done(store)) < count:
                    await pilot.press("enter")  # refused until the model is loaded; empty afterwards
                    await asyncio.sleep(0.2)
            await pilot.press("f3")
            await _write(app, pilot, "screenshot", lambda shown: True)
            await pilot.press("f4", "ctrl+d", "down", "down")  # one without a file, whose path is private
            await _write(app, pilot, "screenshot-drafters", lambda shown: "lookup" in shown)
            await pilot.press("escape", "ctrl+l", "2")
            await _write(app, pilot, "screenshot-models", lambda shown: "★" in shown)
            await pilot.press("escape")
            app.screen.query_one(PromptBox).put("/race")
            await pilot.press("enter")
            await _write(app, pilot, "screenshot-race", lambda shown: "instead" in shown)
            await pilot.press("escape")
            while app.chat.model.loaded is None:  # the race gives it back
                await pilot.pause(0.5)
            for key in ("f8", "n"):
                await pilot.press(key)
                await pilot.pause(0.5)
            drafters = app.screen.query_one("#drafting", Picks)
            for at, name in enumerate(drafters.chosen):
                if name not in BENCHED:
                    drafters.highlighted = at
                    drafters.action_select()
            await pilot.press("enter")
            await _write(app, pilot, "screenshot-bench", lambda shown: bool(kept_results(paths.benches)))


async def _write(app: ChatApp, pilot: Pilot[int], name: str, ready: Callable[[str], bool]) -> None:
    await pilot.pause(1.0)
    while not ready(app.export_screenshot(title="slipstream")):
        await pilot.pause(0.5)
    await pilot.pause(1.0)
    shown = app.export_screenshot(title="slipstream")
    assert str(FOLDER) not in shown, f"{name} shows a path of this machine"
    (FOLDER / f"{name}.svg").write_text(shown)


def _done(store: ChatStore) -> list[str]:
    chats = store.list_chats(1)
    messages = store.messages(chats[0].id) if chats else []
    return [message.content for message in messages if message.role == "assistant" and message.status == "done"]


def main(model: str = BUNDLED, shape: str = "1b", quant: str = "BF16") -> None:
    paths = Paths.default()
    wish = Wish.of(shape, quant, None, keep=False)
    assert wish
    (family,) = families(choose(paths, model), wish)
    with inflated(family, inflated_folder(paths.derived), wish.keep, print) as made:
        asyncio.run(draw(paths, made.load))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ[HOME_VARIABLE] = str(Path(folder) / "slipstream")
        main(*sys.argv[1:])
