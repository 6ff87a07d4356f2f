"""Draws the README's picture of the model manager: ``.venv/bin/python .dev/screenshot_models.py``.

The models, the machine and the verdicts are those of the machine it runs on; nothing is fetched.
"""

import asyncio
import tempfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from slipstream.app.chats.store import ChatStore
from slipstream.app.engine.host import Engine
from slipstream.app.model_choice import choose
from slipstream.app.models.manager import ModelManager
from slipstream.app.paths import Paths
from slipstream.app.tui.app import ChatApp

SIZE = (100, 30)


async def draw(path: Path, home: Path) -> None:
    """Opens the manager at what it recommends, and writes the screen as SVG."""
    paths = Paths.default({"SLIPSTREAM_HOME": str(home)})
    with closing(ChatStore(paths.chats)) as store:
        load = replace(choose(paths), spare_cores=1)
        app = ChatApp(Engine(paths.logs / "engine.log"), load, store, models=lambda: ModelManager(paths))
        async with app.run_test(size=SIZE) as pilot:
            await pilot.press("ctrl+l", "2")
            while "★" not in (shown := app.export_screenshot(title="slipstream")):
                await pilot.pause(0.1)
            path.write_text(shown)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(draw(Path(__file__).with_name("screenshot-models.svg"), Path(folder)))
