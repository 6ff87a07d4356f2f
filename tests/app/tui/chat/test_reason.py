"""The autopilot says on screen, in one line, what it chose and why."""

from __future__ import annotations

import pytest
from tests.app.tui.conftest import Open

from slipstream.app.protocol import Speed, Stepped
from slipstream.app.tui.chat.status_bar import Strip

WHY = "lookup 6, C(7)=2.9x, expect 4.1 tokens; plain would be 31 tok/s, the latest steps 44 tok/s"


def stepped(why: str) -> Stepped:
    return Stepped(1, [], [5], "lookup", 6, 3, 12.0, Speed(steps=1, tokens=1), 4.1, why)


@pytest.mark.parametrize(("size", "shown"), [((80, 24), True), ((140, 40), True), ((60, 14), False)])
async def test_the_reason_stands_below_the_figures(open_chat: Open, size: tuple[int, int], shown: bool) -> None:
    async with open_chat(size=size) as chat:
        strip = chat.app.screen.query_one(Strip)
        await chat.pilot.pause()
        before = strip.size.height
        strip.step(stepped(WHY))
        await chat.pilot.pause()
        assert strip.size.height == before + shown
        text = str(strip.render())
        assert (WHY[:50] in text) == shown
        strip.step(stepped(""))  # nothing new is said
        await chat.pilot.pause()
        assert (WHY[:50] in str(strip.render())) == shown
        strip.begin("none")
        await chat.pilot.pause()
        assert strip.size.height == before and WHY[:20] not in str(strip.render())


async def test_escape_sequences_in_a_reason_are_inert(open_chat: Open) -> None:
    async with open_chat() as chat:
        strip = chat.app.screen.query_one(Strip)
        strip.step(stepped("\x1b[31mred [b]bold[/b]"))
        await chat.pilot.pause()
        text = str(strip.render())
        assert "\x1b" not in text and "[b]bold[/b]" in text
