"""``slipstream`` itself, in a terminal: what keeps it from starting is one line."""

import sys
from pathlib import Path

import pytest
from tests.app.terminal import Terminal

PROGRAM = (sys.executable, "-m", "slipstream.app.cli.main")
SMALL = "slipstream: the terminal has 20x5 characters; the chat needs 40x12."


@pytest.mark.parametrize(
    ("size", "arguments", "code", "words"),
    [
        ((20, 5), [], 1, SMALL),
        ((80, 24), ["-m", "/no/such.gguf"], 1, "slipstream: "),
        ((80, 24), ["--drafter", "x"], 2, "slipstream: "),
    ],
)
def test_what_keeps_the_chat_from_starting_is_one_clear_line_before_any_screen(
    tmp_path: Path, size: tuple[int, int], arguments: list[str], code: int, words: str
) -> None:
    with Terminal(*PROGRAM, *arguments, home=tmp_path, size=size) as terminal:
        assert terminal.ended() == code
        shown = terminal.sent.decode().removeprefix("started").partition("left ")[0]
        assert shown.startswith(words) and shown.count("\n") == 1 and "\x1b" not in shown
