"""Notices in the transcript, and toasts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from textual.content import Content, Span
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Static

from slipstream.app.platform.safe_text import clean, sentence
from slipstream.models.errors import SlipstreamError

NOTICED: Final = 1.2  # seconds until a user notices a toast
READ: Final = 0.045  # seconds to read one character
TROUBLE: Final = 8.0  # seconds that an error is shown


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
