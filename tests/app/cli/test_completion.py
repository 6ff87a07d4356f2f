"""What a shell offers next, the script that makes it do so, and the examples of every command."""

import ast
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from slipstream.app.chats.store import ChatStore
from slipstream.app.cli.main import main
from slipstream.app.cli.options import make_parser
from slipstream.app.cli.parser import EXAMPLES, Parser, examples_of
from slipstream.app.platform.paths import Paths
from slipstream.models.errors import SlipstreamError

COMMANDS = ["run", "bench", "drafters", "models", "chats", "settings", "lend", "doctor", "paths", "completion"]
FILES = ["a file.gguf", "bundled-draft.gguf"]
NEXT = {
    "": COMMANDS, "m": ["models"], "models p": ["pull", "pairs"], "--seed 7 mo": ["models"],
    "drafters train ": ["medusa", "kangaroo", "space", "eagle3", "dflash", "all"],
    "completion ": ["bash", "zsh", "fish"],
    "drafters off look": ["lookup", "lookahead"], "models search --sort t": ["trending"],
    "chats export --format ": ["md", "json"], "run --drafter look": ["lookup", "lookahead"],
    "run --drafter=look": ["--drafter=lookup", "--drafter=lookahead"],
    "run --drafter lookup --drafter auto": ["auto"], "-m bundled-d": ["bundled-draft", "bundled-draft.gguf"],
    "models verify bundled-d": ["bundled-draft"], "models import ": FILES, "drafters index one two ": FILES,
    "bench --json ": FILES, "run -p ": [""], "run --seed ": [""], "paths ": [""], "models search qwen ": [""],
    "run nonsense ": [""], "settings set sampling.temp": ["sampling.temperature"],
    "settings set sampling.temperature ": [""], "models pull x --f": ["--force"],
}  # fmt: skip
ASK = """
import io, os, sys
from slipstream.app.cli.completion import complete
from slipstream.app.cli.options import make_parser
os.environ |= {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\\n", "_ARGCOMPLETE_SUPPRESS_SPACE": "1"}
os.environ |= {"_ARGCOMPLETE_DFS": "\\t", "_ARGCOMPLETE_SHELL": "fish"}
for line in sys.argv[1:]:
    os.environ |= {"COMP_LINE": f"slipstream {line}", "COMP_POINT": str(11 + len(line))}
    out = io.StringIO()
    try:
        complete(make_parser(), out)
    except SystemExit as ended:
        assert not ended.code
    print(repr(out.getvalue().splitlines()))
"""  # in a process of its own: argcomplete takes file descriptors 8 and 9


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLIPSTREAM_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def offered(folder: Path, *lines: str) -> list[list[str]]:
    for name in FILES:
        (folder / name).touch()
    command = [sys.executable, "-c", ASK, *lines]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return [ast.literal_eval(line) for line in done.stdout.splitlines()]


def test_what_may_come_next(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    answers = offered(folder, *NEXT)
    words = [sorted(word.split("\t")[0] for word in found) or [""] for found in answers]
    assert dict(zip(NEXT, words, strict=True)) == {line: sorted(found) for line, found in NEXT.items()}
    assert all(word.split("\t")[1] for word in answers[0])  # a command's meaning stands beside it
    run, none = ({word.split("\t")[0] for word in found} for found in offered(tmp_path, "run --", "--"))
    assert {"--prompt", "--json", "--stop", "--model", "--typical"} <= run
    assert "--prompt" not in none and "--version" in none and "--as-child" not in none


def test_kept_chats_are_named_and_their_titles_are_inert(tmp_path: Path) -> None:
    paths = Paths.default()
    store = ChatStore(paths.chats, paths.states, paths.heads, paths.index)
    chat = store.open_or_create("notes")
    store.add_user(chat.id, "one\ntwo\x1b[2J")
    store.rename(chat.id, "one\ttwo\x1b[2J")
    store.close()
    for ((line,),) in zip(offered(tmp_path, "run --chat ", "chats show "), strict=True):
        assert line.split("\t")[0] == chat.id and line.count("\t") == 1 and "\x1b" not in line


@pytest.mark.parametrize("odd", ["~nobody-of-that-name/x", "/dev/null", "/tmp/" + "x" * 300])
def test_a_home_that_cannot_be_one_offers_no_names(odd: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIPSTREAM_HOME", odd)
    chats, models, commands = offered(tmp_path, "run --chat ", "models verify tuned-", "mod")
    assert not chats and not models and commands[0].startswith("models")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_are_printed_and_parse(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["completion", shell])
    script = capsys.readouterr().out
    assert ended.value.code == 0 and "_ARGCOMPLETE" in script and "slipstream" in script
    program = shutil.which(shell)
    if program:
        subprocess.run([program, "-n"], input=script, text=True, check=True)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("slipstream mod", ["models"]),
        ("slipstream models p", ["pull", "pairs"]),
        ("slipstream models import ./a", ["./a\\ file.gguf"]),
        ("slipstream run --drafter ", ["auto", "none", "draft"]),
    ],
)
def test_bash_completes(line: str, found: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a file.gguf").touch()
    program = tmp_path / "slipstream"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m slipstream.app.cli.main "$@"\n')
    program.chmod(0o755)
    with pytest.raises(SystemExit):
        main(["completion", "bash"])
    (tmp_path / "script").write_text(capsys.readouterr().out)
    ask = f"source ./script; COMP_LINE={shlex.quote(line)}; COMP_POINT={len(line)}; _python_argcomplete slipstream"
    ask += '; printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(
        ["bash", "--norc", "-c", ask], cwd=tmp_path, env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert [word.rstrip(" ") for word in done.stdout.splitlines()][: len(found)] == found, done.stderr


def parsers() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    waiting: list[tuple[Parser, list[str]]] = [(make_parser(), [])]
    while waiting:
        parser, path = waiting.pop()
        found[parser.prog] = path
        for action in parser._actions:
            if isinstance(action.choices, dict):
                waiting += [(each, [*path, name]) for name, each in action.choices.items()]
    return found


def test_every_command_has_examples_and_no_other() -> None:
    assert {f"slipstream {name}".strip() for name, *_ in EXAMPLES} == set(parsers())


@pytest.mark.parametrize("command", parsers())
def test_help_is_whole_and_its_examples_are_right(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        make_parser().parse_args([*parsers()[command], "--help"])
    told = capsys.readouterr().out
    assert ended.value.code == 0
    assert all(
        part in told for part in ("usage:", "examples:", "environment:", "SLIPSTREAM_HOME", "exit codes:", "141")
    )
    for typed, does in examples_of(command):
        assert f"  {typed}\n      {does}\n" in told
        start = typed[typed.index("slipstream") :]
        here = shlex.split(start.split(" | ")[0].split(" > ")[0].split(" < ")[0].rstrip(")"))
        try:
            make_parser().parse_args(here[1:])
        except SlipstreamError as error:
            pytest.fail(f"{typed}: {error}")
