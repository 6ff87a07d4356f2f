"""What ``run`` prints of an answer and of what the model thinks; and a chat that outgrows the context."""

import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from slipstream.app.chats.reasoning import Thinking
from slipstream.app.chats.recording import since_summary
from slipstream.app.chats.store import ChatStore
from slipstream.app.cli.run_output import AnswerPrinter
from slipstream.app.platform.paths import Paths
from slipstream.app.protocol.events import Piece, Stepped
from slipstream.app.speed import Speed

REPLY = "<think>\nShort\u202e.\n</think>\n\nThe sea\u202e <b>is</b> wide."


class Terminal(io.StringIO):
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


@pytest.mark.program
def test_a_pipe_gets_the_answer_alone_byte_for_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    assert printed(monkeypatch, REPLY) == ("The sea\u202e <b>is</b> wide.\n", "")
    assert printed(monkeypatch, "Short.</think>Sea.", opened=True) == ("Sea.\n", "")
    assert printed(monkeypatch, "  As it <think>is</think>") == ("  As it <think>is</think>\n", "")
    assert printed(monkeypatch, "<think>\nWell") == ("\n", "")
    assert printed(monkeypatch, "<thi") == ("<thi\n", "") and printed(monkeypatch, "") == ("\n", "")


@pytest.mark.program
def test_a_terminal_shows_the_thoughts_beside_it_all_cleaned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert printed(monkeypatch, REPLY, out=True, err=True) == ("The sea\ufffd <b>is</b> wide.\n", "Short\ufffd.\n\n")
    monkeypatch.delenv("NO_COLOR")
    answer, thoughts = printed(monkeypatch, REPLY, err=True)
    assert answer == "The sea\u202e <b>is</b> wide.\n"
    assert thoughts.startswith("\x1b[2mS") and "\u202e" not in thoughts


Run = Callable[..., subprocess.CompletedProcess[str]]
LONG = "Tell me another part of a long story about a small fox who lives near the sea. "


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("SLIPSTREAM_HOME", str(tmp_path))

    def ask(*options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "slipstream.app.cli.main", "run", "--chat", "fox", "--context", "512"]
        command += ["--max-tokens", "24", "--temp", "0.8", "--seed", "1", *options, "-p", 4 * LONG]
        return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120)

    return ask


@pytest.mark.program
@pytest.mark.slow
def test_a_full_chat_is_refused_summarized_or_cut(run: Run, tmp_path: Path) -> None:
    refused = None
    for _ in range(8):
        done = run("--overflow", "stop")
        if done.returncode:
            refused = done
            break
    assert refused and refused.returncode == 1 and not refused.stdout.strip()
    assert "the context is full: this chat has" in refused.stderr and "/compact" in refused.stderr
    paths = Paths.default({"SLIPSTREAM_HOME": str(tmp_path)})
    store = ChatStore(paths.chats)
    chat = store.list_chats()[0].id
    before = [message.content for message in store.messages(chat)]
    assert before[-1] != 4 * LONG
    store.close()
    done = run("--overflow", "compact")
    assert done.returncode == 0 and done.stdout.strip()
    assert f"summarizing {len(before) - 2} messages" in done.stderr or f"summarizing {len(before)}" in done.stderr
    store = ChatStore(paths.chats)
    after = store.messages(chat)
    assert [message.content for message in after if not message.summary][: len(before)] == before
    assert len(since_summary(after)) < len(before) and after[-1].content.strip() == done.stdout.strip()
    store.close()
