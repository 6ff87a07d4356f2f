"""Access to the model manager, which is created when it is first needed: its imports are slow."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from textual.message_pump import MessagePump

from slipstream.app.settings.values import HubSettings
from slipstream.app.tui.parts.notice import ErrorHandler, run_in_thread

if TYPE_CHECKING:  # slow imports: the chat is drawn first
    from slipstream.app.library.manager import ModelManager

T = TypeVar("T")
U = TypeVar("U")
SLOW_S = 5.0  # seconds after which the host of a request is named


class ModelsAccess:
    """Creates the manager on first use, in the calling thread."""

    def __init__(self, make: Callable[[], ModelManager]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._hub: HubSettings | None = None
        self._rpc = ""
        self.made: ModelManager | None = None  # the manager; None before its first use

    def open(self) -> ModelManager:
        with self._lock:
            if self.made is None:
                self.made = self._make()
                self._tell()
            return self.made

    def ask(
        self, node: MessagePump, what: Callable[[ModelManager], T], then: Callable[[T], object], failed: ErrorHandler
    ) -> None:
        run_in_thread(node, lambda: what(self.open()), then, failed)

    def ask_hub(
        self,
        node: MessagePump,
        what: Callable[[ModelManager], T],
        then: Callable[[T], object],
        failed: ErrorHandler,
        slow: Callable[[str], object],
    ) -> None:
        """Calls ``what`` as ``ask`` does; if it takes some seconds, ``slow`` is called with what is waited for."""

        def name() -> None:
            if self.made:
                slow(f"Waiting for {self.made.waiting_for()} … Esc stops")

        timer = node.set_timer(SLOW_S, name)

        def ended(call: Callable[[U], object]) -> Callable[[U], object]:
            def end(value: U) -> object:
                timer.stop()
                return call(value)

            return end

        self.ask(node, what, ended(then), ended(failed))

    def stop_waiting(self) -> bool:
        return bool(self.made and self.made.stop_waiting())

    @property
    def offline(self) -> bool:
        return bool(self.made and self.made.offline)

    def apply(self, hub: HubSettings, rpc: str) -> None:
        self._hub, self._rpc = hub, rpc
        self._tell()

    @property
    def offers(self) -> bool:
        """Whether to suggest a model if only the bundled one is installed."""
        return self._hub is None or self._hub.offer

    def _tell(self) -> None:
        if self.made and self._hub:
            self.made.stay_offline(self._hub.offline)
            self.made.borrow(self._rpc)


def manager() -> ModelManager:
    """Creates the manager; call it in a thread, since its imports are slow."""
    from slipstream.app.library.manager import ModelManager
    from slipstream.app.platform.paths import Paths

    return ModelManager(Paths.default())
