"""An error that nothing else handles: one line and exit code 1; the log says where it came from, and quotes no chat."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.app.cli.test_chat_command import Terminal

from slipstream.app.cli.main import main

SECRET = "the garden behind the house"
INTERFACE = f"""
import sys
import slipstream.app.tui.app, slipstream.app.tui.inline
from slipstream.app.cli.main import main

def broken(self):
    words = {SECRET!r}
    raise {{error}}(words)

slipstream.app.tui.app.ChatApp.on_mount = broken
slipstream.app.tui.inline.InlineChat.on_mount = broken
main(["--as-child", *sys.argv[1:]])
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLIPSTREAM_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), "memory ran out."),
        (RecursionError("maximum recursion depth exceeded"), "the input is nested too deeply."),
        (UnicodeEncodeError("utf-8", SECRET, 0, 1, "surrogates not allowed"), "a name or a text is not valid UTF-8."),
        (OSError(5, "Input/output error", "/a\x1bb"), "the system refused: '/a\\x1bb': input/output error."),
        (KeyError("left"), "an unexpected error, KeyError: \"'left'\"."),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_kind_has_its_words(
    error: Exception, words: str, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def raised() -> None:
        raise error

    monkeypatch.setattr("slipstream.app.platform.paths.Paths.rows", lambda self: raised())
    with pytest.raises(SystemExit) as ended:
        main(["paths"])
    log = home / "logs" / "errors.log"
    assert ended.value.code == 1
    assert capsys.readouterr().err == f"slipstream: {words} The details are in {log}.\n".replace(
        "ran out.", "ran out. Close other programs and try again."
    )
    told = log.read_text("utf-8")
    assert f"in {raised.__name__}\n{type(error).__name__}" in told and SECRET not in told
    assert oct(log.stat().st_mode & 0o777) == "0o600"


def test_a_log_that_cannot_be_written_is_said(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home.parent.mkdir(exist_ok=True)
    (home.parent / "loop").symlink_to("loop")
    os.environ["SLIPSTREAM_HOME"] = str(home.parent / "loop")
    with pytest.raises(SystemExit) as ended:
        main(["settings", "set", "sampling.top_k", "5"])
    line = capsys.readouterr().err
    assert ended.value.code == 1 and line.count("\n") == 1 and "Traceback" not in line


def test_a_long_log_begins_anew(home: Path) -> None:
    from slipstream.app.platform.error_log import explained

    log = home / "logs" / "errors.log"
    assert str(log) in explained(MemoryError())
    log.write_bytes(b"x" * (1 << 20))
    explained(MemoryError())
    explained(MemoryError())
    assert log.read_text().count("MemoryError") == 2 and "x" not in log.read_text()


@pytest.mark.parametrize("memory", [120, 200, 300])
@pytest.mark.parametrize("command", ["paths", "models list", "run -p Hi --max-tokens 2"])
def test_a_machine_without_memory_gets_few_words(command: str, memory: int, home: Path) -> None:
    line = f"ulimit -v {memory * 1000}; {sys.executable} -m slipstream.app.cli.main {command} >/dev/null </dev/null"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=120)
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr, done.stderr


@pytest.mark.parametrize("more", [[], ["--inline"]], ids=["screen", "inline"])
@pytest.mark.parametrize("error", ["RecursionError", "MemoryError", "OSError", "ValueError"])
def test_the_interface_ends_in_one_line(error: str, more: list[str], home: Path) -> None:
    terminal = Terminal(home, 80, 24, *more, program=("-c", INTERFACE.format(error=error)))
    shown = terminal.read().decode()
    assert terminal.end() == 1
    last = shown.rsplit("slipstream: ", 1)[1]
    log = home / "logs" / "errors.log"
    assert str(log).replace("\n", "") in last.replace("\r\n", "") and "Traceback" not in shown and "│" not in last
    told = log.read_text("utf-8")
    assert "in broken\n" in told and (SECRET in told) == (error in ("OSError", "MemoryError"))
