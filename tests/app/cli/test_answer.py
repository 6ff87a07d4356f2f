"""``run`` prints the answer; what the model thinks goes where somebody can read it and no pipe can."""

import io
import sys

import pytest

from slipstream.app.chats.reasoning import Thinking
from slipstream.app.cli.run_output import AnswerPrinter
from slipstream.app.protocol.events import Piece, Stepped
from slipstream.app.speed import Speed

pytestmark = pytest.mark.program

REPLY = "<think>\nShort\u202e.\n</think>\n\nThe sea\u202e <b>is</b> wide."


class Terminal(io.StringIO):
    """A stream that somebody looks at."""

    def isatty(self) -> bool:
        return True


def printed(
    monkeypatch: pytest.MonkeyPatch, text: str, opened: bool = False, out: bool = False, err: bool = False
) -> tuple[str, str]:
    monkeypatch.setattr(sys, "stdout", Terminal() if out else io.StringIO())
    monkeypatch.setattr(sys, "stderr", Terminal() if err else io.StringIO())
    printer, mind = AnswerPrinter(), Thinking(opened)
    steps = [[Piece(character, "plain")] for character in text]
    for divided, pieces in [*((mind.divide(pieces), pieces) for pieces in steps), (mind.divide_rest([]), [])]:
        step = Stepped(1, pieces, [], "none", 0, 0, 0.0, Speed(), divided=divided)
        printer.take(step.parts.reasoning, "".join(piece.text for piece in step.parts.answer))
    printer.finish()
    assert isinstance(sys.stdout, io.StringIO) and isinstance(sys.stderr, io.StringIO)
    return sys.stdout.getvalue(), sys.stderr.getvalue()


def test_a_pipe_gets_the_answer_alone_byte_for_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    assert printed(monkeypatch, REPLY) == ("The sea\u202e <b>is</b> wide.\n", "")
    assert printed(monkeypatch, "Short.</think>Sea.", opened=True) == ("Sea.\n", "")
    assert printed(monkeypatch, "  As it <think>is</think>") == ("  As it <think>is</think>\n", "")


def test_a_terminal_shows_the_thoughts_beside_it_all_cleaned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert printed(monkeypatch, REPLY, out=True, err=True) == ("The sea\ufffd <b>is</b> wide.\n", "Short\ufffd.\n\n")
    monkeypatch.delenv("NO_COLOR")
    answer, thoughts = printed(monkeypatch, REPLY, err=True)
    assert answer == "The sea\u202e <b>is</b> wide.\n"
    assert thoughts.startswith("\x1b[2mS") and "\u202e" not in thoughts


def test_a_reply_that_never_answered_leaves_only_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert printed(monkeypatch, "<think>\nWell") == ("\n", "")
    assert printed(monkeypatch, "<thi") == ("<thi\n", "")
    assert printed(monkeypatch, "") == ("\n", "")
