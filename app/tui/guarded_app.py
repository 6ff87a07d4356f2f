"""The base of the two apps: input cannot end it, an error in a handler is shown, and the terminal is left as it was."""

import sys
import time
import traceback
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, ClassVar, Final, cast

from rich.console import RenderableType
from textual import events
from textual.app import App
from textual.css.query import NoMatches
from textual.driver import Driver
from textual.errors import NoWidget
from textual.message import Message
from textual.message_pump import MessagePump
from textual.widget import MountError

from slipstream.app.platform.error_log import explained
from slipstream.app.platform.safe_text import sentence
from slipstream.app.tui.input_guard import FromInput
from slipstream.app.tui.keys import types_nothing
from slipstream.app.tui.parts.notice import TROUBLE

SHOW_EVERY: Final = 60.0  # seconds between two toasts about an error at the same place


class InputGuard:
    """Decides which input the app handles, and which errors in handlers it survives."""

    def __init__(self, show: Callable[[str], object]) -> None:
        self._show = show
        self._seen: dict[str, float] = {}  # when an error was last shown, by its place in the code

    def refuses(self, event: events.Event, app: App[Any]) -> bool:
        """Whether an event is a mouse report from outside the window, or a click on a widget that has just gone."""
        if not isinstance(event, events.MouseEvent):
            return False
        screen = app.screen
        if not screen.region.contains(int(event.x), int(event.y)) or event.x < 0 or event.y < 0:
            return True
        if isinstance(event, events.MouseDown | events.MouseUp):
            with suppress(NoWidget):
                widget, _ = screen.get_widget_at(int(event.x), int(event.y))
                return not widget.is_attached
        return False

    def survives(self, error: Exception, message: Message, ending: bool) -> bool:
        """Logs and shows an error caused by input; False for any other, or one that leaves a screen half made."""
        if FromInput not in message._prevent or isinstance(message, events.Compose | events.Mount):
            return False
        place, now = str(traceback.extract_tb(error.__traceback__)[-1:]), time.monotonic()
        if not ending and now - self._seen.get(place, -SHOW_EVERY) >= SHOW_EVERY:
            self._seen[place] = now
            self._show(f"a key or a click had no effect: {explained(error)}")
        return True


class GuardedApp(App[int]):
    """An app that survives faulty input, and leaves the terminal as it was."""

    INLINE: ClassVar[bool] = False  # whether it takes a few lines of the terminal only

    def __init__(self) -> None:
        super().__init__()
        guard_handlers()
        self.input_guard = InputGuard(self.show_survived)

    def show_survived(self, words: str) -> None:
        self.notify(sentence(words), severity="warning", timeout=TROUBLE, markup=False)

    async def on_event(self, event: events.Event) -> None:
        """Drops Alt keys without a binding: an input would insert their character."""
        useless = isinstance(event, events.Key) and types_nothing(event, self.screen)
        if not useless and not self.input_guard.refuses(event, self):
            await super().on_event(event)

    def get_driver_class(self) -> type[Driver]:
        """Uses a driver that restores the terminal even after its launcher is gone."""
        usual = super().get_driver_class()
        if sys.platform != "win32":
            from slipstream.app.tui.terminal import chat_driver

            return chat_driver(usual, self.INLINE)
        return usual

    def exit(self, result: int | None = None, return_code: int = 0, message: RenderableType | None = None) -> None:
        """Ends the app within ``terminal.PATIENCE``, even if the engine, a thread or the terminal hangs."""
        super().exit(result, return_code, message)
        if sys.platform != "win32" and not self.is_headless:
            from slipstream.app.tui.terminal import end_in_time

            end_in_time(result or return_code)


def guard_handlers() -> None:
    """Guards the handlers of every widget of an app with an ``input_guard``.

    Textual 8.2.8 ends a widget, and with it the program, at the first error in a handler, and has no hook around one.
    """
    dispatch = MessagePump._dispatch_message
    if getattr(dispatch, "guards", False):
        return

    async def guarded(pump: MessagePump, message: Message) -> None:
        if isinstance(message, events.InputEvent | events.Paste) and pump.app._exit:
            return  # the chat ends: thousands of keys may wait
        try:
            await dispatch(pump, message)
        except Exception as error:
            guard: InputGuard | None = getattr(pump.app, "input_guard", None)
            if guard is None or not guard.survives(error, message, pump.app._exit):
                raise

    def dispatched(pump: MessagePump, message: Message) -> Coroutine[Any, Any, None]:
        """Only what input has caused is guarded: most messages have other causes."""
        return guarded(pump, message) if FromInput in message._prevent else dispatch(pump, message)

    report = App._handle_exception

    def reported(app: App[Any], error: Exception) -> None:
        if not (app._exit and isinstance(error, MountError | NoMatches)):  # nothing can be mounted while the chat ends
            report(app, error)

    cast(Any, dispatched).guards = True
    cast(Any, MessagePump)._dispatch_message = dispatched
    cast(Any, App)._handle_exception = reported
