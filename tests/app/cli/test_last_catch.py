"""An error that nothing else handles: one line and exit code 1; the log says where it came from, and quotes no chat."""

import argparse
import inspect
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Final

import pytest
from tests.app.terminal import Terminal

import slipstream.app.cli.main
from slipstream.app.cli.main import main
from slipstream.app.cli.options import make_parser
from slipstream.app.cli.parser import Parser

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


APP: Final = Path(slipstream.app.cli.main.__file__).resolve().parents[1]
ROOMS: Final = (
    "app/platform", "app/settings", "app/chats", "app/library", "app/devices", "app/bench", "app/engine", "drafters",
    "models",
)  # fmt: skip
ERRORS: Final[dict[str, tuple[Callable[[], Exception], str]]] = {
    "OSError": (lambda: OSError(5, "Input/output error"), "the system refused: input/output error."),
    "MemoryError": (MemoryError, "memory ran out."),
    "RecursionError": (lambda: RecursionError(SECRET), "the input is nested too deeply."),
    "UnicodeError": (lambda: UnicodeEncodeError("utf-8", SECRET, 0, 1, SECRET), "a name or a text is not valid UTF-8."),
}


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


@pytest.mark.slow
@pytest.mark.parametrize("memory", [120, 200, 300])
@pytest.mark.parametrize("command", ["paths", "models list", "run -p Hi --max-tokens 2"])
def test_a_machine_without_memory_gets_few_words(command: str, memory: int, home: Path) -> None:
    line = f"ulimit -v {memory * 1000}; {sys.executable} -m slipstream.app.cli.main {command} >/dev/null </dev/null"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=120)
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--inline"]], ids=["screen", "inline"])
@pytest.mark.parametrize("error", ["RecursionError", "MemoryError", "OSError", "ValueError"])
def test_the_interface_ends_in_one_line(error: str, more: list[str], home: Path) -> None:
    with Terminal(sys.executable, "-c", INTERFACE.format(error=error), *more, home=home) as terminal:
        assert terminal.ended() == 1
        shown = terminal.sent.decode()
    last = shown.rsplit("slipstream: ", 1)[1]
    log = home / "logs" / "errors.log"
    assert str(log).replace("\n", "") in last.replace("\r\n", "") and "Traceback" not in shown and "│" not in last
    told = log.read_text("utf-8")
    assert "in broken\n" in told and (SECRET in told) == (error in ("OSError", "MemoryError"))


def commands(parser: Parser, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    least, kinds = list(words), None
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            kinds = action
        elif not action.option_strings and action.nargs not in ("?", "*"):
            least.append(next(iter(action.choices or ("none",))))
    yield tuple(least)
    for name, kind in kinds.choices.items() if kinds else ():
        yield from commands(kind, (*words, name))


COMMANDS: Final = [
    (*words, *(("-p", "Hi", "-m", "none.gguf") if words == ("run",) else ("-m", "none.gguf") * (words == ("bench",))))
    for words in commands(make_parser())
    if words[:1] != ("completion",)  # its scripts are constants
]


@cache
def file_of(code: CodeType) -> str:
    """Where a function is, below the packages; empty for the commands themselves and for what is no function."""
    file = os.path.realpath(code.co_filename).removeprefix(f"{APP.parent}{os.sep}")
    return "" if file.startswith(f"app{os.sep}cli{os.sep}") or not code.co_flags & inspect.CO_OPTIMIZED else file


def ended(words: tuple[str, ...], call: Callable[[str], None]) -> int:
    """Runs a command, with another call before each one in a file; returns its exit code."""

    def trace(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and (file := file_of(frame.f_code)):
            call(file)

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with pytest.raises(SystemExit) as ending:
            main(words)
    finally:
        sys.settrace(before)
    assert isinstance(ending.value.code, int)
    return ending.value.code


def failed(words: tuple[str, ...], room: str, error: Exception) -> int:
    """The exit code of a command whose first call in a room fails."""

    def fail(file: str) -> None:
        if file.startswith(f"{room}{os.sep}"):
            sys.settrace(None)
            raise error

    return ended(words, fail)


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_whose_first_inner_call_fails(
    words: tuple[str, ...], kind: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make, said = ERRORS[kind]
    assert failed(words, "app", make()) == 1
    line, log = capsys.readouterr().err, (home / "logs" / "errors.log").read_text("utf-8")
    assert line.startswith(f"slipstream: {said}") and line.count("\n") == 1
    assert type(make()).__name__ in log and 'File "' in log and SECRET not in line + log


@pytest.mark.slow
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_that_fails_in_any_room(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An error that a command can do without may also be passed over."""

    def interrupted(*_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("slipstream.app.devices.lend._Server.watch", interrupted)  # it would serve without end
    files = set[str]()
    ended(words, files.add)
    capsys.readouterr()
    reached = [room for room in ROOMS if any(file.startswith(f"{room}{os.sep}") for file in files)]
    assert reached
    for room in reached:
        make, _ = list(ERRORS.values())[ROOMS.index(room) % len(ERRORS)]
        code = failed(words, room, make())
        printed = capsys.readouterr()
        assert code in ((0, 1, 2, 130) if words == ("lend",) else (0, 1, 2)), room
        assert "Traceback" not in printed.err + printed.out and SECRET not in printed.err, room
        assert len(printed.err.splitlines()) <= 3, (room, printed.err)
