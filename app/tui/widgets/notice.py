"""Something the user has to know, where they are reading."""

from __future__ import annotations

from textual.content import Content, Span
from textual.widgets import Static

from slipstream.app.safe_text import clean, sentence


class Notice(Static):
    """An error or a remark in the transcript: what is the matter, and what to try."""

    def __init__(self, title: str, hint: str = "", remark: bool = False) -> None:
        """Makes a notice.

        Args:
            title: What failed and why.
            hint: The next thing to try.
            remark: Whether it is no failure.
        """
        title = sentence(title)
        mark = "i " if remark else "✗ "
        text = mark + title + (f"\n  {clean(hint)}" if hint else "")
        spans = [Span(0, len(mark) + len(title), "bold"), Span(0, 1, "$primary" if remark else "$error")]
        super().__init__(Content(text, spans), classes="remark" if remark else "failure")
