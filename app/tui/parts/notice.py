"""Notices in the transcript, toasts, and blocking work in a thread, whose outcome is shown."""

import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeVar

from textual.content import Content, Span
from textual.message import Message
from textual.message_pump import MessagePump
from textual.widget import Widget
from textual.widgets import Static

from slipstream.app.platform.safe_text import clean, sentence
from slipstream.models.errors import SlipstreamError

NOTICED: Final = 1.2  # seconds until a user notices a toast
READ: Final = 0.045  # seconds to read one character
TROUBLE: Final = 8.0  # seconds that an error is shown
T = TypeVar("T")
ErrorHandler = Callable[[SlipstreamError], object]


@dataclass
class ChatsChanged(Message):
    """The file of the chats was replaced or rewritten."""

    words: str


class Notice(Static):
    """An error or a remark in the transcript, with a hint."""

    def __init__(self, title: str, hint: str = "", remark: bool = False) -> None:
        title = sentence(title)
        mark = "i " if remark else "✗ "
        text = mark + title + (f"\n  {clean(hint)}" if hint else "")
        spans = [Span(0, len(mark) + len(title), "bold"), Span(0, 1, "$primary" if remark else "$error")]
        super().__init__(Content(text, spans), classes="remark" if remark else "failure")


def hint(on: Widget, words: str) -> None:
    on.app.clear_notifications()
    on.notify(clean(words), timeout=NOTICED + READ * len(words), markup=False)


def trouble(on: Widget, error: SlipstreamError) -> None:
    on.notify(sentence(f"{error.title} {error.hint}"), severity="error", timeout=TROUBLE, markup=False)


def run_in_thread(node: MessagePump, what: Callable[[], T], then: Callable[[T], object], failed: ErrorHandler) -> None:
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
