"""Draws the README's picture with the real engine and the bundled model: ``.venv/bin/python .dev/screenshot.py``."""

import asyncio
import tempfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from slipstream.app.chats.store import ChatStore
from slipstream.app.engine.host import Engine
from slipstream.app.engine.requests import Sampling
from slipstream.app.model_choice import choose
from slipstream.app.paths import Paths
from slipstream.app.tui.app import ChatApp
from slipstream.app.tui.widgets.prompt import Prompt

PROMPTS = (
    "Who are you?",
    "Tell me about honey",
    "How do I search for a file by its name?",
    "Tell me a story about a kite.",
)
SIZE = (100, 32)


async def draw(path: Path, home: Path) -> None:
    """Asks the prompts as a user would, colours the tokens, and writes the screen as SVG."""
    paths = Paths.default({"SLIPSTREAM_HOME": str(home)})
    with closing(ChatStore(paths.chats)) as store:
        app = ChatApp(
            Engine(paths.logs / "engine.log"),
            replace(choose(paths), spare_cores=1),
            store,
            sampling=Sampling(temperature=0.4, seed=3),
        )
        async with app.run_test(size=SIZE) as pilot:
            for count, text in enumerate(PROMPTS, 1):
                prompt = app.screen.query_one(Prompt)
                prompt.put(text)
                while len(_done(store)) < count:
                    await pilot.press("enter")  # refused until the model is loaded; empty afterwards
                    await asyncio.sleep(0.2)
            await pilot.press("f3")
            await pilot.pause(0.5)
            path.write_text(app.export_screenshot(title="slipstream"))


def _done(store: ChatStore) -> list[str]:
    chats = store.list_chats(1)
    messages = store.messages(chats[0].id) if chats else []
    return [message.content for message in messages if message.role == "assistant" and message.status == "done"]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(draw(Path(__file__).with_name("screenshot.svg"), Path(folder)))
