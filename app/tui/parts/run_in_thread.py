"""Runs blocking work in a thread."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from textual.message_pump import MessagePump

from slipstream.models.errors import SlipstreamError

T = TypeVar("T")


def run_in_thread(
    node: MessagePump,
    what: Callable[[], T],
    then: Callable[[T], object],
    failed: Callable[[SlipstreamError], object],
) -> None:
    """Calls ``what`` in a daemon thread, then ``then`` or ``failed`` as a callback of the node unless it is gone."""

    def run() -> None:
        with suppress(RuntimeError):  # the loop is closed: the program has ended meanwhile
            try:
                result = what()
            except SlipstreamError as error:
                node.call_later(failed, error)
            except Exception as error:  # an internal error is shown and does not end the chat
                fault = SlipstreamError(f"Internal error: {error!r}.", "Please report this.")
                node.call_later(failed, fault)
            else:
                node.call_later(then, result)

    context = contextvars.copy_context()  # holds the running app
    threading.Thread(target=context.run, args=(run,), name="behind", daemon=True).start()
