"""The colours of a reply's words: over its Markdown, kept with the chat, on every branch."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from textwrap import dedent

import pytest
from tests.app.tui.conftest import Open
from tests.app.tui.driver import Driver
from tests.app.tui.pictures import drawn
from tests.app.tui.scripted import Script
from textual.app import App, ComposeResult
from textual.content import Content
from textual.widgets import Static

from slipstream.app.chats.records import joined_runs
from slipstream.app.chats.store import ChatStore
from slipstream.app.protocol.events import Piece
from slipstream.app.tui.chat.authorship import BONUS, COPIED, DRAFTED, RECOVERED, style_of
from slipstream.app.tui.chat.reply import ReplyView
from slipstream.app.tui.chat.reply_text import Fence, ReplyText

TEXT = "The sea is wide and blue, and it is never quite still."
MARKED = """# The *wide* sea

It is **wide** and `blue`, see [here](https://example.org/the/sea), and it\xa0is deep.

1. one at noon
2. two

```python
def tide(hour):
    return hour % 12
```

| moon | tide |
|---|---|
| new | high |
"""


def styled(reply: ReplyText) -> list[tuple[str, str]]:
    """The stretches of a reply with the style of a source, as they are shown."""
    found = []
    for part in reply.query(Static):
        if isinstance(part.content, Content) and not part.has_class("head"):  # above code: its language
            for span in part.content.spans:
                if str(span.style) in (DRAFTED, COPIED, RECOVERED, BONUS):
                    found.append((part.content.plain[span.start : span.end], str(span.style)))
    return found


def last(chat: Driver) -> list[tuple[str, str]]:
    return styled([*chat.screen.query(ReplyView)][-1].query_one(ReplyText))


async def test_colours_come_back_with_the_chat(open_chat: Open, store: ChatStore) -> None:
    async with open_chat(Script(TEXT)) as chat:
        await chat.say("x")
        await chat.press("f3")
        live = last(chat)
        assert len({style for _, style in live}) == 3  # guessed, corrected, and free
    (kept,) = store.list_chats()
    async with open_chat(chat=kept.id) as chat:
        await chat.until(lambda: last(chat) == live)


class Shown(App[None]):
    def __init__(self, pieces: list[Piece]) -> None:
        super().__init__()
        self.reply = ReplyText(pieces)

    def compose(self) -> ComposeResult:
        yield self.reply


def in_pieces(text: str) -> list[Piece]:
    words, pieces = text.split(" "), []
    kinds = (("accepted", "draft"), ("recovered", ""), ("accepted", "lookup"), ("plain", ""))
    for at, word in enumerate(words):
        origin, source = kinds[at % len(kinds)]
        pieces.append(Piece(word + " " * (at + 1 < len(words)), origin, source))  # type: ignore[arg-type]
    return pieces


@pytest.mark.parametrize("live", [False, True])
async def test_markdown_stays_under_the_colours(live: bool) -> None:
    pieces = in_pieces(MARKED)
    app = Shown([] if live else pieces)
    async with app.run_test(size=(90, 60)) as pilot:
        app.reply.colour(True)
        if live:
            for piece in pieces:
                app.reply.write([piece])
                await pilot.pause()
        await pilot.pause()
        found = styled(app.reply)
        shown = [part.content.plain for part in app.reply.query(Static) if isinstance(part.content, Content)]
        assert not any("**" in text or "```" in text or "https:" in text for text in shown)
        wanted: dict[str, set[str]] = {}
        for piece in pieces:
            for word in re.findall("[a-z]+", piece.text):
                wanted.setdefault(word, set()).add(style_of(piece))
        seen = {(word, style) for words, style in found for word in re.findall("[a-z]+", words)}
        assert all(style in wanted[word] for word, style in seen)
        lone = {(word, *styles) for word, styles in wanted.items() if len(styles) == 1 and styles != {""}}
        assert {("noon", *wanted["noon"]), ("high", *wanted["high"])} <= lone | {("noon", ""), ("high", "")}
        assert lone - seen <= {
            (word, style) for word, style in lone if word in ("https", "example", "org", "the", "python")
        }
        app.reply.colour(False)
        await pilot.pause()
        assert not styled(app.reply)


@asynccontextmanager
async def written(text: str, live: bool) -> AsyncIterator[tuple[Shown, list[str]]]:
    """The lines of a reply that comes character by character, or whole."""
    app = Shown([] if live else [Piece(text, "plain")])
    async with app.run_test(size=(60, 24)) as pilot:
        for character in text if live else "":
            app.reply.write([Piece(character, "plain")])
            await pilot.pause()
        await pilot.pause()
        yield app, [strip.text.rstrip(" │") for strip in drawn(app.screen)]


@pytest.mark.parametrize("live", [False, True])
async def test_code_without_a_fence_keeps_its_indentation(live: bool) -> None:
    code = "def tide(hour):\n    if hour:\n\treturn `a  b`\n        **return** 12  \n minus\nelse"
    wanted = "def tide(hour):\n    if hour:\n    return a  b\n        return 12\n minus\nelse"
    async with written(code, live) as (_, lines):
        assert dedent("\n".join(lines)).strip() == wanted


@pytest.mark.parametrize("live", [False, True])
async def test_tasks_columns_and_code_look_as_markdown_says(live: bool) -> None:
    text = "- [x] done\n- [ ] open\n\n|name|n|\n|-|-:|\n|aaaa|1|\n|b|200|\n\n```\nfor x in y\n```"
    async with written(text, live) as (app, lines):
        assert any("☑ done" in line for line in lines) and any("☐ open" in line for line in lines)
        rows = [line for line in lines if line.endswith((" n", " 1", " 200"))]
        assert len(rows) == 3 and len({len(row) for row in rows}) == 1, lines
        (code,) = app.reply.query(Fence)
        assert {span.style for span in code._highlighted_code.spans} <= {"$text"}  # no language is guessed


def test_neighbours_alike_are_one_run() -> None:
    runs = joined_runs([(3, "plain", ""), (2, "plain", ""), (0, "bonus", ""), (4, "accepted", "lookup")])
    assert runs == [(5, "plain", ""), (4, "accepted", "lookup")]
