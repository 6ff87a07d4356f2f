"""What the tests of the chat see and press."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from tests.app.tui.pictures import drawn
from tests.app.tui.scripted import ScriptedEngine
from textual.events import Key
from textual.message import Message
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import Static

from slipstream.app.chats.store import ChatStore
from slipstream.app.tui.app import ChatApp
from slipstream.app.tui.chat.message import Question
from slipstream.app.tui.chat.reply import ReplyView
from slipstream.app.tui.chat.screen import ChatScreen
from slipstream.app.tui.parts.notice import Notice

M = TypeVar("M", bound=Message)
S = TypeVar("S", bound=Screen[Any])
PATIENCE = 60.0  # seconds; a busy machine is slow, a test that waits this long has failed


async def press_alt(pilot: Pilot[Any], *letters: str) -> None:
    """Presses Alt with letters as a terminal sends them; the pilot's keys with Alt lack the character."""
    for letter in letters:
        pilot.app.post_message(Key(f"alt+{letter}", letter))
        await pilot.pause()


@dataclass
class Driver:
    app: ChatApp
    pilot: Pilot[int]
    engine: ScriptedEngine
    store: ChatStore
    log: list[Message]

    @property
    def screen(self) -> ChatScreen:
        return self.app.chat

    def on(self, kind: type[S]) -> S:
        """The screen that is shown, which must be of a kind."""
        assert isinstance(self.app.screen, kind)
        return self.app.screen

    async def until(self, done: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE
        while not done():
            assert time.monotonic() < end, self.shown()
            await asyncio.sleep(0.005)
        await self.pilot.pause()

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)

    async def say(self, text: str, wait: bool = True) -> None:
        self.screen.prompt.put(text)
        asked = len(self.engine.asked)
        await self.press("enter")
        if wait:
            await self.until(lambda: len(self.engine.asked) > asked and self.idle())

    async def begin(self, text: str, letters: int) -> None:
        await self.say(text, wait=False)
        await self.wrote(letters)

    async def wrote(self, letters: int) -> None:
        await self.until(lambda: self.screen.reply.widget is not None and len(self.screen.reply.widget.text) >= letters)

    async def held(self, text: str) -> None:
        await self.until(lambda: self.screen.reply.widget is not None and self.screen.reply.widget.text == text)

    def idle(self) -> bool:
        return not self.screen.reply.writing and not self.screen.engine.busy

    def posted(self, kind: type[M]) -> list[M]:
        return list({id(message): message for message in self.log if isinstance(message, kind)}.values())

    def replies(self) -> list[ReplyView]:
        return list(self.screen.query(ReplyView))

    def texts(self) -> list[str]:
        return [
            widget.text if isinstance(widget, ReplyView) else str(widget.content)
            for widget in self.screen.transcript.column.children
            if isinstance(widget, ReplyView | Question)
        ]

    def shows(self, count: int) -> bool:
        return len(self.texts()) == count

    def notices(self) -> list[str]:
        return [str(notice.content) for notice in self.screen.query(Notice)]

    def footnote(self, at: int = -1) -> str:
        return str(self.replies()[at].query_one(".footnote", Static).content)

    @property
    def alive(self) -> bool:
        return self.app.is_running and self.app._exception is None

    def toasts(self) -> list[str]:
        return [notification.message for notification in self.app._notifications]

    def shown(self) -> str:
        strips = drawn(self.app.screen)
        return "\n".join(strip.text for strip in strips)
