"""Draws the chat with a scripted engine: ``PYTHONPATH=.dev python -m tests.app.tui.screenshot .dev/screenshot.svg``."""

import asyncio
import sys
import tempfile
from pathlib import Path

from tests.app.tui.scripted import Script, ScriptedEngine

from slipstream.app.chats.store import ChatStore
from slipstream.app.engine.protocol import Load
from slipstream.app.tui.app import ChatApp

SIZE = (100, 32)
FIRST = """A drafter is a **small, fast model** that guesses the next few words. The large model checks
all of the guesses in one pass and keeps those it would have written itself:

```python
def ride(target, drafter, text):
    while not text.ended:
        draft = drafter.guess(text)
        text += target.check(text, draft)   # its own words, only sooner
```

So the text stays the same, and comes faster."""
SECOND = (
    "Once upon a time there was a small fox who lived by the sea. Every morning she ran down to the shore and "
    "listened to the waves, and every evening she told the old lighthouse what they had said."
)


async def draw(path: Path, folder: Path) -> None:
    store = ChatStore(folder / "chats.db")
    engine = ScriptedEngine([Script(FIRST), Script(SECOND)])
    app = ChatApp(engine, Load("slipstream-mini.gguf", drafter="draft"), store)
    async with app.run_test(size=SIZE) as pilot:
        for text in ("What does a drafter do?", "Now a story about a small fox."):
            asked = len(engine.asked)
            app.screen.query_one("Prompt").put(text)  # type: ignore[attr-defined]
            await pilot.press("enter")
            while len(engine.asked) == asked or app._chat._turn:
                await asyncio.sleep(0.01)
        app._chat.transcript.last_reply.colour(True)  # type: ignore[union-attr]
        app._chat.strip.explain(True)
        await pilot.pause(0.2)
        path.write_text(app.export_screenshot(title="slipstream"))
    store.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(draw(Path(sys.argv[1]), Path(folder)))
