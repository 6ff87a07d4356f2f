"""A reply of many thousand tokens: little of it is mounted, and all of it is there."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.app.tui.conftest import Open
from tests.app.tui.driver import Driver
from textual.widgets import Markdown

from slipstream.app.chats.reasoning import Thinking
from slipstream.app.chats.store import ChatStore
from slipstream.app.protocol.events import Piece
from slipstream.app.speed import Speed
from slipstream.app.tui.chat.reply import ReplyView
from slipstream.app.tui.chat.reply_text import FenceHead

pytestmark = pytest.mark.slow

PARTS = 30
MOST = 210  # widgets that a reply may have mounted, however long it is
STEPS = 110
CODE = "\n\n".join(f"def step_{number}(x):\n    return x + {number}" for number in range(STEPS))


def prose(first: int, last: int) -> str:
    words = "the sea is wide and blue and never still " * 6
    return "".join(f"## Part {n}\n\nHere {n}: {words}\n\n- one of {n}\n- two of {n}\n\n" for n in range(first, last))


TEXT = prose(0, PARTS // 2) + f"```python\n{CODE}\n```\n\n" + prose(PARTS // 2, PARTS) + "```\nshort\n```\n\nThe end."


async def stream(chat: Driver, reply: ReplyView, text: str) -> int:
    """Writes a text as a model would; gives the most widgets that the reply had."""
    most, mind = 0, Thinking()
    for number, start in enumerate(range(0, len(text), 130)):
        origin = ("accepted", "recovered", "bonus")[number % 3]
        pieces = [Piece(text[start : start + 130], origin, "draft")]  # type: ignore[arg-type]
        reply.write(pieces, Speed(), mind.divide(pieces))
        if number % 4 == 0:
            for column in reply.columns:
                await column.draw()
            await drawn(chat)
        most = max(most, widgets(reply))
    return most


async def drawn(chat: Driver) -> None:
    for _ in range(3):
        done = asyncio.Event()
        chat.screen.transcript.call_after_refresh(done.set)
        await done.wait()


def widgets(reply: ReplyView) -> int:
    return len(reply.query("*"))


@asynccontextmanager
async def streamed(open_chat: Open, text: str = TEXT) -> AsyncIterator[tuple[Driver, ReplyView]]:
    async with open_chat() as chat:
        transcript = chat.screen.transcript
        await transcript.column.remove_children()
        reply = ReplyView(1)
        await transcript.add(reply)
        transcript.to_end()
        assert await stream(chat, reply, text) < MOST
        await reply.finish("done", text)
        end = "two of" if text.endswith("\n\n") else text[-4:]
        await chat.until(lambda: end in chat.shown())
        yield chat, reply


def kept(store: ChatStore, text: str = TEXT) -> str:
    chat = store.create("long").id
    store.add_user(chat, "x")
    reply = store.begin_reply(chat, model="m", fingerprint="f1", drafter="none", seed=1)
    store.finish_reply(reply.id, text=text, reason="stop")
    return chat


async def seen_all(chat: Driver, key: str) -> list[str]:
    """Scrolls to an end by a key, page by page; gives the lines of the screens on the way."""
    transcript, screens = chat.screen.transcript, list[str]()
    while True:
        screens.append(chat.shown())
        assert widgets(chat.replies()[0]) < MOST
        before = transcript.scroll_y
        transcript.page(-1 if key == "pageup" else 1)
        await drawn(chat)
        if transcript.scroll_y == before:
            return screens


def missing(screens: list[str]) -> list[str]:
    shown = re.sub(r"[^\w+:]", "", "".join(screens))
    lines = [f"Here{n}:" for n in range(PARTS)] + [f"twoof{n}" for n in range(PARTS)]
    lines += [f"step_{n}x:" for n in range(STEPS)] + [f"returnx+{n}" for n in range(STEPS)] + ["Theend"]
    return [line for line in lines if line not in shown]


async def test_a_long_reply_has_few_widgets_and_is_read_from_its_end_to_its_top_and_back(open_chat: Open) -> None:
    async with streamed(open_chat) as (chat, reply):
        assert "The end." in chat.shown() and reply.text == TEXT
        up = await seen_all(chat, "pageup")
        assert "Part 0" in up[-1] and not missing(up)
        assert not missing(await seen_all(chat, "pagedown"))
        await chat.press("ctrl+home")
        await chat.until(lambda: "Here 0:" in chat.shown())
        await chat.press("ctrl+end")
        await chat.until(lambda: "The end." in chat.shown())


async def test_lines_stay_where_they_are_while_one_scrolls_up(open_chat: Open, store: ChatStore) -> None:
    async with open_chat(chat=kept(store)) as chat:
        await chat.until(lambda: "The end." in chat.shown())
        transcript = chat.screen.transcript
        transcript.release_anchor()
        region = transcript.content_region
        while transcript.scroll_y > 7:
            before = chat.shown().splitlines()[region.y : region.bottom - 7]
            transcript.scroll_relative(y=-7, animate=False)
            await drawn(chat)
            after = chat.shown().splitlines()[region.y + 7 : region.bottom]
            assert [line[:70] for line in after] == [line[:70] for line in before]


@pytest.mark.parametrize("at", ["top", "end"])
async def test_another_size_keeps_all_of_it_readable(open_chat: Open, store: ChatStore, at: str) -> None:
    async with open_chat(chat=kept(store)) as chat:
        await chat.until(lambda: "The end." in chat.shown())
        if at == "top":
            await chat.press("ctrl+home")
            await chat.until(lambda: "Here 0:" in chat.shown())
        await chat.pilot.resize_terminal(50, 30)
        await chat.until(lambda: ("Here 0:" if at == "top" else "The end.") in chat.shown())
        assert not missing(await seen_all(chat, "pagedown" if at == "top" else "pageup"))


async def test_colours_are_on_all_of_it_and_few_widgets(open_chat: Open) -> None:
    async with streamed(open_chat) as (chat, reply):
        await chat.press("f3")
        await chat.until(lambda: reply.coloured and "The end." in chat.shown())
        screens = await seen_all(chat, "pageup")
        assert "Part 0" in screens[-1] and "## Part" not in screens[-1] and not missing(screens)
        await chat.press("f3")
        await chat.until(lambda: "## Part" not in chat.shown())
        assert widgets(reply) < MOST


async def test_long_thoughts_are_opened_and_folded(open_chat: Open) -> None:
    async with streamed(open_chat, f"<think>{TEXT}</think>Yes.") as (chat, reply):
        folded = widgets(reply)
        await chat.press("ctrl+t", "ctrl+end")
        await chat.until(lambda: "The end." in chat.shown() and "Yes." in chat.shown())
        await drawn(chat)
        assert not missing(await seen_all(chat, "pageup"))
        await chat.press("ctrl+t")
        await chat.until(lambda: "thought" in chat.shown() and "Yes." in chat.shown())
        assert folded < 40 and reply.answer == "Yes."


async def test_a_long_code_block_is_copied_whole_by_key_and_by_click(open_chat: Open, store: ChatStore) -> None:
    async with open_chat(chat=kept(store)) as chat:
        await chat.until(lambda: "The end." in chat.shown())
        await chat.press("ctrl+up", "1")
        assert chat.app.clipboard == CODE
        await chat.press("2")
        assert chat.app.clipboard == "short"
        await chat.until(lambda: "copy: 2" in chat.shown())
        while "copy: 1" not in chat.shown():
            chat.screen.transcript.page(-1)
            await drawn(chat)
        await chat.press("2")
        heads = [head for head in chat.screen.query(FenceHead) if head.display and head.region.height]
        head = next(head for head in heads if "copy: 1" in str(head.content))
        await chat.pilot.click(head)
        await chat.until(lambda: chat.app.clipboard == CODE)


async def test_what_is_selected_stays_while_one_scrolls_on(open_chat: Open, store: ChatStore) -> None:
    async with open_chat(chat=kept(store)) as chat:
        await chat.until(lambda: "The end." in chat.shown())
        shown = [view for view in chat.screen.query(Markdown) if view.region.height]
        shown[-1].text_select_all()
        await chat.until(lambda: "The end." in (chat.screen.get_selected_text() or ""))
        await chat.press("ctrl+home")
        await chat.until(lambda: "Here 0:" in chat.shown())
        assert "The end." in (chat.screen.get_selected_text() or "")
        await chat.press("ctrl+c")
        assert "The end." in chat.app.clipboard


async def test_a_kept_reply_goes_on_in_its_last_block(open_chat: Open, store: ChatStore) -> None:
    async with open_chat(chat=kept(store, "See:\n\n```python\none = 1\ntwo = 2")) as chat:
        (reply,) = chat.replies()
        reply.resume()
        reply.write([Piece(" + 0\nthree = 3\n```\n\nAfter.", "plain")], Speed())
        await chat.until(lambda: "After." in chat.shown())
        assert all(line in chat.shown() for line in ("one = 1", "two = 2 + 0", "three = 3"))
        assert reply.markdown.codes == ["one = 1\ntwo = 2 + 0\nthree = 3"]
