"""Chats and the places where words were found, as the rows of a list."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from itertools import groupby

from textual.content import Content, Span
from textual.widgets.option_list import Option

from slipstream.app.chats.records import StoredChat
from slipstream.app.chats.search import Hit
from slipstream.app.safe_text import one_line

BEFORE = 14
"""Characters of a snippet before its first word."""


def chat_rows(chats: Iterable[StoredChat], current: str | None, now: float) -> list[Option]:
    """A row for every chat, with its id; those of one time below a heading, which has none.

    Args:
        chats: Chats, in the order of the list.
        current: The one that is open, if it is kept.
        now: Seconds since 1970.
    """
    rows: list[Option] = []
    for name, those in groupby(chats, lambda chat: section(chat, now)):
        rows.append(Option(_heading(name, bool(rows)), disabled=True))
        for chat in those:
            open_now = chat.id == current
            mark = Content.styled("▌ ", "$primary") if open_now else Content("  ")
            rows.append(Option(mark.append(_title(chat.title).stylize("bold" if open_now else "")), id=chat.id))
    return rows


def hit_rows(hits: Mapping[str, Hit]) -> list[Option]:
    """A row for every place, with its key: the chat's title, and what stands around the words."""
    return [Option(_hit(hit), id=key) for key, hit in hits.items()]


def _hit(hit: Hit) -> Content:
    if hit.message is None:  # the words are in the title
        return Content("  ").append(_highlighted(hit.snippet, hit.spans))
    return Content("\n").join(
        [Content("  ").append(_title(hit.title)), Content("    ").append(_highlighted(*_near(hit)))]
    )


def _title(title: str) -> Content:
    return Content(one_line(title) or "(no title)")


def section(chat: StoredChat, now: float) -> str:
    """Where a chat stands in the list: "Pinned", "Today", "Yesterday", "This week" or a month, as "March 2024"."""
    if chat.pinned:
        return "Pinned"
    today, then = time.localtime(now), time.localtime(chat.updated)
    midnight = time.mktime((today.tm_year, today.tm_mon, today.tm_mday, 0, 0, 0, 0, 0, -1))
    if chat.updated >= midnight:
        return "Today"
    for name, days in (("Yesterday", 1), ("This week", 6)):
        start = time.mktime((today.tm_year, today.tm_mon, today.tm_mday - days, 0, 0, 0, 0, 0, -1))
        if chat.updated >= start:
            return name
    return time.strftime("%B" if then.tm_year == today.tm_year else "%B %Y", then)


def _heading(name: str, below: bool) -> Content:
    return Content("\n" if below else "").append(Content.styled(name, "$foreground 45%"))


def _near(hit: Hit) -> tuple[str, tuple[tuple[int, int], ...]]:
    """The snippet from shortly before its first word on, so that this one is to be seen."""
    cut = max(hit.spans[0][0] - BEFORE, 0) if hit.spans else 0
    start = hit.snippet.find(" ", cut) + 1 if cut else 0
    if not 0 < start <= (hit.spans[0][0] if hit.spans else 0):
        return hit.snippet, hit.spans
    moved = tuple((first - start + 1, last - start + 1) for first, last in hit.spans)
    return "…" + hit.snippet[start:], moved


def _highlighted(text: str, spans: tuple[tuple[int, int], ...]) -> Content:
    words = [Span(start, end, "bold $accent") for start, end in spans]
    return Content(text, [Span(0, len(text), "$foreground 65%"), *words])
