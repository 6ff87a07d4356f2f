"""What a shell is told may come next, and the scripts that ask for it."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from slipstream.app.cli.completion import FILES, SCRIPTS, answer, candidates
from slipstream.app.cli.main import main
from slipstream.app.cli.parser import EXAMPLES, Parser, make_parser
from slipstream.models.errors import SlipstreamError

COMMANDS = ["run", "bench", "race", "drafters", "models", "chats", "settings", "lend", "doctor", "paths", "completion"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLIPSTREAM_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def words(line: str) -> list[str]:
    return [word for word, _ in candidates(make_parser(), line.split(" "))]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("", COMMANDS),
        ("m", ["models"]),
        ("models p", ["pull", "pairs"]),
        ("--seed 7 mo", ["models"]),
        ("--seed 7 --typical models l", ["list"]),
        ("drafters train ", ["medusa", "kangaroo", "space", "dflash"]),
        ("completion ", ["bash", "zsh", "fish"]),
        ("drafters off look", ["lookup", "lookahead"]),
        ("models search --sort t", ["trending"]),
        ("chats export --format ", ["md", "json"]),
        ("run --drafter look", ["lookup", "lookahead"]),
        ("run --drafter lookup --drafter auto", ["auto"]),
        ("-m bundled-d", ["bundled-draft", FILES]),
        ("models verify bundled-d", ["bundled-draft"]),
        ("models import ", [FILES]),
        ("drafters index one two ", [FILES]),
        ("bench --json ", [FILES]),
        ("run -p ", []),
        ("run --seed ", []),
        ("paths ", []),
        ("models search qwen ", []),
        ("run nonsense ", []),
        ("chats show ", []),
        ("settings set sampling.temp", ["sampling.temperature"]),
    ],
)
def test_what_may_come_next(line: str, found: list[str]) -> None:
    assert words(line) == found


def test_options_are_those_of_the_command() -> None:
    assert {"--prompt", "--json", "--stop", "--model", "--typical"} <= set(words("run --"))
    assert "--prompt" not in words("--") and "--version" in words("--")
    assert "--as-child" not in words("--")
    assert words("models pull x --f") == ["--force"]


def test_kept_chats_are_named_and_their_titles_are_inert(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from slipstream.app.chats.store import ChatStore
    from slipstream.app.platform.paths import Paths

    paths = Paths.default()
    store = ChatStore(paths.chats, paths.states, paths.heads, paths.index)
    chat = store.open_or_create("notes")
    store.add_user(chat.id, "one\ntwo\x1b[2J")
    store.rename(chat.id, "one\ttwo\x1b[2J")
    store.close()
    told = answer(make_parser(), ["run", "--chat", ""])
    (line,) = told.splitlines()
    assert line.split("\t")[0] == chat.id and line.count("\t") == 1 and "\x1b" not in line
    with pytest.raises(SystemExit) as ended:
        main(["--complete", "chats", "show", ""])
    assert ended.value.code == 0 and capsys.readouterr().out == told


@pytest.mark.parametrize("shell", SCRIPTS)
def test_scripts_are_printed_and_parse(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["completion", shell])
    script = capsys.readouterr().out
    assert ended.value.code == 0 and "slipstream --complete" in script
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
        ("slipstream models import ./a", ["./a file.gguf"]),
        ("slipstream run --drafter ", ["auto", "none", "draft"]),
    ],
)
def test_bash_completes(line: str, found: list[str], tmp_path: Path) -> None:
    (tmp_path / "a file.gguf").touch()
    (tmp_path / "slipstream").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m slipstream.app.cli.main "$@"\n')
    (tmp_path / "slipstream").chmod(0o755)
    (tmp_path / "script").write_text(SCRIPTS["bash"])
    typed = line.split(" ")
    listed = " ".join(shlex.quote(word) for word in typed)
    ask = f"source script; COMP_WORDS=({listed}); COMP_CWORD={len(typed) - 1}; _slipstream"
    ask += '; printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(
        ["bash", "--norc", "-c", ask],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[: len(found)] == found, done.stderr


def parsers() -> dict[str, list[str]]:
    """Every command and what it is followed by on the command line."""
    found: dict[str, list[str]] = {}
    waiting: list[tuple[Parser, list[str]]] = [(make_parser(), [])]
    while waiting:
        parser, path = waiting.pop()
        found[parser.prog] = path
        for action in parser.actions:
            if isinstance(action.choices, dict):
                waiting += [(each, [*path, name]) for name, each in action.choices.items()]
    return found


def test_every_command_has_examples_and_no_other() -> None:
    assert set(EXAMPLES) == set(parsers())


@pytest.mark.parametrize("command", EXAMPLES)
def test_help_is_whole_and_its_examples_are_right(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        make_parser().parse_args([*parsers()[command], "--help"])
    told = capsys.readouterr().out
    assert ended.value.code == 0
    assert all(
        part in told for part in ("usage:", "examples:", "environment:", "SLIPSTREAM_HOME", "exit codes:", "141")
    )
    for typed, does in EXAMPLES[command]:
        assert f"  {typed}\n      {does}\n" in told
        start = typed[typed.index("slipstream") :]
        here = shlex.split(start.split(" | ")[0].split(" > ")[0].split(" < ")[0].rstrip(")"))
        try:
            make_parser().parse_args(here[1:])
        except SlipstreamError as error:
            pytest.fail(f"{typed}: {error}")
