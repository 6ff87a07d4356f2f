"""What explains the chat fits its columns: the help and the descriptions of the commands."""

import pytest
from tests.app.tui.conftest import Open
from textual.content import Content
from textual.widgets import Static

from slipstream.app.tui.chat.commands import COMMANDS, FRAME, HelpScreen

ROOM = 71  # cells of a command and its description on a screen of 80 columns


@pytest.mark.parametrize("width", [80, 140])
async def test_no_line_of_the_help_is_broken_by_the_screen(open_chat: Open, width: int) -> None:
    async with open_chat(size=(width, 24)) as chat:
        await chat.press("f1")
        assert isinstance(chat.app.screen, HelpScreen)
        parts = list(chat.app.screen.query(Static))
        assert parts
        for part in parts:
            assert isinstance(part.content, Content)
            assert part.content_size.height == part.content.plain.count("\n") + 1
            assert part.content_size.width <= 80 - FRAME
        assert "not guessed" in str(parts[-1].content)


def test_every_command_fits_the_list_with_its_description() -> None:
    longest = max(len(one.usage) for one in COMMANDS)
    assert all(longest + 2 + len(one.about) <= ROOM for one in COMMANDS)
